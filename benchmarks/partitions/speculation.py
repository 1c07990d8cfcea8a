"""Speculation between threads: throughput and latency with and without it.

    python -m benchmarks.partitions.speculation [--runs 3] [--events 5000] [--requests 1000] [--parts run]

Two partitions, without a log. The modes alternate within each run, and the fastest run counts, since other
processes share the two cores. Its CPU time is shown. ``run`` has calls of 5,000 transfers. ``submit`` has
single requests, of which 500 at a time have no answer yet: deposits, and a share of transfers over both
partitions. Transactions do some steps of arithmetic. ``python`` has such requests, too, but its transfers run
in Python and pause, as if they called a service. ``oltp`` has SmallBank, TPC-C and SEATS with their own mix.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from benchmarks.oltp.catalog import BENCHMARKS
from benchmarks.oltp.seats.data import SeatsScale
from benchmarks.partitions import partitions
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.procedures.programs.oltp.small_bank import SmallBankScale
from penstock.procedures.programs.oltp.tpcc_data import TpccScale

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "speculation.txt"
OLTP_RESULT = RESULT.with_name("speculation_oltp.txt")
PYTHON_RESULT = RESULT.with_name("speculation_python.txt")
MODES: tuple[bool | str, ...] = (False, "rows", "tables", "occ")
ACCOUNTS = 100_000
SIZE = 5_000
IN_FLIGHT = 500
PARTS = ("run", "submit", "python", "oltp")
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

    @made.procedure(event="source bigint, target bigint, pause_ms double", plain=True)
    def ask(e: Any, accounts: Any) -> None:
        accounts[e.source].balance -= 1
        wait_for_service(e.pause_ms)
        accounts[e.target].balance += 1

    return made


def wait_for_service(pause_ms: float) -> None:
    """Do what a procedure in Python does while it waits for a service."""
    time.sleep(pause_ms / 1e3)  # the service itself; nothing is waited for


def transfers(count: int, share: float, work: int, pause_ms: float | None = None) -> list[Request]:
    """Return requests: so large a share are transfers over both partitions, the others are deposits.

    With `pause_ms`, the transfers run in Python and pause.
    """
    draw = np.random.default_rng(1)
    half = ACCOUNTS // 2
    ids, others = draw.integers(0, half, (2, count)).tolist()
    upper, several = draw.random(count) < 0.5, draw.random(count) < share
    more: dict[str, Any] = {"work": work} if pause_ms is None else {"pause_ms": pause_ms}
    procedure = "transfer" if pause_ms is None else "ask"
    return [
        (procedure, {"source": one, "target": other + half, **more})
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
    made: Database,
    tables: Mapping[str, Any],
    ranges: Mapping[str, Sequence[Any]] | None,
    modes: Sequence[bool | str] = MODES,
) -> list[OpenDatabase]:
    opened = [made.open(partitions=2, ranges=ranges, speculate=mode) for mode in modes]
    for db in opened:
        for name, rows in tables.items():
            db.load(name, rows)
    return opened


def _line(cells: Sequence[str]) -> str:
    widths = (36, 8, 11, 10, 9, 10, 10, 11, 9, 9, 9, 9, 9)
    return "".join(
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=False))
    ).rstrip()


def _compare(
    opened: Sequence[OpenDatabase],
    title: str,
    count: int,
    runs: int,
    measure: Any,
    modes: Sequence[bool | str] = MODES,
) -> Iterator[str]:
    best = [[float("inf")] * 4 for _ in opened]
    for number in range(runs + 2):  # the first runs compile and measure what pays
        for place, db in enumerate(opened):
            found = measure(db)
            if number > 1 and found[0] < best[place][0]:
                best[place] = found
    tables = [
        {name: db.table(name).sort_by([(key, "ascending") for key in spec.key])
         for name, spec in db._database.tables.items()}
        for db in opened
    ]  # fmt: skip
    if any(one != tables[0] for one in tables):
        raise AssertionError("speculation changes the tables")
    for mode, db, one in zip(modes, opened, best, strict=True):
        state = db._state
        assert isinstance(state, PartitionedTables)
        spec = state.speculation
        numbers = (spec.beside, spec.merged, spec.transactions, spec.rolled_back) if spec else ()
        latency = [f"{value * 1e3:.1f}" for value in one[2:]] or ["", ""]
        yield _line([
            title, str(mode or "off"), f"{count / one[0]:,.0f}", f"{best[0][0] / one[0]:.2f}x",
            f"{one[1] / count * 1e6:.1f}", *latency, f"{state.forwarded / max(state.transactions, 1):.0%}",
            f"{len(state.gathered.names)}", *(f"{number:,}" for number in numbers),
        ])  # fmt: skip
        db.close()


def report(runs: int, count: int, requests: int, parts: Sequence[str]) -> Iterator[str]:
    """Return the lines of the result."""
    yield from report_head(
        f"python -m benchmarks.partitions.speculation --runs {runs} --events {count} --requests {requests} "
        f"--parts {' '.join(parts)}"
    )
    heads = ("", "mode", "per second", "off = 1", "CPU, us", "p50, ms", "p99, ms", "at coord.", "gathered")
    yield _line([*heads, "beside", "merged", "later", "undone"])
    made = bank()
    rows = {"accounts": {"id": np.arange(ACCOUNTS), "balance": np.zeros(ACCOUNTS, np.int64)}}
    ranges = {"accounts": [ACCOUNTS // 2]}
    for work in (0, 1_000) if "run" in parts else ():
        for share in (0.02, 0.1):
            title = f"run, work {work:,}, {share:.0%} over both"
            measure = partial(measure_run, procedure="transfer", rows=events(count, share, work))
            yield from _compare(_open(made, rows, ranges), title, count, runs, measure)
    for work in (0, 1_000) if "submit" in parts else ():
        for share in (0.0, 0.02, 0.1, 0.5):
            title = f"submit, work {work:,}, {share:.0%} over both"
            measure = partial(measure_submit, requests=transfers(requests, share, work))
            yield from _compare(_open(made, rows, ranges), title, requests, runs, measure)
    for pause_ms in (0.0, 1.0, 5.0, 20.0) if "python" in parts else ():
        title = f"python, 2% pause for {pause_ms:g} ms"
        measure = partial(measure_submit, requests=transfers(requests, 0.02, 10_000, pause_ms))
        modes = (False, "rows")
        yield from _compare(_open(made, rows, ranges, modes), title, requests, runs, measure, modes)
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
    yield "at coord.: the share of transactions that ran at the coordinator; gathered: the tables whose rows"
    yield "were there at the end. beside: transactions that ran beside others of their call; merged: requests"
    yield "that ran in one call with earlier ones; later: requests that ran beside earlier ones; in all runs."
    yield "run with occ is the same as off, so the difference of these two shows how much runs vary."
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partitions.speculation", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=3, help="fastest of so many")
    parser.add_argument("--events", type=int, default=5_000, help="transactions of `run`")
    parser.add_argument("--requests", type=int, default=1_000, help="requests of the other parts")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="the parts to measure")
    parser.add_argument("--out", type=Path, help="the file of the result")
    options = parser.parse_args()
    alone = options.parts[0] if len(options.parts) == 1 else None
    out = options.out or {"oltp": OLTP_RESULT, "python": PYTHON_RESULT}.get(alone, RESULT)
    print_and_save(report(options.runs, options.events, options.requests, options.parts), out)


if __name__ == "__main__":
    main()
