"""Own operators for tests, which workers import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import penstock
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock._clock import Clock


class Totals(penstock.Operator):
    """Adds values by key, and says for each row the total up to it, and its place."""

    output = "k STRING, n BIGINT, total DOUBLE"

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.totals: dict[Any, tuple[int, float]] = {}
        self.seen = pa.table({"batches": pa.array([0], pa.int64())})

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        keys, counts, totals = (column.to_pylist() for column in tables["totals"].columns)
        self.totals = dict(zip(keys, zip(counts, totals, strict=True), strict=True))
        self.seen = tables["seen"]

    def run(self, batch: pa.Table, clock: Clock) -> pa.Table:
        rows = []
        for key, value in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
            count, total = self.totals.get(key, (0, 0.0))
            self.totals[key] = count + 1, total + self.factor * value
            rows.append({"k": key, "n": count + 1, "total": total + self.factor * value})
        if batch.num_rows:
            self.seen = pa.table({"batches": pa.array([self.seen["batches"][0].as_py() + 1], pa.int64())})
        return pa.Table.from_pylist(rows, pa.schema([("k", "string"), ("n", "int64"), ("total", "double")]))

    def snapshot(self) -> dict[str, pa.Table]:
        keys = pa.array(list(self.totals), pa.string())
        counts = pa.array([count for count, _ in self.totals.values()], pa.int64())
        totals = pa.array([total for _, total in self.totals.values()], pa.float64())
        return {"totals": pa.table({"k": keys, "n": counts, "total": totals}), "seen": self.seen}


class NotedTotals(Totals):
    """Totals that also keep the first note on each key, if they are told to."""

    def __init__(self, *, notes: bool = False) -> None:
        super().__init__()
        self.notes: dict[str, str | None] | None = {} if notes else None

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        totals = tables["totals"]
        if self.notes is not None:
            self.notes = dict(zip(totals["k"].to_pylist(), totals["note"].to_pylist(), strict=True))
        super().restore({**tables, "totals": totals.select(["k", "n", "total"])})

    def run(self, batch: pa.Table, clock: Clock) -> pa.Table:
        if self.notes is not None:
            for key, note in zip(batch["k"].to_pylist(), batch["note"].to_pylist(), strict=True):
                self.notes[key] = self.notes.get(key) or note
        return super().run(batch, clock)

    def snapshot(self) -> dict[str, pa.Table]:
        tables = super().snapshot()
        if self.notes is None:
            return tables
        notes = pa.array([self.notes.get(key) for key in self.totals], pa.string())
        return {**tables, "totals": tables["totals"].append_column("note", notes)}


class Silence(penstock.Operator):
    """Says which keys had no row for a while, also if no row arrives at all."""

    output = "k STRING, last TIMESTAMP"
    uses_clock = True

    def __init__(self, gap: str = "5 s") -> None:
        self.gap_us = parse_duration_us(gap)
        self.last: dict[str, int] = {}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        self.last = {row["k"]: row["last"] for row in tables["keys"].to_pylist()}

    def run(self, batch: pa.Table, clock: Clock) -> pa.Table:
        now = clock()
        self.last |= dict.fromkeys(batch["k"].to_pylist(), now)
        silent = {key: last for key, last in self.last.items() if now - last >= self.gap_us}
        self.last = {key: last for key, last in self.last.items() if key not in silent}
        times = pa.array(list(silent.values()), pa.int64()).cast(pa.timestamp("us", "UTC"))
        return pa.table({"k": pa.array(list(silent), pa.string()), "last": times})

    def snapshot(self) -> dict[str, pa.Table]:
        return {
            "keys": pa.table(
                {
                    "k": pa.array(list(self.last), pa.string()),
                    "last": pa.array(list(self.last.values()), pa.int64()),
                }
            )
        }

    def waiting(self) -> int:
        return len(self.last)
