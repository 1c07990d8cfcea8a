"""Cut the power of the disks under five kinds of queries again and again, and see that nothing is lost.

The disks are real: ext4 on a loop device, shut down without a flush and mounted again, so that what was not
synced is gone, or an empty file.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.errors import InvalidUsageError
from tests.crash.disk import Disk, disks
from tests.crash.harness import kill_all, random_moment, started, why
from tests.processes import until

__all__ = ["CHECKPOINTS", "KINDS", "SCHEMA", "STREAMS", "WINDOW_S", "run_with_cuts"]

CHECKPOINTS, STREAMS = "PENSTOCK_TEST_CHECKPOINTS", "PENSTOCK_TEST_STREAMS"
"""The variables that tell the job where the disks are."""

KINDS = ("plain", "queue", "windows", "join", "graph")
SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "v": pa.int64()})
KEYS = 97
WINDOW_S = 500

_COMMIT_ROWS = 25
_LAST_T = 10**9
"""The time of the row that closes all windows."""
_AHEAD_ROWS = 800
_MOST_COMMITS = 60
_PATIENCE_S = 180.0

Row = tuple[Any, ...]


def run_with_cuts(
    directory: Path,
    seed: int,
    cuts: int,
    *,
    count: int = 2,
    broken: str = "",
    say: Callable[[str], None] = print,
) -> None:
    """Cut the power `cuts` times at moments drawn from `seed`; compare what came out.

    Checkpoints and state lie on the first of `count` disks, p-streams on the last. Rows come before each
    start and while the job runs.

    Raises
    ------
    AssertionError
        If a row is missing, came twice or is another, or the job ended by itself.
    """
    draw = random.Random(seed)
    with disks(directory, count) as some:
        source = _Source(some[-1].place)
        environment = {
            CHECKPOINTS: str(some[0].place / "checkpoints"),
            STREAMS: str(source.streams),
            "PENSTOCK_KNOWN_BAD": broken,
        }
        for cut in range(1, cuts + 1):
            source.add(draw.randint(4, 12))
            begin = time.monotonic()
            with started(directory, "power_job.py", **environment) as job:
                up = time.monotonic() - begin
                goal = _commits(some[0].place) + draw.randint(0, _MOST_COMMITS)
                until(partial(_comes_to, goal, source, job, some[0].place), _PATIENCE_S)
                assert job.poll() is None, why(job, directory)
                assert _commits(some[0].place) >= goal, f"no progress: {why(job, directory)}"
                random_moment(draw)
                kill_all(job)
                _cut(some)
            say(f"cut {cut} of {cuts}: {source.rows} rows in, {source.progress()} out; up in {up:.1f} s")
            source.check(finished=False)
        source.add(4)
        source.close_windows()
        with started(directory, "power_job.py", **environment) as job:
            done = until(lambda: job.poll() is not None or not source.missing(), _PATIENCE_S)
            assert done, f"not all came out: {source.missing()}: {why(job, directory)}"
            assert job.poll() is None, why(job, directory)
            (directory / "finished").touch()
            assert until(lambda: job.poll() is not None, _PATIENCE_S), f"no end: {why(job, directory)}"
            assert job.returncode == 0, why(job, directory)
        (directory / "finished").unlink()
        source.check(finished=True)
        say(f"{source.rows} rows in; all that came out is as without cuts")


def _commits(checkpoints: Path) -> int:
    """Return how many micro-batches all queries have committed, without those that Spark has forgotten."""
    return len(list(checkpoints.glob("**/commits/[0-9]*")))


def _comes_to(goal: int, source: _Source, job: subprocess.Popen[str], checkpoints: Path) -> bool:
    """Say whether that many micro-batches are committed; until then rows come."""
    if _commits(checkpoints) >= goal or job.poll() is not None:
        return True
    source.keep_ahead()
    return False


def _cut(some: list[Disk]) -> None:
    with ExitStack() as stack:
        for disk in some:
            disk.stop()
            stack.callback(disk.restart)


class _Source:
    """The p-streams that the queries read, and those that they write."""

    def __init__(self, place: Path) -> None:
        self.streams = place / "streams"
        self.rows = 0
        self._closed = False

    def add(self, commits: int) -> None:
        """Append commits of some rows each to both sides."""
        stop = self.rows + commits * _COMMIT_ROWS
        for name in ("left", "right"):
            with PStreamWriter(self.streams / name, SCHEMA, writer="rows", threads=1) as writer:
                for at in range(writer.clock.get("n", 0), stop, _COMMIT_ROWS):
                    writer.append(_table(range(at, at + _COMMIT_ROWS)), clock={"n": at + _COMMIT_ROWS})
                    writer.flush()
        self.rows = stop

    def keep_ahead(self) -> None:
        """Append some more, unless the plain query has much to read."""
        with contextlib.suppress(InvalidUsageError):
            if self.rows - PStream(self.streams / "out-plain").end < _AHEAD_ROWS:
                self.add(2)

    def close_windows(self) -> None:
        """Append a row of each key to what windows read, whose time is beyond all others."""
        with PStreamWriter(self.streams / "left", SCHEMA, writer="end", threads=1) as writer:
            rows = {"k": range(KEYS), "t": [_LAST_T] * KEYS, "v": [0] * KEYS}
            writer.append(pa.table(rows, SCHEMA))
        self._closed = True

    def progress(self) -> dict[str, int]:
        """Return how many rows each kind of query has written."""
        return {kind: len(self._out(kind)) for kind in KINDS}

    def _out(self, kind: str) -> list[Row]:
        try:
            rows = PStreamReader(self.streams / f"out-{kind}").read()
        except InvalidUsageError:
            return []
        columns = [rows[name].to_pylist() for name in rows.column_names]
        return list(zip(*columns, strict=True))

    def check(self, *, finished: bool) -> None:
        """See that what came out is a part, or all, of what has to.

        1. The plain query's rows are those of its source, in their order. 2. The times of a key grow in what
        leaves queue and join. 3. No window comes twice, and each has all its rows.
        """
        plain = self._out("plain")
        wanted = self._plain()
        assert plain == wanted[: len(plain)], f"plain: {_difference(plain, wanted)}"
        for kind in ("queue", "join"):
            last: dict[int, int] = {}
            for k, t, *values in self._out(kind):
                assert t > last.get(k, -1), f"{kind}: key {k} went back to {t} after {last[k]}"
                assert values == _values(kind, k, t), f"{kind}: no such row: {k, t, values}"
                last[k] = t
        for kind in ("windows", "graph"):
            found = self._windows(kind)
            assert len(set(found)) == len(found), f"{kind}: a window came twice"
            wrong = set(found) - set(self._all_windows())
            assert not wrong, f"{kind}: no such windows, or not with these rows: {sorted(wrong)[:5]}"
        if finished:
            assert not self.missing(), self.missing()

    def missing(self) -> dict[str, int]:
        """Return how much has not come out, of the kinds where it is anything."""
        plain = len(self._plain()) - len(self._out("plain"))
        found = {"plain": plain}
        newest = {k: max(n for n in range(self.rows) if n % KEYS == k) for k in range(KEYS)}
        for kind in ("queue", "join"):
            last = {k: t for k, t, *_ in self._out(kind)}
            want = dict.fromkeys(newest, _LAST_T) if kind == "queue" and self._closed else newest
            found[kind] = sum(last.get(k) != t for k, t in want.items())
        for kind in ("windows", "graph"):
            found[kind] = len(set(self._all_windows()) - set(self._windows(kind)))
        return {kind: number for kind, number in found.items() if number}

    def _plain(self) -> list[Row]:
        rows = [_row(n) for n in range(self.rows)]
        return rows + ([(k, _LAST_T, 0) for k in range(KEYS)] if self._closed else [])

    def _windows(self, kind: str) -> list[Row]:
        found = []
        for row in self._out(kind):
            k, window, *aggregates = row
            found.append((k, round(window["start"].timestamp()), *aggregates))
        return found

    def _all_windows(self) -> list[Row]:
        sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for n in range(self.rows):
            k, t, v = _row(n)
            cell = sums[k, t - t % WINDOW_S]
            cell[0] += 1
            cell[1] += v
        return [(*place, *cell) for place, cell in sums.items()]


def _row(n: int) -> Row:
    return n % KEYS, n, n * 7919 % 1009


def _values(kind: str, k: int, t: int) -> list[int]:
    value = 0 if t == _LAST_T else _row(t)[2]
    return [value, value] if kind == "join" else [value]


def _table(numbers: range) -> pa.Table:
    columns = zip(*map(_row, numbers), strict=True)
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def _difference(found: list[Row], wanted: list[Row]) -> str:
    at = next((n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return f"{len(found)} rows in place of {len(wanted)}"
    return f"row {at} is {found[at]} and not {wanted[at]}; {len(found)} rows in place of {len(wanted)}"
