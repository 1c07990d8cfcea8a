"""Throughput of a database by its partitions, and by the share of transactions over several.

    python -m benchmarks.partitions [--events 100000] [--runs 5] [--partitions 1 2] [--work 0 300]

Transactions move money between two of 100,000 accounts, and do some work: so many steps of arithmetic. The
other account is in the same partition of two, or, for a share of transactions, in the other one. Runs of
different numbers of partitions alternate, and the fastest of each counts. Nothing is logged. These are
H-Store's single-partition and distributed transactions (H-Store §4.1), on other hardware.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.harness import REPOSITORY, machine, print_and_save
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase

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


def report(count: int, runs: int, partitions: Sequence[int], works: Sequence[int]) -> Iterator[str]:
    """Return the lines of the result."""
    yield (
        f"python -m benchmarks.partitions --events {count} --runs {runs} "
        f"--partitions {' '.join(map(str, partitions))} --work {' '.join(map(str, works))}"
    )
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    yield ""
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
    yield ""
    yield f"load {os.getloadavg()[0]:.1f} at the end"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", type=int, nargs="+", default=[0, 300])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.events, options.runs, options.partitions, options.work), options.out)


if __name__ == "__main__":
    main()
