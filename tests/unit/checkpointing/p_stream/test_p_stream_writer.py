"""A writer of p-streams encodes and commits in parallel, and ends with an error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import fs

from penstock.checkpointing.files import Content, Files, LocalFiles, locations
from penstock.checkpointing.p_stream import Coder, PStream, PStreamReader, PStreamWriter, SegmentWriter
from penstock.errors import InvalidUsageError, UnavailableError
from tests.servers.processes import until

AT_THE_END = """
import atexit, sys, threading
import pyarrow as pa
from penstock import PStreamWriter

schema = pa.schema({"n": pa.int64()})
writer = PStreamWriter(sys.argv[1], schema, interval="1us", threads=int(sys.argv[2]))

def more():
    for n in range(1, 5):
        writer.append(pa.table({"n": [n]}, schema))
        writer.flush()

def others():
    threading.main_thread().join()
    more()
    writer.close()

writer.append(pa.table({"n": [0]}, schema))
if sys.argv[3] == "thread":
    threading.Thread(target=others).start()
else:
    atexit.register(writer.close)
    atexit.register(more)
"""
"""A program that goes on appending after its main thread has ended, or when it is told of the end."""

FORKED = """
import os, sys, threading
import pyarrow as pa
from penstock import PStreamWriter
from penstock.errors import InvalidUsageError

schema = pa.schema({"n": pa.int64()})
rows = pa.table({"n": [1]}, schema)
writer = PStreamWriter(sys.argv[1], schema, interval="1h")
closed = PStreamWriter(sys.argv[1], writer="closed")
closed.close()
writer.append(rows)
held, forked = threading.Event(), threading.Event()

def hold():
    with writer._changed:
        held.set()
        forked.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child:
    forked.set()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    writer.close()
    sys.exit(code)
writer.abort()
closed.close()
refused = 0
for call in (lambda: writer.append(rows), writer.flush, writer.close, writer.metrics, lambda: writer.clock):
    try:
        call()
    except InvalidUsageError as error:
        refused += "forked process" in str(error) and "open a writer in this process" in str(error)
with PStreamWriter(sys.argv[1], writer="child") as own:
    own.append(pa.table({"n": [2]}, schema))
os._exit(refused)
"""
"""A program that forks while a thread of its holds the writer's lock; its exit code is what was refused."""

SCHEMA = pa.schema({"n": pa.int64()})


class _Held:
    """Files that publish nothing until the test releases them, and then fail if the test wants that."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.waits, self.go = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def publish(self, name: str, *content: Content) -> None:
        self.waits.set()
        self.go.wait()
        if self.error is not None:
            raise self.error
        self._files.publish(name, *content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def numbers(first: int, stop: int) -> pa.Table:
    return pa.table({"n": range(first, stop)}, SCHEMA)


def all_of(place: Path) -> list[int]:
    stream = PStream(place)
    return [n for batch in stream.read(0, stream.end) for n in batch.column("n").to_pylist()]


@pytest.fixture
def writer(tmp_path: Path) -> PStreamWriter:
    return PStreamWriter(tmp_path / "s", SCHEMA, interval="1us", threads=1)


@pytest.fixture
def files(writer: PStreamWriter) -> Iterator[_Held]:
    """Hold up the writer's commits."""
    log = writer._stream.log
    log._files = files = _Held(log._files)
    yield files
    files.go.set()


def _hold_up(writer: PStreamWriter, files: _Held) -> None:
    """Append ten rows twice: the first ten wait for their commit, the others are encoded."""
    writer.append(numbers(0, 10))
    files.waits.wait()
    writer.append(numbers(10, 20))
    assert until(lambda: writer.metrics()["blocks"] == 2, patience_s=30)


def test_while_a_commit_is_synced_the_next_rows_are_coded(
    writer: PStreamWriter, files: _Held, tmp_path: Path
) -> None:
    writer.append(numbers(0, 10), clock={"source": 10})
    files.waits.wait()
    writer.append(numbers(10, 30), clock={"source": 30})
    assert until(lambda: writer.metrics()["blocks"] == 2, patience_s=30)
    assert (writer.metrics()["durable"], PStream(tmp_path / "s").end, writer.clock) == (0, 0, {})
    files.go.set()
    writer.close()
    commits = PStream(tmp_path / "s").log.commits
    assert [(one.batch, one.offset, one.rows) for one in commits] == [(0, 0, 10), (1, 10, 20)]
    assert all_of(tmp_path / "s") == list(range(30))
    assert writer.clock == {"source": 30}
    assert writer.metrics()["pending_bytes"] == 0


def test_rows_that_come_while_others_are_coded_wait_for_one_another(
    writer: PStreamWriter, files: _Held, tmp_path: Path
) -> None:
    _hold_up(writer, files)
    for first in range(20, 60, 10):
        writer.append(numbers(first, first + 10))
    files.go.set()
    writer.close()
    assert [commit.rows for commit in PStream(tmp_path / "s").log.commits] == [10, 10, 40]


def test_half_of_what_may_wait_is_committed_before_its_time_is_over(tmp_path: Path) -> None:
    with PStreamWriter(tmp_path / "s", SCHEMA, interval="1h", threads=1, max_pending_bytes=1600) as writer:
        for number in range(3):
            writer.append(numbers(100 * number, 100 * number + 100))
            assert until(lambda: writer.metrics()["pending_bytes"] == 0, patience_s=10)
    assert all_of(tmp_path / "s") == list(range(300))


def test_of_what_follows_a_commit_that_fails_nothing_is_committed(
    writer: PStreamWriter, files: _Held, tmp_path: Path
) -> None:
    _hold_up(writer, files)
    files.error = UnavailableError("no space")
    files.go.set()
    with pytest.raises(UnavailableError, match="no space"):
        writer.flush()
    with pytest.raises(UnavailableError, match="no space"):
        writer.append(numbers(20, 30))
    with pytest.raises(UnavailableError, match="no space"):
        writer.close()
    assert PStream(tmp_path / "s").end == 0
    with PStreamWriter(tmp_path / "s") as again:
        assert again.clock == {}
        again.append(numbers(0, 5))
    assert all_of(tmp_path / "s") == list(range(5))


def test_an_abort_commits_only_what_is_under_way_and_tells_who_waits(
    writer: PStreamWriter, files: _Held, tmp_path: Path
) -> None:
    writer.append(numbers(0, 10))
    files.waits.wait()
    for first in (10, 20):
        # The first of these is coded and waits, the other one is taken by nobody.
        writer.append(numbers(first, first + 10))
        assert until(lambda: writer.metrics()["blocks"] == 2, patience_s=30)
    told: list[Exception] = []

    def flush() -> None:
        try:
            writer.flush()
        except InvalidUsageError as error:
            told.append(error)

    waiting = threading.Thread(target=flush, daemon=True)
    waiting.start()
    assert until(lambda: writer._wanted == 3, patience_s=30)
    ending = threading.Thread(target=writer.abort)
    ending.start()
    assert until(lambda: writer._closed, patience_s=30)
    files.go.set()
    ending.join()
    waiting.join(30)
    assert [str(error).partition(":")[0] for error in told] == ["the writer is closed"]
    assert all_of(tmp_path / "s") == list(range(10))


@pytest.mark.parametrize("how", ["thread", "atexit"])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_committed_while_the_process_ends(tmp_path: Path, how: str, threads: int) -> None:
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path / "s"), str(threads), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all_of(tmp_path / "s") == list(range(5))


@pytest.mark.parametrize(
    ("tables", "units"),
    [
        ([25], [10, 10, 5]),  # what is left of a large table waits,
        ([25, 25], [10, 10, 5, 10, 10, 5]),  # and is not put together with the next,
        ([21, 21], [10, 10, 10, 10, 2]),  # unless it is small,
        ([4, 4, 4, 4], [10, 6]),  # or both are
        ([4, 4, 30], [8, 10, 10, 10]),
        ([2, 30], [10, 10, 10, 2]),
    ],
)
def test_p_units_are_of_few_tables_and_not_small(tmp_path: Path, tables: list[int], units: list[int]) -> None:
    stream = PStream(tmp_path / "s", SCHEMA)
    coder = Coder("fast", threads=1)
    segments = SegmentWriter(stream.segments, coder, "writer", 0, unit_rows=10)
    total = 0
    for count in tables:
        segments.add(numbers(total, total + count))
        total += count
    written = segments.finish()
    assert [unit.rows for segment in written for unit in segment.units] == units
    stream.log.commit("writer", 0, written)
    assert all_of(tmp_path / "s") == list(range(total))


def test_a_stream_with_direct_io_is_written_and_read_so_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.open, []

    def noted(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            opened.append("write" if flags & os.O_CREAT else "read")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", noted)
    place, rows = tmp_path / "numbers", pa.table({"n": range(50_000)}, SCHEMA)
    with PStreamWriter(place, SCHEMA, direct_io=True) as writer:
        writer.append(rows)
    with PStreamWriter(place, writer="other") as writer:
        writer.append(rows)
    stream = PStream(place)
    assert stream.direct_io
    assert stream.segments == LocalFiles(place / "segments", direct_io=True)
    assert opened == ["write"] * 3  # the stream, and two segments
    assert PStreamReader(place).read() == pa.concat_tables([rows, rows])
    assert opened[3:] == ["read"] * 2
    assert not PStream(tmp_path / "plain", SCHEMA).direct_io


@pytest.mark.parametrize("direct_io", [False, True])
def test_direct_io_is_that_of_the_streams_beginning(tmp_path: Path, direct_io: bool) -> None:
    PStream(tmp_path, SCHEMA, direct_io=direct_io)
    PStreamWriter(tmp_path, direct_io=direct_io).close()
    with pytest.raises(InvalidUsageError, match="cannot change after it is created"):
        PStreamWriter(tmp_path, direct_io=not direct_io)


def test_direct_io_is_for_disks_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidUsageError, match="direct I/O works only on local disks"):
        PStreamWriter("s3://bucket/numbers", SCHEMA, direct_io=True)
    monkeypatch.delattr(os, "O_DIRECT")
    with pytest.raises(UnavailableError, match="this file system may have no direct I/O"):
        PStreamWriter(tmp_path / "numbers", SCHEMA, direct_io=True)
    assert not list(tmp_path.rglob("p-stream"))


def test_a_copy_of_a_stream_with_direct_io_is_read_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"n": range(10)}, SCHEMA)
    with PStreamWriter(tmp_path / "state", SCHEMA, direct_io=True) as writer:
        writer.append(rows)
    monkeypatch.setattr(locations, "_connect", lambda _: (fs.LocalFileSystem(), str(tmp_path / "state")))
    assert PStreamReader("hdfs://elsewhere/state").read() == rows


def test_a_forked_process_is_refused_its_parents_writer_and_may_open_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, str(tmp_path / "s")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 5
    assert sorted(all_of(tmp_path / "s")) == [1, 2]


def test_a_start_may_be_an_offset_or_a_time_and_is_refused_beyond_the_end(tmp_path: Path) -> None:
    for n in range(3):
        with PStreamWriter(tmp_path, SCHEMA) as writer:
            writer.append(pa.table({"n": [n]}, SCHEMA))
    times = [datetime.fromtimestamp(one.time_us / 1e6, UTC) for one in PStream(tmp_path).log.commits]
    starts: dict[Any, int] = {"latest": 3, 2: 2, "1": 1, times[1]: 1, f"{times[2]}": 2, "2020-01-01": 0}
    for start, offset in starts.items():
        assert PStreamReader(tmp_path, start=start).offset == offset
    wrong: tuple[Any, ...] = (-1, True, "newest", "2026-13-01", 1.5)
    for start in wrong:
        with pytest.raises(InvalidUsageError, match="the start is not valid"):
            PStreamReader(tmp_path, start=start)
    for reader in (None, "late"):
        with pytest.raises(InvalidUsageError, match=r"ends before this offset: .*wanted=4 end=3"):
            PStreamReader(tmp_path, reader=reader, start=4)
    assert PStream(tmp_path).readers() == {}
    assert PStreamReader(tmp_path, reader="late", start=3).read().num_rows == 0
    with PStreamWriter(tmp_path, SCHEMA) as writer:
        writer.append(pa.table({"n": [3]}, SCHEMA))
    assert PStreamReader(tmp_path, reader="late").read()["n"].to_pylist() == [3]


def test_rows_may_be_of_pandas_or_plain_python(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.string())])
    frame = pd.DataFrame({"s": ["a", None], "n": [1, 2]}, index=[7, 9])
    with PStreamWriter(tmp_path, schema) as writer:
        writer.append(frame)
        writer.append([{"n": 3, "s": "c"}, {"n": 4}])
        writer.append({"s": pd.Series(["e"], dtype="category"), "n": pd.Series([5, np.nan])[:1]})
        wrong: list[tuple[Any, str]] = [
            ([{"n": 6, "t": "x"}], "no such columns: columns=t known=n, s"),
            ({"s": ["secret"], "n": ["secret"]}, "values do not fit a column.*: column=n type=bigint"),
            ({"s": pa.array(["secret"]), "n": pa.array(["secret"])}, "column=n type=bigint"),
            ([{"s": 5, "n": 1}], "values do not fit a column.*: column=s type=string"),
            ([{"n": 2**70}], "values do not fit a column.*: column=n"),
            ({"s": ["secret"], "n": [1, 2]}, "columns of the rows differ in length"),
            (frame.drop(columns="n"), "rows lack columns of the p-stream: columns=n"),
            ([{"s": "secret"}], "a column that is not nullable has nulls: column=n"),
            ("secret", "rows of this type cannot be appended: got=str"),
        ]
        for rows, text in wrong:
            with pytest.raises(InvalidUsageError, match=text) as caught:
                writer.append(rows)
            assert "secret" not in str(caught.value)
    rows = PStreamReader(tmp_path).read().to_pydict()
    assert rows == {"n": [1, 2, 3, 4, 5], "s": ["a", None, "c", None, "e"]}
