"""Upserts to each store, compared with hand-written code: ``python -m benchmarks.upserts``.

A batch has five updates of each key. `penstock` is the writer of `penstock.upsert`, with conflation.
`executemany` sends an upsert with a guard by time for each update, as programs for foreachBatch do; `merge`
copies all updates into a temporary table and merges the newest of each key in SQL. All write the same table,
which already has every key. No Spark: the batch is an Arrow table, as foreachBatch has it.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine
from penstock.upserts import Columns, newest_changes, open_target
from tests.servers import MariaDb, PostgreSql, Redis

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "price": pa.float64(), "name": pa.string()})
UPSERT = (
    "INSERT INTO quotes VALUES ({marks}) ON CONFLICT (k) DO UPDATE SET t = excluded.t, "
    "price = excluded.price, name = excluded.name WHERE quotes.t <= excluded.t"
)
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


def sqlite_by_hand(path: Path) -> Callable[[pa.Table], None]:
    def write(rows: pa.Table) -> None:
        with sqlite3.connect(path) as connection:
            values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            connection.executemany(UPSERT.format(marks="?, ?, ?, ?"), values)

    return write


def postgres_by_hand(uri: str, *, merge: bool) -> Callable[[pa.Table], None]:
    import psycopg

    def write(rows: pa.Table) -> None:
        values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        with psycopg.connect(uri) as connection, connection.cursor() as cursor:
            if not merge:
                cursor.executemany(UPSERT.format(marks="%s, %s, %s, %s"), values)
                return
            cursor.execute("CREATE TEMPORARY TABLE stage (LIKE quotes) ON COMMIT DROP")
            with cursor.copy("COPY stage FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
            cursor.execute(
                "MERGE INTO quotes USING (SELECT DISTINCT ON (k) * FROM stage ORDER BY k, t DESC) AS new "
                "ON quotes.k = new.k WHEN MATCHED AND quotes.t <= new.t THEN UPDATE SET t = new.t, "
                "price = new.price, name = new.name "
                "WHEN NOT MATCHED THEN INSERT VALUES (new.k, new.t, new.price, new.name)"
            )

    return write


def measure(write: Callable[[pa.Table], None], keys: int, rounds: int) -> float:
    """Return the updates a second, the median of the rounds; the first batch makes the rows."""
    seconds = []
    for number in range(rounds + 1):
        rows = batch(keys, number)
        begin = time.perf_counter()
        write(rows)
        seconds.append(time.perf_counter() - begin)
    return keys * UPDATES_A_KEY / statistics.median(seconds[1:])


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
    print(f"{'store':<12}{'writer':<14}{'updates/s':>12}{'penstock = 1':>14}")
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
                ours = measure(
                    penstock_writer(to, {"delta": None, "iceberg": "shop.quotes"}.get(store, "quotes")),
                    settings.keys,
                    settings.rounds,
                )
                print(f"{store:<12}{'penstock':<14}{ours:>12,.0f}{1:>14}")
                peers: dict[str, Callable[[pa.Table], None]] = {}
                if store == "postgresql":
                    peers = {
                        name: postgres_by_hand(to, merge=name == "merge") for name in ("executemany", "merge")
                    }
                elif store == "sqlite":
                    peers = {"executemany": sqlite_by_hand(place / "s.db")}
                for name, write in peers.items():
                    theirs = measure(write, settings.keys, settings.rounds)
                    print(f"{store:<12}{name:<14}{theirs:>12,.0f}{theirs / ours:>14.3f}")
        finally:
            for server in servers.values():
                server.remove()


if __name__ == "__main__":
    main()
