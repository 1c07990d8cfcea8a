"""Predictions that pay: throughput with and without a routing attribute, and with and without an undo log.

    python -m benchmarks.partitions.predictions_used [--runs 8] [--transactions 40000] [--rows 300]

Two partitions in one process, without a log. No event names the branch whose accounts a transaction accesses:
it is in a row. So without predictions all tables are gathered, and one thread runs all transactions. The
design's routing attribute lets them run in their partitions, and so does a trained predictor. It also leaves
out the undo log, because no transaction of the trace is rejected; "with undo log" is the same predictor, but
each transaction has one. "audit" reads so many rows, "settle" changes as many.

The ways alternate, in another order in each run, and the fastest run of each counts, since other processes
share the two cores. Shown is also the median CPU time of a transaction in all threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.language import abort
from penstock.procedures.partitions.design import PartitionDesign
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.partitions.predicted.prediction import Prediction, TransactionPredictor
from penstock.procedures.texts import Numbers

__all__ = ["PROCEDURES", "WAYS", "Sizes", "branches", "measure", "open_ways", "report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "predictions_used.txt"
BRANCHES, PARTITIONS = 16, 2
PROCEDURES = ("audit", "settle")
WAYS = ("no predictions", "routing attribute", "predictor", "with undo log")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the benchmark.

    Attributes
    ----------
    accounts : int
        The accounts of each branch.
    call : int
        The transactions of a call.
    trace : int
        The transactions that train the predictor.
    each : int
        The rows that a transaction accesses.
    """

    accounts: int = 1_000
    call: int = 40_000
    trace: int = 300
    each: int = 300


def branches() -> Database:
    """Return a database whose events do not name the branch of the accounts."""
    database = penstock.database("branches")
    database.table("branches", "branch bigint, books bigint NOT NULL", key="branch", partition_by="branch")
    database.table(
        "accounts", "branch bigint, n bigint, balance bigint NOT NULL", key=("branch", "n"),
        partition_by="branch",
    )  # fmt: skip

    @database.procedure(event="branch bigint, first bigint, rows bigint", returns="total bigint")
    def audit(e: Any, branches: Any, accounts: Any) -> Any:
        books = branches[e.branch].books
        total = 0
        for n in range(e.rows):
            total += accounts[(books, e.first + n)].balance
        return total

    @database.procedure(event="branch bigint, first bigint, rows bigint")
    def settle(e: Any, branches: Any, accounts: Any) -> None:
        books = branches[e.branch].books
        for n in range(e.rows):
            row = accounts[(books, e.first + n)]
            row.balance += 1
            if row.balance < 0:
                abort("overdrawn")

    return database


def rows(accounts: int) -> dict[str, dict[str, Any]]:
    """Return the rows of the tables, with so many accounts in each branch."""
    pairs = np.arange(BRANCHES * accounts)
    return {
        "branches": {"branch": np.arange(BRANCHES), "books": np.arange(BRANCHES)},
        "accounts": {"branch": pairs // accounts, "n": pairs % accounts, "balance": np.zeros_like(pairs)},
    }


def events(count: int, sizes: Sizes, seed: int) -> pa.Table:
    """Return so many events."""
    draw = np.random.default_rng(seed)
    first = draw.integers(0, sizes.accounts - sizes.each, count)
    return pa.table({
        "branch": draw.integers(0, BRANCHES, count), "first": first, "rows": np.full(count, sizes.each)
    })  # fmt: skip


class _WithUndo:
    """A predictor whose transactions all have an undo log."""

    def __init__(self, predictor: penstock.Predictor) -> None:
        self._predictor = predictor

    def bind(self, *placed: Any) -> TransactionPredictor:
        self._bound = self._predictor.bind(*placed)
        return self

    def predict(self, program: Program, events: pa.RecordBatch) -> Prediction | None:
        found = self._bound.predict(program, events)
        return None if found is None else replace(found, undo=np.ones(events.num_rows, np.bool_))

    def observe(self, touched: Numbers) -> None:
        self._bound.observe(touched)

    def correct(self, event: int, touched: int) -> None:
        self._bound.correct(event, touched)


def open_ways(database: Database, procedure: str, sizes: Sizes) -> dict[str, OpenDatabase]:
    """Return an open database for each way, with its rows."""
    trace = [(procedure, events(sizes.trace, sizes, 9))]
    placed = PartitionDesign("branches", PARTITIONS, {"branches": "branch", "accounts": "branch"})
    design = replace(placed, routing={procedure: "branch"})
    tables = rows(sizes.accounts)
    predictor = penstock.predict(
        database, trace, tables=tables, partitions=PARTITIONS, clustered=False
    ).predictor
    opened = {
        WAYS[0]: database.open(design=placed),
        WAYS[1]: database.open(design=design),
        WAYS[2]: database.open(design=placed, predictor=predictor),
        WAYS[3]: database.open(design=placed, predictor=_WithUndo(predictor)),
    }
    for db in opened.values():
        for name, table in tables.items():
            db.load(name, table)
    return opened


def measure(db: OpenDatabase, procedure: str, calls: list[pa.Table]) -> tuple[float, float]:
    """Return transactions a second, and the CPU time of a transaction in microseconds."""
    begin, cpu = time.perf_counter(), time.process_time()
    for call in calls:
        db.run(procedure, call)
    count = sum(map(len, calls))
    return count / (time.perf_counter() - begin), (time.process_time() - cpu) / count * 1e6


def report(runs: int, count: int, sizes: Sizes, database: Database | None = None) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.partitions.predictions_used --runs {runs} --transactions {count} "
        f"--rows {sizes.each}"
    )
    size = min(sizes.call, count)
    yield f"{PARTITIONS} partitions, calls of {size:,} transactions, each over {sizes.each} rows"
    yield ""
    yield (
        f"{'':9}{'way':20}{'transactions/s':>15}{'/ without':>11}{'CPU, us':>9}{'predicted':>11}"
        f"{'no undo log':>13}"
    )
    database = database or branches()
    for procedure in PROCEDURES:
        opened = open_ways(database, procedure, sizes)
        for db in opened.values():  # compiles
            measure(db, procedure, [events(sizes.call, sizes, 1)])
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(runs):
            calls = [events(sizes.call, sizes, number + 2) for _ in range(max(count // sizes.call, 1))]
            for place in range(len(WAYS)):
                way = WAYS[(number + place) % len(WAYS)]
                rate, cpu_us = measure(opened[way], procedure, calls)
                rates[way].append(rate)
                times[way].append(cpu_us)
        for way, db in opened.items():
            state = db._state
            assert isinstance(state, PartitionedTables)
            ratio = max(rates[way]) / max(rates[WAYS[0]])
            predicted = 0 if state.predicted is None else state.predicted.transactions
            unlogged = 0 if state.predicted is None else state.predicted.without_undo
            yield (
                f"{procedure:9}{way:20}{max(rates[way]):>15,.0f}{ratio:>11.2f}"
                f"{statistics.median(times[way]):>9.2f}"
                f"{predicted / state.transactions:>11.0%}{unlogged / state.transactions:>13.0%}"
            )
            db.close()
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--transactions", type=int, default=40_000)
    parser.add_argument("--rows", type=int, default=Sizes.each)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.runs, options.transactions, Sizes(each=options.rows)), options.out)


if __name__ == "__main__":
    main()
