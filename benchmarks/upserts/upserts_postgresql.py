"""Designs of upserts into PostgreSQL.

Usage: ``python -m benchmarks.upserts.upserts_postgresql [--keys N] [--rounds N]``.

The batches are those of `benchmarks.upserts.upserts`, five updates of each key. Every design has its own
table, which already has every key, and the designs take turns. "CPU s" is the processor time that this
process and the server spend on a batch; other work on the machine hardly changes it. "by time" and "by CPU"
compare with `executemany`. The others keep the newest row of each key and copy them into a temporary table.
Then:

=================  ======================================================================================
on conflict        an insert with ON CONFLICT; the table's pages are full; `penstock.upsert` does this
no analyze         the same, without ANALYZE of the temporary table
merge              MERGE instead
update and insert  an update that joins the temporary table, and an insert of the other rows
half-full pages    as the first, with a table whose pages are filled to half
kept connection    the same; the connection stays open between batches
executemany        sends every update with a guard by time, as programs for foreachBatch do; full pages
=================  ======================================================================================
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from benchmarks.harness import machine
from benchmarks.upserts import upserts_by_hand
from benchmarks.upserts.upserts import SCHEMA, UPDATES_A_KEY, batch, processor_s
from penstock.upserts import Columns, newest_changes
from penstock.upserts.sql.postgres import PostgresTable
from penstock.upserts.sql.table import STAGE, SqlTable
from tests.servers.servers import PostgreSql

COLUMNS = Columns(SCHEMA, ("k",), "t")
SETS = f"t = {STAGE}.t, price = {STAGE}.price, name = {STAGE}.name"


class NotAnalyzed(PostgresTable):
    def _merge(self) -> None:
        SqlTable._merge(self)


class Merged(PostgresTable):
    def _insert(self, table: str, names: Sequence[str], where: str) -> None:
        self._execute(
            f"MERGE INTO {table} AS kept USING {STAGE} ON kept.k = {STAGE}.k "
            f"WHEN MATCHED AND kept.t <= {STAGE}.t THEN UPDATE SET {SETS} WHEN NOT MATCHED THEN "
            f"INSERT VALUES ({STAGE}.k, {STAGE}.t, {STAGE}.price, {STAGE}.name)"
        )


class Updated(PostgresTable):
    def _insert(self, table: str, names: Sequence[str], where: str) -> None:
        self._execute(
            f"UPDATE {table} AS kept SET {SETS} FROM {STAGE} WHERE kept.k = {STAGE}.k AND kept.t <= {STAGE}.t"
        )
        self._execute(
            f"INSERT INTO {table} SELECT * FROM {STAGE} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table} AS kept WHERE kept.k = {STAGE}.k)"
        )


def writer(
    kind: type[PostgresTable], uri: str, table: str, *, filled: int = 100, keep: bool = False
) -> Callable[[pa.Table], None]:
    target = kind(uri, "benchmark", table, COLUMNS)
    target.prepare(create=True)
    target._execute(f"ALTER TABLE {table} SET (fillfactor = {filled})")
    target.connection.commit()
    target.close()

    def write(rows: pa.Table) -> None:
        target.write(newest_changes(rows, ("k",), "t"))
        if not keep:
            target.close()

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    settings = parser.parse_args()
    print(f"{machine()}\n{settings.keys} keys, {UPDATES_A_KEY} updates of each a batch; "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    server = PostgreSql()
    try:
        writer(PostgresTable, server.uri, "quotes")
        designs = {
            "on conflict": writer(PostgresTable, server.uri, "plain"),
            "no analyze": writer(NotAnalyzed, server.uri, "unanalyzed"),
            "merge": writer(Merged, server.uri, "merged"),
            "update and insert": writer(Updated, server.uri, "updated"),
            "half-full pages": writer(PostgresTable, server.uri, "half", filled=50),
            "kept connection": writer(PostgresTable, server.uri, "kept", filled=50, keep=True),
            "executemany": upserts_by_hand.postgres(server.uri, merge=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in designs}
        spent: dict[str, list[float]] = {name: [] for name in designs}
        for number in range(settings.rounds + 1):
            rows = batch(settings.keys, number)
            for name, write in designs.items():
                begin, before = time.perf_counter(), processor_s(server.process.pid)
                write(rows)
                seconds[name].append(time.perf_counter() - begin)
                spent[name].append(processor_s(server.process.pid) - before)
    finally:
        server.remove()
    by_hand, by_hand_cpu = (statistics.median(one["executemany"][1:]) for one in (seconds, spent))
    print(f"{'design':<20}{'updates/s':>10}{'by time':>9}{'CPU s':>8}{'by CPU':>8}   s of each later batch")
    for name, found in seconds.items():
        took, cpu = statistics.median(found[1:]), statistics.median(spent[name][1:])
        each = " ".join(f"{one:.2f}" for one in found[1:])
        updates = settings.keys * UPDATES_A_KEY / took
        print(
            f"{name:<20}{updates:>10,.0f}{by_hand / took:>9.2f}{cpu:>8.3f}{by_hand_cpu / cpu:>8.2f}   {each}"
        )


if __name__ == "__main__":
    main()
