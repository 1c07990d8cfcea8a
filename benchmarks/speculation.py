"""Speculation between threads: throughput and latency with and without it.

    python -m benchmarks.speculation [--runs 5] [--events 10000] [--requests 3000] [--parts run]

Two partitions, without a log. ``run`` has calls of 5,000 transactions. ``submit`` has single requests, of
which 500 at a time have no answer yet. The modes alternate within each run, and the fastest run counts, since
other processes share the two cores. Its CPU time is shown. Transfers have so many steps of arithmetic; for
``submit``, deposits are the other transactions. SmallBank, TPC-C and SEATS have their own mix.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import partitions
from benchmarks.harness import REPOSITORY, print_and_save, report_head
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.oltp.seats.data import SeatsScale
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.programs.oltp.small_bank import SmallBankScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "speculation.txt"
MODES: tuple[bool | str, ...] = (False, "rows", "tables", "occ")
ACCOUNTS = 100_000
SIZE = 5_000
IN_FLIGHT = 500
PARTS = ("run", "submit", "oltp")
SCALES: dict[str, Any] = {
    "small_bank": SmallBankScale(customers=20_000, hot=1_000),
    "tpcc": TpccScale(warehouses=4, customers=30, items=1_000),
    "seats": SeatsScale(customers=2_000, airports=50, airlines=50, flights=300),
}
Request = tuple[str, dict[str, Any]]


def bank() -> Database:
    """Return a database with transfers and deposits."""
    made = partitions.bank()

    @made.procedure(event="id bigint, work int")
    def deposit(e: Any, accounts: Any) -> None:
        amount = 1
        for _ in range(e.work):
            amount = (amount * 31 + 7) % 1_000_003
        accounts[e.id].balance += amount

    return made


def transfers(count: int, share: float, work: int) -> list[Request]:
    """Return requests: so large a share are transfers over both partitions, the others are deposits."""
    draw = np.random.default_rng(1)
    half = ACCOUNTS // 2
    ids, others = draw.integers(0, half, (2, count)).tolist()
    upper, several = draw.random(count) < 0.5, draw.random(count) < share
    return [
        ("transfer", {"source": one, "target": other + half, "work": work})
        if over
        else ("deposit", {"id": one + half * high, "work": work})
        for one, other, high, over in zip(ids, others, upper.tolist(), several.tolist(), strict=True)
    ]


def events(count: int, share: float, work: int) -> pa.Table:
    """Return transfers for `run`: so large a share are over both partitions."""
    draw = np.random.default_rng(2)
    half = ACCOUNTS // 2
    source, target = draw.integers(0, ACCOUNTS, count), draw.integers(0, half, count)
    far = draw.random(count) < share
    target += np.where((source >= half) != far, half, 0)
    return pa.table({"source": source, "target": target, "work": np.full(count, work, np.int32)})


def measure_run(db: OpenDatabase, procedure: str, rows: pa.Table) -> list[float]:
    """Return the seconds, and the CPU seconds."""
    begin, cpu = time.perf_counter(), time.process_time()
    for at in range(0, len(rows), SIZE):
        db.run(procedure, rows.slice(at, SIZE))
    return [time.perf_counter() - begin, time.process_time() - cpu]


def measure_submit(db: OpenDatabase, requests: Sequence[Request]) -> list[float]:
    """Return the seconds, the CPU seconds, and the median and 99th percentile of latencies."""
    begin, cpu = time.perf_counter(), time.process_time()
    waiting: deque[tuple[float, Any]] = deque()
    latencies = []
    ended: dict[Any, float] = {}
    for procedure, attributes in requests:
        if len(waiting) == IN_FLIGHT:
            sent, future = waiting.popleft()
            future.result()
            latencies.append(ended.get(future, time.perf_counter()) - sent)
        future = db.submit(procedure, **attributes)
        future.add_done_callback(lambda one: ended.__setitem__(one, time.perf_counter()))
        waiting.append((time.perf_counter(), future))
    for sent, future in waiting:
        future.result()
        latencies.append(ended.get(future, time.perf_counter()) - sent)
    return [
        time.perf_counter() - begin,
        time.process_time() - cpu,
        *np.percentile(latencies, [50, 99]).tolist(),
    ]


def _open(
    made: Database, tables: Mapping[str, Any], ranges: Mapping[str, Sequence[Any]] | None
) -> list[OpenDatabase]:
    opened = [made.open(partitions=2, ranges=ranges, speculate=mode) for mode in MODES]
    for db in opened:
        for name, rows in tables.items():
            db.load(name, rows)
    return opened


def _compare(
    opened: Sequence[OpenDatabase], title: str, count: int, runs: int, measure: Any
) -> Iterator[str]:
    best = [[float("inf")] * 4 for _ in opened]
    for number in range(runs + 1):  # the first run compiles
        for place, db in enumerate(opened):
            found = measure(db)
            if number and found[0] < best[place][0]:
                best[place] = found
    tables = [
        {name: db.table(name).sort_by([(key, "ascending") for key in spec.key])
         for name, spec in db._database.tables.items()}
        for db in opened
    ]  # fmt: skip
    if any(one != tables[0] for one in tables):
        raise AssertionError("speculation changes the tables")
    for mode, db, one in zip(MODES, opened, best, strict=True):
        state = db._state
        assert isinstance(state, PartitionedTables)
        spec = state.speculation
        counts = f"{spec.beside:>10,}{spec.transactions:>9,}{spec.rolled_back:>9,}" if spec else " " * 28
        latency = f"{one[2] * 1e3:>9.1f}{one[3] * 1e3:>9.1f}" if len(one) > 2 else " " * 18
        yield (
            f"{title:30}{mode or 'off':8}{count / one[0]:>12,.0f}{best[0][0] / one[0]:>9.2f}x"
            f"{one[1] / count * 1e6:>10.1f}{latency}{state.forwarded / max(state.transactions, 1):>9.0%}"
            f"{len(state.gathered.names):>9}{counts}"
        )
        db.close()


def report(runs: int, count: int, requests: int, parts: Sequence[str]) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.speculation --runs {runs} --events {count} --requests {requests} "
        f"--parts {' '.join(parts)}"
    )
    yield (
        f"{'':30}{'mode':8}{'per second':>12}{'off = 1':>10}{'CPU, us':>10}{'p50, ms':>9}{'p99, ms':>9}"
        f"{'at coord.':>9}{'gathered':>9}{'beside':>10}{'later':>9}{'undone':>9}"
    )
    made = bank()
    rows = {"accounts": {"id": np.arange(ACCOUNTS), "balance": np.zeros(ACCOUNTS, np.int64)}}
    ranges = {"accounts": [ACCOUNTS // 2]}
    for work in (0, 1_000) if "run" in parts else ():
        for share in (0.02, 0.1):
            title = f"run, work {work}, {share:.0%} over both"
            measure = partial(measure_run, procedure="transfer", rows=events(count, share, work))
            yield from _compare(_open(made, rows, ranges), title, count, runs, measure)
    for work in (0, 1_000) if "submit" in parts else ():
        title = f"submit, work {work}, 10% over both"
        queued = transfers(requests, 0.1, work)
        yield from _compare(
            _open(made, rows, ranges), title, requests, runs, partial(measure_submit, requests=queued)
        )
    for name, scale in SCALES.items() if "oltp" in parts else ():
        benchmark = BENCHMARKS[name]
        drawn = benchmark.requests(scale, requests, 1)
        own = None
        if name == "tpcc":
            own = {table: [3] for table, spec in benchmark.database.tables.items() if spec.partition_by}
        tables = benchmark.tables(scale)
        procedure = benchmark.procedure.name
        if name == "small_bank":
            pairs = [(procedure, one) for one in drawn.to_pylist()]
            yield from _compare(
                _open(benchmark.database, tables, own), "submit, SmallBank", requests, runs,
                partial(measure_submit, requests=pairs),
            )  # fmt: skip
        yield from _compare(
            _open(benchmark.database, tables, own), f"run, {name}", requests, runs,
            partial(measure_run, procedure=procedure, rows=pa.table(drawn)),
        )  # fmt: skip
    yield ""
    yield "at coord.: the share of transactions that ran at the coordinator; gathered: the tables whose"
    yield "rows were there at the end. beside, later: transactions that ran beside others of their call, and"
    yield "beside earlier requests."
    yield "run with occ is the same as off, so the difference of these two is that of a busy machine."
    yield ""
    yield f"load {os.getloadavg()[0]:.1f} at the end"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=5, help="fastest of so many")
    parser.add_argument("--events", type=int, default=10_000, help="transactions of `run`")
    parser.add_argument("--requests", type=int, default=3_000, help="requests of `submit` and the benchmarks")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="the parts to measure")
    parser.add_argument("--out", type=Path, default=RESULT, help="the file of the result")
    options = parser.parse_args()
    print_and_save(report(options.runs, options.events, options.requests, options.parts), options.out)


if __name__ == "__main__":
    main()
