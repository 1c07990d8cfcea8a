"""The accesses of GS, SL, OB and TP, as every scheme gets them, and the procedure that makes them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.paper.t_stream.schemes import work_on
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import database
from penstock.procedures.engine import TableSet, event_schema
from penstock.procedures.parallel.access_sets import AccessSets
from penstock.procedures.parallel.planning import MODES, Planner
from penstock.procedures.programs import PROGRAMS
from penstock.procedures.programs.packaged import fractions, lists, zipf

__all__ = ["Accesses", "accesses_of", "grep_and_sum", "loaded", "rounds_of"]

KEYS = 10_000

_db = database("accesses")
_db.table("records", "id bigint, value bigint NOT NULL", key="id")


@_db.procedure(
    event="reads array<bigint> NOT NULL, writes array<bigint> NOT NULL, rounds bigint NOT NULL",
    returns="total bigint",
)
def access(e: Any, records: Any) -> Any:
    """Read and write records, with work at each access."""
    total = 0
    for key in e.reads:
        value = records[key].value
        for _ in range(e.rounds):
            value = value * 5 % 1000003
        total += value
    for written in e.writes:
        record = records[written]
        value = record.value
        for _ in range(e.rounds):
            value = value * 5 % 1000003
        record.value = value
    return total


@dataclass(frozen=True)
class Accesses:
    """Transactions as operations on rows: transaction t begins at ``offsets[t]``, with its reads."""

    offsets: Any
    rows: Any
    writes: Any
    keys: int

    @property
    def count(self) -> int:
        """The number of transactions."""
        return len(self.offsets) - 1

    def events(self, rounds: int) -> pa.RecordBatch:
        """Return them as events of `access`."""
        of = np.repeat(np.arange(self.count), np.diff(self.offsets))
        columns = []
        for kind in (False, True):
            mask = self.writes == kind
            columns.append(lists(self.rows[mask], np.bincount(of[mask], minlength=self.count)))
        arrays = [*columns, pa.array(np.full(self.count, rounds))]
        return pa.RecordBatch.from_arrays(arrays, schema=event_schema(access.program().event))


def loaded(keys: int) -> TableSet:
    """Return the records."""
    state = TableSet(_db.tables.values())
    rows = {"id": np.arange(keys), "value": np.arange(keys) % 1000 + 1}
    state.load("records", pa.RecordBatch.from_pydict(rows, schema=_db.tables["records"].schema))
    return state


def accesses_of(name: str, count: int) -> Accesses:
    """Return the accesses of a packaged program."""
    packaged = PROGRAMS[name]
    program = packaged.procedure.program()
    assert isinstance(program, Program)
    assert isinstance(program.access_sets, AccessSets)
    state = TableSet(packaged.database.tables.values())
    state.run(program, packaged.opening(KEYS))
    planner = Planner(state, program, program.access_sets)
    run = state.begin(program, packaged.workload(count, KEYS, 1))
    bits = planner.bits_of(run.events, count)
    plan = planner.plan(MODES["levels"], run.events, bits, 0, count, 1, map)
    return _reads_first(plan.offsets, plan.rows[: plan.offsets[-1]], plan.writes[: plan.offsets[-1]])


def grep_and_sum(count: int, *, length: int, reads: float, skew: float) -> Accesses:
    """Return GS with a share of reading transactions, a length and a skew."""
    drawn = zipf(7, count * length, KEYS, skew).reshape(count, length)
    # A key that a transaction has twice is one operation.
    drawn.sort(axis=1)
    kept = np.ones(drawn.shape, np.bool_)
    kept[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    writes = np.repeat(fractions(8, count) >= reads, kept.sum(axis=1))
    return _reads_first(offsets, drawn[kept], writes)


def _reads_first(offsets: Any, rows: Any, writes: Any) -> Accesses:
    of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((np.arange(len(rows)), writes, of))
    return Accesses(offsets, rows[order], writes[order], int(rows.max()) + 1)


def rounds_of(nanoseconds: float) -> int:
    """Return how many rounds of work take this long."""
    if nanoseconds == 0:
        return 0
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        work_on(7, 1_000_000)
        times.append(time.perf_counter() - begin)
    return max(round(nanoseconds / (min(times) * 1e3)), 1)
