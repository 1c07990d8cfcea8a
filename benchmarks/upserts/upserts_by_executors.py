"""Upserts into PostgreSQL from Spark, by the driver or by executors.

    python -m benchmarks.upserts.upserts_by_executors [--keys N] [--rounds N]

A micro-batch of one row a key lies in two partitions, as an update queue of two buckets emits it. ``driver``
is `penstock.upsert`: the driver collects the rows and copies them into a temporary table. ``executors`` is a
prototype: each partition copies its rows into an unlogged table that all connections see, and the driver
merges that table into the target, in one transaction. ``merge alone`` is the driver's part of it. Both write
the same rows; the target has every key. Spark and PostgreSQL share this machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

from benchmarks.harness import machine, session
from benchmarks.upserts.upserts import SCHEMA
from benchmarks.upserts.upserts_by_hand import UPSERT
from penstock.upserts import Columns, newest_changes, open_target
from tests.servers.servers import PostgreSql

STAGE = "stage_of_all"


def write_batch(place: Path, keys: int, number: int) -> None:
    """Write two files of rows, each for half of the keys, in random order."""
    rng = np.random.default_rng(number)
    key = rng.permutation(keys)
    names = pa.array([f"name of {one}" for one in range(keys)]).take(pa.array(key))
    rows = pa.table([key, np.full(keys, number), rng.random(keys), names], SCHEMA)
    place.mkdir()
    for half in (0, 1):
        pq.write_table(rows.filter(pa.array(key % 2 == half)), place / f"{half}.parquet")


def by_driver(uri: str) -> Callable[[Any], None]:
    """Return the writer of `penstock.upsert`."""
    columns = Columns(SCHEMA, ("k",), "t")
    target = open_target(uri, "quotes", columns)
    target.prepare(create=True)
    target.close()

    def write(rows: Any) -> None:
        target.write(newest_changes(rows.toArrow().cast(SCHEMA), columns.key, columns.time))
        target.close()

    return write


def by_executors(uri: str, merges: list[float]) -> Callable[[Any], None]:
    """Return the prototype, which adds the seconds of each merge to `merges`."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches, SCHEMA)
        with dbapi.connect(uri) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest(STAGE, rows, mode="append")
            connection.commit()
        yield pa.record_batch({"rows": [rows.num_rows]})

    def run(*statements: str) -> None:
        with dbapi.connect(uri) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def write(rows: Any) -> None:
        run(f"CREATE UNLOGGED TABLE {STAGE} AS SELECT * FROM quotes LIMIT 0")
        rows.mapInArrow(stage, "rows long").collect()
        begin = time.perf_counter()
        merge = UPSERT.replace("VALUES ({marks})", f"SELECT * FROM {STAGE} WHERE true")
        run(f"ANALYZE {STAGE}", merge, f"DROP TABLE {STAGE}")
        merges.append(time.perf_counter() - begin)

    return write


def main() -> None:
    """Run both in turn and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--rounds", type=int, default=7)
    settings = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    print(f"{'keys':>8}  {'writer':<12}{'s a batch':>10}{'rows/s':>10}{'driver = 1':>11}   all batches (s)")
    server = PostgreSql()
    try:
        spark = session()
        for keys in settings.keys:
            with tempfile.TemporaryDirectory() as place:
                compare(spark, server.uri, Path(place), keys, settings.rounds)
            with dbapi.connect(server.uri) as connection, connection.cursor() as cursor:
                cursor.execute("DROP TABLE quotes")
                connection.commit()
    finally:
        server.remove()


def compare(spark: Any, uri: str, place: Path, keys: int, rounds: int) -> None:
    """Measure batches of so many keys."""
    merges: list[float] = []
    writers = {"driver": by_driver(uri), "executors": by_executors(uri, merges)}
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    for number in range(2 * rounds + 2):
        name = list(writers)[(number + number // 2) % 2]  # neither is always the first
        write_batch(place / str(number), keys, number)
        rows = spark.read.parquet(str(place / str(number)))
        begin = time.perf_counter()
        writers[name](rows)
        seconds[name].append(time.perf_counter() - begin)
        check(uri, keys, number)
    driver = statistics.median(seconds["driver"][1:])
    for name, found in (seconds | {"merge alone": merges}).items():
        one = statistics.median(found[1:])
        listed = " ".join(f"{each:.2f}" for each in found[1:])
        print(f"{keys:>8}  {name:<12}{one:>10.3f}{keys / one:>10,.0f}{driver / one:>11.2f}   {listed}")


def check(uri: str, keys: int, number: int) -> None:
    """Compare the table with the batch."""
    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*), min(t), max(t) FROM quotes")
        assert cursor.fetchone() == (keys, number, number)


if __name__ == "__main__":
    main()
