"""OLTP benchmarks in one process: rates, latencies to durable, SQLite, DuckDB and PostgreSQL.

    python -m benchmarks.oltp [--benchmarks tpcc small_bank] [--requests N] [--rates 10000 100000]

A rate is of one thread of Penstock: in memory, and with a log. Each call has `CALL_SIZE` requests; four calls
may wait for the log. The peers commit each request, or a hundred of them together, and every commit is
durable. Latencies are from the moment at which a request is due to the durable answer; the requests that are
due go out each millisecond. ``--quick`` takes small tables and few requests, and compares results and tables
of all peers with Penstock's.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, report_foot, scratch
from benchmarks.oltp.duckdb import DuckDb
from benchmarks.oltp.measure import directory_bytes, latencies, opened, rates
from benchmarks.oltp.peers import Peer, Rows, plain_rows
from benchmarks.oltp.postgres import POSTGRES, Postgres
from benchmarks.oltp.sqlite import SQLITE, Sqlite
from penstock.procedures.programs.oltp import OLTP, OltpBenchmark

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "oltp.txt"
CALL_SIZE = 5_000
INTERVALS = ("1ms", "10ms")
PEER_SHARE = 0.02
"""The peers run this share of the requests."""


def _rates(benchmark: OltpBenchmark, scale: Any, events: pa.RecordBatch) -> Iterator[tuple[str, float, str]]:
    """Yield for each way to run: its name, its transactions per second, and more about it."""
    with opened(benchmark, scale, None) as db:
        wall, cpu = rates(db, benchmark, events, CALL_SIZE)
        yield "in memory", wall, f"{cpu:,.0f} per second of CPU time"
    for interval in INTERVALS:
        with scratch("oltp") as place, opened(benchmark, scale, place, interval) as db:
            before = directory_bytes(place)
            wall, cpu = rates(db, benchmark, events, CALL_SIZE, callers=4)
            logged = (directory_bytes(place) - before) / events.num_rows
            yield f"log, {interval}", wall, f"{cpu:,.0f} per second of CPU time, {logged:.0f} bytes each"


def _peers(
    benchmark: OltpBenchmark, scale: Any, place: str, names: Sequence[str]
) -> Iterator[tuple[str, Peer]]:
    if benchmark.name in SQLITE and "sqlite" in names:
        yield "SQLite", Sqlite(benchmark, scale, place)
    if benchmark.name in SQLITE and "duckdb" in names:
        yield "DuckDB", DuckDb(benchmark, scale, place)
    if benchmark.name in POSTGRES and "postgres" in names:
        yield "PostgreSQL", Postgres(benchmark, scale)


def _peer_rates(
    benchmark: OltpBenchmark, scale: Any, events: pa.RecordBatch, names: Sequence[str]
) -> Iterator[tuple[str, float, str]]:
    import time

    rows = plain_rows(events)
    with scratch("oltp") as place:
        for name, peer in _peers(benchmark, scale, place, names):
            with closing(peer):
                half = len(rows) // 2
                for group, some in ((1, rows[:half]), (100, rows[half:])):
                    begin = time.perf_counter()
                    peer.run(some, group)
                    yield f"{name}, {group} a commit", len(some) / (time.perf_counter() - begin), ""


def check_peers(
    benchmark: OltpBenchmark, scale: Any, events: pa.RecordBatch, names: Sequence[str]
) -> list[str]:
    """Return the peers, after a check that their results and tables are Penstock's.

    Raises
    ------
    AssertionError
        If they are not.
    """
    with opened(benchmark, scale, None) as db:
        first = benchmark.requests(scale, 100, 0)
        results = plain_rows(db.run(benchmark.procedure.name, pa.table(events)))
        tables = {
            name: _sorted(plain_rows(db.table(name)), spec.names, spec.key)
            for name, spec in benchmark.database.tables.items()
        }
    checked = []
    with scratch("oltp") as place:
        for name, peer in _peers(benchmark, scale, place, names):
            with closing(peer):
                peer.run(plain_rows(first), 10)
                if peer.run(plain_rows(events), 10) != results:
                    raise AssertionError(f"{benchmark.name}: other results in {name}")
                for table, found in peer.tables().items():
                    if found != tables[table]:
                        raise AssertionError(f"{benchmark.name}: other rows in {table} in {name}")
            checked.append(name)
    return checked


def _sorted(rows: Rows, names: Sequence[str], key: Sequence[str]) -> Rows:
    places = [names.index(column) for column in key]
    return sorted(rows, key=lambda row: [row[place] for place in places])


def _latencies(
    benchmark: OltpBenchmark, scale: Any, rate: int, interval: str, seconds: float
) -> Sequence[float]:
    events = benchmark.requests(scale, max(int(rate * seconds), 10), 2)
    with scratch("oltp") as place, opened(benchmark, scale, place, interval) as db:
        gc.collect()
        gc.freeze()  # as `penstock serve` does
        taken, answered = latencies(db, benchmark, events, rate)
        gc.unfreeze()
    return [*np.percentile(taken, [50, 95, 99]), answered]


def report(
    names: Sequence[str],
    requests: int,
    request_rates: Sequence[int],
    seconds: float,
    peers: Sequence[str],
    *,
    quick: bool = False,
) -> Iterator[str]:
    """Return the lines of the result."""
    yield (
        f"python -m benchmarks.oltp --benchmarks {' '.join(names)} --requests {requests} "
        f"--rates {' '.join(map(str, request_rates))} --seconds {seconds:g}"
    )
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.1f} at the begin"
    for name in names:
        benchmark = OLTP[name]
        scale = benchmark.small if quick else benchmark.full
        yield ""
        yield f"{name}: {benchmark.summary}; {scale}"
        if quick:
            checked = check_peers(benchmark, scale, benchmark.requests(scale, requests, 1), peers)
            yield f"equal results and tables: {', '.join(['Penstock', *checked])}"
        yield f"{'way to run':<28}{'transactions/s':>16}{'in memory = 1':>15}"
        events = benchmark.requests(scale, requests, 1)
        memory = 0.0
        few = events.slice(0, max(int(requests * PEER_SHARE), 20))
        for rows in (_rates(benchmark, scale, events), _peer_rates(benchmark, scale, few, peers)):
            for way, rate, more in rows:
                memory = memory or rate
                yield f"{way:<28}{rate:>16,.0f}{rate / memory:>15.4f}  {more}".rstrip()
        columns = ("p50, ms", "p95, ms", "p99, ms", "answers/s")
        yield f"{'log':<10}{'requests/s':>12}" + "".join(f"{column:>12}" for column in columns)
        for rate_text, interval in ((rate, interval) for rate in request_rates for interval in INTERVALS):
            row = _latencies(benchmark, scale, rate_text, interval, seconds)
            yield f"{interval:<10}{rate_text:>12,}" + "".join(f"{value:>12,.1f}" for value in row)
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--benchmarks", nargs="+", default=list(OLTP), choices=OLTP)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rates", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--peers", nargs="*", default=["sqlite", "duckdb", "postgres"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    make = partial(report, options.benchmarks, quick=options.quick, peers=options.peers)
    if options.quick:
        lines = make(min(options.requests, 500), [500], 0.1)
    else:
        lines = make(options.requests, options.rates, options.seconds)
    saved = []
    for line in lines:
        print(line, flush=True)
        saved.append(line)
    if not options.quick:
        (options.out or RESULT).write_text("\n".join(saved) + "\n")


if __name__ == "__main__":
    main()
