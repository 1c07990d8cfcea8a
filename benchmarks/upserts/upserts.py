"""Upserts to each store, compared with hand-written code: ``python -m benchmarks.upserts.upserts``.

A batch has five updates of each key. `penstock` is the writer of `penstock.upsert`, with conflation. The
other writers are those of `benchmarks.upserts.upserts_by_hand`, as users write them for foreachBatch:
`executemany` sends an upsert with a guard by time for each update, `pipeline` one without a guard, and
`merge` and `upsert` write the newest of each key of the batch. All write the same table, which already has
every key, one after the other, and each batch is newer than all before it. No Spark: the batch is an Arrow
table, as foreachBatch has it. "CPU us" is the processor time of this process and the server for an update;
other work on the machine hardly changes it. Both comparisons are with `penstock`: 0.5 is half as fast, or
twice the time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import descendants, machine
from benchmarks.upserts import upserts_by_hand
from penstock.upserts import Columns, newest_changes, open_target
from tests.servers.servers import MariaDb, PostgreSql, Redis

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "price": pa.float64(), "name": pa.string()})
UPDATES_A_KEY = 5
STORES = ("postgresql", "mysql", "redis", "sqlite", "duckdb", "delta", "iceberg")


def batch(keys: int, number: int) -> pa.Table:
    """Return a batch of updates in random order."""
    rng = np.random.default_rng(number)
    key = rng.permutation(np.repeat(np.arange(keys), UPDATES_A_KEY))
    times = np.arange(key.size) + number * key.size
    names = pa.array([f"name of {one}" for one in range(keys)]).take(pa.array(key))
    return pa.table([key, times, rng.random(key.size), names], SCHEMA)


def penstock_writer(to: str, table: str | None) -> Callable[[pa.Table], None]:
    target = open_target(to, table, Columns(SCHEMA, ("k",), "t"))
    target.prepare(create=True)
    target.close()

    def write(rows: pa.Table) -> None:
        target.write(newest_changes(rows, ("k",), "t"))
        target.close()

    return write


def processor_s(server: int | None) -> float:
    """Return the processor time so far of this process and a server, with the processes that ended."""
    ticks = 0
    for pid in [] if server is None else descendants(server):
        # A process may have ended since.
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(
    write: Callable[[pa.Table], None], keys: int, rounds: int, server: int | None, first: int = 0
) -> tuple[float, float]:
    """Return the updates a second, and the CPU time of an update in us: medians of the rounds.

    The batch with the number `first` comes before the rounds.
    """
    seconds, spent = [], []
    for number in range(first, first + rounds + 1):
        rows = batch(keys, number)
        begin, before = time.perf_counter(), processor_s(server)
        write(rows)
        seconds.append(time.perf_counter() - begin)
        spent.append(processor_s(server) - before)
    updates = keys * UPDATES_A_KEY
    return updates / statistics.median(seconds[1:]), 1e6 * statistics.median(spent[1:]) / updates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=STORES, default=STORES)
    settings = parser.parse_args()
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{machine()}\n{settings.keys} keys, {UPDATES_A_KEY} updates of each a batch; {load}")
    print(
        f"{'store':<12}{'writer':<14}{'updates/s':>12}{'penstock = 1':>14}{'CPU us':>9}{'penstock = 1':>14}"
    )
    with TemporaryDirectory() as directory:
        programs = {"postgresql": PostgreSql, "mysql": MariaDb, "redis": Redis}
        servers: dict[str, Any] = {
            store: program() for store, program in programs.items() if store in settings.only
        }
        place = Path(directory)
        files = {
            "sqlite": f"sqlite:///{place / 's.db'}",
            "duckdb": f"duckdb:///{place / 'd.db'}",
            "delta": f"delta:///{place / 'delta'}",
            "iceberg": f"iceberg://bench?uri=sqlite:///{place / 'catalog.db'}&warehouse=file://{place}/lake",
        }
        try:
            for store, to in {**{name: server.uri for name, server in servers.items()}, **files}.items():
                if store not in settings.only:
                    continue
                pid = servers[store].process.pid if store in servers else None
                table = {"delta": None, "iceberg": "shop.quotes"}.get(store, "quotes")
                ours, our_cpu = measure(penstock_writer(to, table), settings.keys, settings.rounds, pid)
                print(f"{store:<12}{'penstock':<14}{ours:>12,.0f}{1:>14}{our_cpu:>9.2f}{1:>14}", flush=True)
                by_hand = upserts_by_hand.writers(store, to)
                for place_in_turn, (name, write) in enumerate(by_hand.items(), start=1):
                    first = place_in_turn * (settings.rounds + 1)
                    theirs, cpu = measure(write, settings.keys, settings.rounds, pid, first)
                    last = batch(settings.keys, first + settings.rounds)["t"][-1].as_py()
                    assert upserts_by_hand.newest_time(store, to) in (last, None)
                    line = f"{store:<12}{name:<14}{theirs:>12,.0f}{theirs / ours:>14.3f}"
                    print(f"{line}{cpu:>9.2f}{our_cpu / cpu:>14.3f}", flush=True)
        finally:
            for server in servers.values():
                server.remove()


if __name__ == "__main__":
    main()
