"""Update logs: their options, their rows, and what a compaction keeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.description import Description
from penstock.checkpointing.p_stream.update_log import UpdateLog
from penstock.checkpointing.p_stream.update_log.compaction import compact
from penstock.errors import InvalidUsageError

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "op": pa.string(), "v": pa.float64()})
LOG: dict[str, Any] = {"key": "k", "time": "t", "delete_when": "op = 'd'"}
NEVER = CleanupRule(min_tail_rows=10**9)


def append(place: Path, *rows: tuple[str, int, str], **options: Any) -> None:
    given: dict[str, Any] = {"threads": 1, "cleanup": NEVER} | LOG | options
    with PStreamWriter(place, SCHEMA, **given) as writer:
        writer.append([{"k": k, "t": t, "op": op, "v": 0.5} for k, t, op in rows])


def keys(place: Path, **options: Any) -> list[tuple[str, int]]:
    rows = PStreamReader(place, **options).read(options.pop("max_rows", None))
    return list(zip(rows["k"].to_pylist(), rows["t"].to_pylist(), strict=True))


def test_a_new_reader_begins_with_the_newest_of_each_key_and_goes_on_with_the_tail(tmp_path: Path) -> None:
    append(tmp_path / "s", ("a", 1, "u"), ("b", 5, "u"), ("a", 2, "u"), ("b", 4, "u"))
    found = compact(PStream(tmp_path / "s"))
    assert found is not None
    assert (found.before, found.rows, found.end) == (4, 2, 4)
    append(tmp_path / "s", ("b", 6, "u"))
    assert keys(tmp_path / "s") == [("b", 5), ("a", 2), ("b", 6)]
    assert compact(PStream(tmp_path / "s")) is not None
    assert keys(tmp_path / "s") == [("a", 2), ("b", 6)]
    assert compact(PStream(tmp_path / "s")) is None


def test_an_old_reader_skips_superseded_rows_and_rows_it_has_read(tmp_path: Path) -> None:
    append(tmp_path / "s", ("a", 1, "u"), ("b", 1, "u"))
    reader = PStreamReader(tmp_path / "s", reader="old")
    assert reader.read().num_rows == 2
    reader.release()
    append(tmp_path / "s", ("c", 1, "u"), ("c", 2, "u"), ("a", 0, "u"))
    compact(PStream(tmp_path / "s"))
    again = PStreamReader(tmp_path / "s", reader="old")
    assert again.offset == 2
    assert again.read()["t"].to_pylist() == [2]
    assert again.offset == 5


def test_a_read_of_some_rows_counts_rows_and_not_offsets(tmp_path: Path) -> None:
    append(tmp_path / "s", *((f"k{n % 10}", n, "u") for n in range(1000)), unit_rows=64)
    compact(PStream(tmp_path / "s"), unit_rows=4)
    append(tmp_path / "s", *((f"k{n % 10}", n, "u") for n in range(1000, 1005)))
    reader = PStreamReader(tmp_path / "s")
    found = [reader.read(max_rows=3)["t"].to_pylist() for _ in range(6)]
    assert found == [
        [990, 991, 992],
        [993, 994, 995],
        [996, 997, 998],
        [999, 1000, 1001],
        [1002, 1003, 1004],
        [],
    ]


def test_deletes_stay_until_every_subscriber_has_read_them_and_they_are_old(tmp_path: Path) -> None:
    place = tmp_path / "s"
    append(place, ("a", 1, "u"), ("b", 1, "u"), keep_deletes="0s")
    slow = PStreamReader(place, reader="slow")
    slow.read()
    slow.release()
    append(place, ("a", 2, "d"), keep_deletes="0s")
    compact(PStream(place))
    assert keys(place) == [("b", 1), ("a", 2)]
    slow.read()
    slow.release()
    append(place, ("c", 1, "u"), keep_deletes="0s")
    found = compact(PStream(place))
    assert found is not None
    assert (found.rows, found.deletes) == (2, 0)
    assert keys(place) == [("b", 1), ("c", 1)]


def test_deletes_stay_for_a_day_by_default(tmp_path: Path) -> None:
    append(tmp_path / "s", ("a", 1, "u"), ("a", 2, "d"))
    compact(PStream(tmp_path / "s"))
    assert keys(tmp_path / "s") == [("a", 2)]


def test_a_writer_compacts_beside_its_commits(tmp_path: Path) -> None:
    rule = CleanupRule(min_tail_rows=100)
    with PStreamWriter(tmp_path / "s", SCHEMA, threads=1, cleanup=rule, **LOG) as writer:
        for n in range(50):
            writer.append([{"k": f"k{n % 3}", "t": n, "op": "u", "v": 1.0}] * 20)
            writer.flush()
    stream = PStream(tmp_path / "s")
    assert stream.end == 1000
    assert stream.log.compaction is not None
    compact(stream)
    assert keys(tmp_path / "s") == [("k2", 47), ("k0", 48), ("k1", 49)]


def test_a_reader_goes_on_if_compactions_delete_what_it_reads(tmp_path: Path) -> None:
    place = tmp_path / "s"
    append(place, ("a", 1, "u"))
    reader = PStreamReader(place)
    real = reader._stream.refresh

    def refresh_before_others_compact_twice() -> None:
        real()
        reader._stream.refresh = real  # type: ignore[method-assign]
        for time in (2, 3):
            append(place, ("a", time, "u"))
            compact(PStream(place))

    reader._stream.refresh = refresh_before_others_compact_twice  # type: ignore[method-assign]
    assert [*reader.read()["t"].to_pylist(), *reader.read()["t"].to_pylist()] == [3]


def test_progress_deletes_nothing_of_an_update_log(tmp_path: Path) -> None:
    append(tmp_path / "s", ("a", 1, "u"), ("b", 1, "u"))
    reader = PStreamReader(tmp_path / "s", reader="r")
    reader.read()
    reader.release()
    stream = PStream(tmp_path / "s")
    stream.trim(now=True)
    assert keys(tmp_path / "s") == [("a", 1), ("b", 1)]
    assert stream.start == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "k"}, "needs a key of different columns and a time"),
        ({"time": "t"}, "needs a key"),
        ({"delete_when": "op = 'd'"}, "needs a key"),
        ({"key": ["k", "k"], "time": "t"}, "different columns"),
        ({"key": "kk", "time": "t"}, "no such column.*did you mean 'k'"),
        ({"key": "v", "time": "t"}, "key or time of this type.*column=v"),
        ({"key": "k", "time": "op"}, "key or time of this type.*column=op"),
        ({"key": "k", "time": "t", "delete_when": "opp = 'd'"}, "no column 'opp'"),
        ({"key": "k", "time": "t", "delete_when": "t + 1"}, "not a condition that Penstock can evaluate"),
        ({"key": "k", "time": "t", "delete_when": "t + 1 > 5"}, "not a condition that Penstock can evaluate"),
        ({"key": "k", "time": "t", "keep_deletes": "soon"}, "soon"),
        ({"key": "k", "time": "t", "keep_deletes": "2 hours"}, "keep_deletes is .* give delete_when"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_created(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        PStreamWriter(tmp_path / "s", SCHEMA, **options)
    assert not (tmp_path / "s" / "p-stream").exists()


def test_an_existing_p_stream_keeps_its_key(tmp_path: Path) -> None:
    append(tmp_path / "s", ("a", 1, "u"))
    with pytest.raises(InvalidUsageError, match="created with another key"):
        PStreamWriter(tmp_path / "s", key="op", time="t")
    PStreamWriter(tmp_path / "s", **LOG).close()
    PStreamWriter(tmp_path / "s").close()
    PStreamWriter(tmp_path / "plain", SCHEMA).close()
    with pytest.raises(InvalidUsageError, match="created with another key"):
        PStreamWriter(tmp_path / "plain", **LOG)
    with pytest.raises(InvalidUsageError, match="not an update log"):
        compact(PStream(tmp_path / "plain"))
    with pytest.raises(InvalidUsageError, match="is reserved for compactions"):
        PStreamWriter(tmp_path / "s", writer="penstock.compactor")


def test_an_older_p_stream_may_keep_deletes_that_it_cannot_have() -> None:
    now = UpdateLog.of("k", "t")
    assert now is not None
    older = Description("s", SCHEMA, False, replace(now, keep_deletes_us=1))
    older.check_same(None, now, "s")
    with pytest.raises(InvalidUsageError, match="created with another key"):
        older.check_same(None, UpdateLog.of("k", "t", delete_when="op = 'd'"), "s")


@pytest.mark.parametrize("row", [{"k": None, "t": 1}, {"k": "a", "t": None}])
def test_rows_without_key_or_time_are_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    with (
        PStreamWriter(tmp_path / "s", SCHEMA, **LOG) as writer,
        pytest.raises(InvalidUsageError, match=r"without a key or time: .*rows=1"),
    ):
        writer.append([row | {"op": "u", "v": 1.0}])


def test_a_time_finds_a_place_among_compacted_rows(tmp_path: Path) -> None:
    append(tmp_path / "s", ("a", 1, "u"))
    append(tmp_path / "s", ("b", 1, "u"))
    stream = PStream(tmp_path / "s")
    first, second = (commit.time_us for commit in stream.log.commits)
    compact(stream)
    times = [datetime.fromtimestamp(us / 1e6, UTC) for us in (0, first, second + 10**6)]
    assert [stream.offset_of(time) for time in times] == [0, 0, 2]
