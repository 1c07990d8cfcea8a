"""Throughput of a database by its partitions, and by the share of transactions over several.

    python -m benchmarks.partitions.partitions [--events 100000] [--runs 5] [--partitions 1 2]
                                    [--work 0 30 100 300] [--oltp small_bank tpcc]

Transactions move money between two of 100,000 accounts, and do some work: so many steps of arithmetic. The
other account is in the same partition of two, or, for a share of transactions, in the other one. Runs of
different numbers of partitions alternate, and the fastest of each counts. Nothing is logged. These are
H-Store's single-partition and distributed transactions (H-Store §4.1), on other hardware. Then SmallBank and
TPC-C run, once without the transactions that need several partitions, and once whole. Tables may be gathered
at the coordinator in the first runs, so the fastest run is one of the later ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.programs.oltp import OLTP, OltpBenchmark
from penstock.procedures.programs.oltp.tpcc_data import TpccScale

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "partitions.txt"
ACCOUNTS = 100_000
SHARES = (0.0, 0.1, 0.5, 1.0)


def bank() -> Database:
    """Return a database with one procedure."""
    made = penstock.database("bank")
    made.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")

    @made.procedure(event="source bigint, target bigint, work int")
    def transfer(e: Any, accounts: Any) -> None:
        amount = 1
        for _ in range(e.work):
            amount = (amount * 31 + 7) % 1_000_003
        accounts[e.source].balance -= amount
        accounts[e.target].balance += amount

    return made


def events(count: int, share: float, work: int, draw: np.random.Generator) -> pa.Table:
    """Return transfers; accounts below and above the middle are in different partitions."""
    half = ACCOUNTS // 2
    source, target = draw.integers(0, ACCOUNTS, count), draw.integers(0, half, count)
    far = draw.random(count) < share
    target += np.where((source >= half) != far, half, 0)
    return pa.table({"source": source, "target": target, "work": np.full(count, work, np.int32)})


def _open(made: Database, partitions: int) -> OpenDatabase:
    bounds = [ACCOUNTS * number // partitions for number in range(1, partitions)]
    db = made.open(partitions=partitions, ranges={"accounts": bounds} if bounds else None)
    db.load("accounts", {"id": np.arange(ACCOUNTS), "balance": np.zeros(ACCOUNTS, np.int64)})
    return db


SCALES = {"tpcc": TpccScale(warehouses=4, customers=300, items=10_000)}
"""The sizes of benchmarks that differ from the full ones: versions of several partitions have to fit."""


def _open_oltp(benchmark: OltpBenchmark, scale: Any, partitions: int) -> OpenDatabase:
    """Open the tables of a benchmark. Warehouses go to partitions by ranges, customers by hash."""
    ranges = None
    if benchmark.name == "tpcc" and partitions > 1:
        bounds = [1 + scale.warehouses * number // partitions for number in range(1, partitions)]
        ranges = {name: bounds for name, spec in benchmark.database.tables.items() if spec.partition_by}
    db = benchmark.database.open(partitions=partitions, ranges=ranges)
    for name, rows in benchmark.tables(scale).items():
        db.load(name, rows)
    return db


def alone(db: OpenDatabase, benchmark: OltpBenchmark, events: pa.RecordBatch) -> pa.RecordBatch:
    """Return the transactions that need one partition."""
    program = benchmark.procedure.program()
    if not isinstance(db._state, PartitionedTables) or not isinstance(program, Program):
        raise TypeError("the database has one partition")
    homes = db._state.event_keys(program, events).alone()
    return events.filter(pa.array(homes >= 0))


def oltp_lines(name: str, count: int, runs: int, partitions: Sequence[int]) -> Iterator[str]:
    """Return the lines of a benchmark: without transactions over several partitions, then whole."""
    benchmark = OLTP[name]
    scale = SCALES.get(name, benchmark.full)
    for whole in (False, True):
        databases = [_open_oltp(benchmark, scale, number) for number in partitions]
        fastest = [np.inf] * len(databases)
        events = benchmark.requests(scale, count, 1)
        if not whole:
            events = alone(databases[-1], benchmark, events)
        for run in range(runs + 1):  # the first run compiles
            rows = pa.table(events if run else events.slice(0, 100))
            for place, db in enumerate(databases):
                begin = time.perf_counter()
                db.run(benchmark.procedure.name, rows)
                fastest[place] = min(fastest[place], time.perf_counter() - begin if run else np.inf)
        tables = [
            {table: db.table(table).sort_by([(key, "ascending") for key in spec.key])
             for table, spec in benchmark.database.tables.items()}
            for db in databases
        ]  # fmt: skip
        if any(one != tables[0] for one in tables):
            raise AssertionError("partitions change the result")
        share = 1 - alone(databases[-1], benchmark, events).num_rows / events.num_rows
        for db in databases:
            db.close()
        yield f"{'whole' if whole else 'alone':<12}{share:>14.0%}" + "".join(
            f"{events.num_rows / one / 1e3:>12.1f}" for one in fastest
        )


def report(
    count: int,
    runs: int,
    partitions: Sequence[int],
    works: Sequence[int],
    oltp: Sequence[str] = (),
) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.partitions.partitions --events {count} --runs {runs} "
        f"--partitions {' '.join(map(str, partitions))} --work {' '.join(map(str, works))}"
        + (f" --oltp {' '.join(oltp)}" if oltp else "")
    )
    yield f"{'work':>6}{'several partitions':>20}" + "".join(f"{f'{n}, M/s':>12}" for n in partitions)
    made, draw = bank(), np.random.default_rng(1)
    for work in works:
        for share in SHARES:
            databases = [_open(made, number) for number in partitions]
            fastest = [np.inf] * len(databases)
            for _ in range(runs + 1):  # the first run compiles
                transfers = events(count, share, work, draw)
                for place, db in enumerate(databases):
                    begin = time.perf_counter()
                    db.run("transfer", transfers)
                    fastest[place] = min(fastest[place], time.perf_counter() - begin)
            found = [db.table("accounts").sort_by("id") for db in databases]
            if any(table != found[0] for table in found):
                raise AssertionError("partitions change the result")
            for db in databases:
                db.close()
            yield f"{work:>6}{share:>20.0%}" + "".join(f"{count / one / 1e6:>12.2f}" for one in fastest)
    for name in oltp:
        yield ""
        yield f"{name:<12}{'over several':>14}" + "".join(f"{f'{n}, k/s':>12}" for n in partitions)
        yield from oltp_lines(name, count, runs, partitions)
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", type=int, nargs="+", default=[0, 30, 100, 300])
    parser.add_argument("--oltp", nargs="*", default=["small_bank", "tpcc"], choices=["small_bank", "tpcc"])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    lines = report(options.events, options.runs, options.partitions, options.work, options.oltp)
    print_and_save(lines, options.out)


if __name__ == "__main__":
    main()
