"""The input of the queries that lose power, and their expected results."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.errors import InvalidUsageError
from tests.crash.power.power_transactions import NUMBER, Requests, check_transactions

__all__ = ["CALLS", "KINDS", "SCHEMA", "WINDOW_S", "Source"]

KINDS = ("plain", "queue", "windows", "join", "graph", "transactions")
CALLS = "calls"
"""The location of requests, below the location of p-streams."""

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "v": pa.int64()})
WINDOW_S = 500

_KEYS = 97
_COMMIT_ROWS = 25
_LAST_T = 10**9
"""The time of the rows that close all windows."""
_AHEAD_ROWS = 800

Row = tuple[Any, ...]


class Source:
    """The p-streams that the queries read, and those that they write."""

    def __init__(self, streams: Path) -> None:
        self.streams = streams
        self.rows = 0
        self._closed = False
        self._requests = Requests(streams / CALLS)

    def add(self, commits: int) -> None:
        """Append commits of some rows each to both sides."""
        stop = self.rows + commits * _COMMIT_ROWS
        for name in ("left", "right"):
            with PStreamWriter(self.streams / name, SCHEMA, writer="rows", threads=1) as writer:
                for at in range(writer.clock.get("n", 0), stop, _COMMIT_ROWS):
                    writer.append(_table(range(at, at + _COMMIT_ROWS)), clock={"n": at + _COMMIT_ROWS})
                    writer.flush()
        self.rows = stop
        self._requests.keep_in_flight()

    def keep_ahead(self) -> None:
        """Keep requests in flight; append rows, unless the plain query still has many to read."""
        self._requests.keep_in_flight()
        with contextlib.suppress(InvalidUsageError):
            if self.rows - PStream(self.streams / "out-plain").end < _AHEAD_ROWS:
                self.add(2)

    def close_windows(self) -> None:
        """Append to the windows' input a row of each key with a time beyond all others."""
        with PStreamWriter(self.streams / "left", SCHEMA, writer="end", threads=1) as writer:
            rows = {"k": range(_KEYS), "t": [_LAST_T] * _KEYS, "v": [0] * _KEYS}
            writer.append(pa.table(rows, SCHEMA))
        self._closed = True

    def progress(self) -> dict[str, int]:
        """Return how many rows each kind of query has written."""
        return {kind: len(self._out(kind)) for kind in KINDS}

    def _out(self, kind: str) -> list[Row]:
        rows = self._rows_of(kind)
        columns = [rows[name].to_pylist() for name in rows.column_names]
        return list(zip(*columns, strict=True))

    def _rows_of(self, kind: str) -> pa.Table:
        try:
            return PStreamReader(self.streams / f"out-{kind}").read()
        except InvalidUsageError:
            return pa.table({NUMBER: pa.array([], pa.int64())})

    def check(self, *, finished: bool) -> None:
        """Check that the results are a part of the expected ones, or all of them if `finished`.

        1. The plain query's rows are those of its source, in their order.
        2. The times of a key grow in the results of queue and join.
        3. No window comes twice, and each has all its rows.
        4. Transactions and requests happen once, as in a serial run.
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
        events = _table(range(self.rows))
        check_transactions(self._rows_of("transactions"), events, self._requests, finished=finished)
        if finished:
            assert not self.missing(), self.missing()

    def missing(self) -> dict[str, int]:
        """Return the number of missing results of each kind that has any."""
        plain = len(self._plain()) - len(self._out("plain"))
        found = {"plain": plain}
        newest = {k: max(n for n in range(self.rows) if n % _KEYS == k) for k in range(_KEYS)}
        for kind in ("queue", "join"):
            last = {k: t for k, t, *_ in self._out(kind)}
            want = dict.fromkeys(newest, _LAST_T) if kind == "queue" and self._closed else newest
            found[kind] = sum(last.get(k) != t for k, t in want.items())
        for kind in ("windows", "graph"):
            found[kind] = len(set(self._all_windows()) - set(self._windows(kind)))
        found["transactions"] = self.rows - len(self._out("transactions"))
        self._requests.see()
        found["requests"] = self._requests.unanswered
        return {kind: number for kind, number in found.items() if number}

    def _plain(self) -> list[Row]:
        rows = [_row(n) for n in range(self.rows)]
        return rows + ([(k, _LAST_T, 0) for k in range(_KEYS)] if self._closed else [])

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
    return n % _KEYS, n, n * 7919 % 1009


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
