"""Upserts as users write them by hand for foreachBatch, for `benchmarks.upserts.upserts`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

Write: TypeAlias = Callable[[pa.Table], None]

UPSERT = (
    "INSERT INTO quotes VALUES ({marks}) ON CONFLICT (k) DO UPDATE SET t = excluded.t, "
    "price = excluded.price, name = excluded.name WHERE quotes.t <= excluded.t"
)
MYSQL = (
    "INSERT INTO quotes VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE "
    "price = IF(t <= VALUES(t), VALUES(price), price), name = IF(t <= VALUES(t), VALUES(name), name), "
    "t = GREATEST(t, VALUES(t))"
)
MERGE = (
    "MERGE INTO quotes USING (SELECT DISTINCT ON (k) * FROM stage ORDER BY k, t DESC) AS new "
    "ON quotes.k = new.k WHEN MATCHED AND quotes.t <= new.t THEN UPDATE SET t = new.t, price = new.price, "
    "name = new.name WHEN NOT MATCHED THEN INSERT VALUES (new.k, new.t, new.price, new.name)"
)


def writers(store: str, to: str) -> dict[str, Write]:
    """Return the writers for a store: an upsert of each update, or a merge of the newest of each key."""
    match store:
        case "postgresql":
            return {"executemany": postgres(to, merge=False), "merge": postgres(to, merge=True)}
        case "mysql":
            return {"executemany": mysql(to)}
        case "redis":
            return {"pipeline": redis(to)}
        case "sqlite":
            return {"executemany": sqlite(to)}
        case "duckdb":
            return {"merge": duckdb(to)}
        case "delta":
            return {"merge": delta(to)}
    return {"upsert": iceberg(to)}


def newest_time(store: str, to: str) -> int | None:
    """Return the newest time in a table of a SQL database; None for other stores."""
    connect: dict[str, Callable[[], Any]] = {
        "postgresql": lambda: import_module("psycopg").connect(to),
        "mysql": lambda: import_module("pymysql").connect(**_mysql_address(to)),
        "sqlite": lambda: sqlite3.connect(to.removeprefix("sqlite:///")),
        "duckdb": lambda: import_module("duckdb").connect(to.removeprefix("duckdb:///")),
    }
    if store not in connect:
        return None
    with closing(connect[store]()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SELECT max(t) FROM quotes")
        return int(cursor.fetchone()[0])


def _mysql_address(to: str) -> dict[str, Any]:
    parts = urlsplit(to)
    address = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    return address | {"password": parts.password or "", "database": parts.path.strip("/")}


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _newest(rows: pa.Table) -> Any:
    return rows.to_pandas().sort_values("t").drop_duplicates("k", keep="last")


def sqlite(to: str) -> Write:
    """Write each update, with a guard by time."""

    def write(rows: pa.Table) -> None:
        with closing(sqlite3.connect(to.removeprefix("sqlite:///"))) as connection, connection:
            connection.executemany(UPSERT.format(marks="?, ?, ?, ?"), _rows(rows))

    return write


def postgres(to: str, *, merge: bool) -> Write:
    """Write each update, with a guard by time, or copy all and merge the newest of each key."""
    import psycopg

    def write(rows: pa.Table) -> None:
        with psycopg.connect(to) as connection, connection.cursor() as cursor:
            if not merge:
                cursor.executemany(UPSERT.format(marks="%s, %s, %s, %s"), _rows(rows))
                return
            cursor.execute("CREATE TEMPORARY TABLE stage (LIKE quotes) ON COMMIT DROP")
            with cursor.copy("COPY stage FROM STDIN") as copy:
                for row in _rows(rows):
                    copy.write_row(row)
            cursor.execute(MERGE)

    return write


def mysql(to: str) -> Write:
    """Write each update, with a guard by time; pymysql sends many in one statement."""
    import pymysql

    def write(rows: pa.Table) -> None:
        with pymysql.connect(**_mysql_address(to)) as connection:
            connection.cursor().executemany(MYSQL, _rows(rows))
            connection.commit()

    return write


def redis(to: str) -> Write:
    """Set the fields of each update's hash in one pipeline; the last update wins, whatever its time."""
    from redis import Redis

    def write(rows: pa.Table) -> None:
        with Redis.from_url(to) as client, client.pipeline(transaction=False) as pipeline:
            for k, t, price, name in _rows(rows):
                pipeline.hset(f"quotes:{k}", mapping={"k": k, "t": t, "price": price, "name": name})
            pipeline.execute()

    return write


def duckdb(to: str) -> Write:
    """Upsert the newest of each key, chosen in SQL."""
    import duckdb as database

    newest = "SELECT * FROM batch QUALIFY row_number() OVER (PARTITION BY k ORDER BY t DESC) = 1"

    def write(rows: pa.Table) -> None:
        with database.connect(to.removeprefix("duckdb:///")) as connection:
            connection.register("batch", rows)
            connection.execute(UPSERT.replace("VALUES ({marks})", newest))

    return write


def delta(to: str) -> Write:
    """Merge the newest of each key, chosen by pandas."""
    from deltalake import DeltaTable

    def write(rows: pa.Table) -> None:
        source = pa.Table.from_pandas(_newest(rows), rows.schema, preserve_index=False)
        merged = DeltaTable(to.removeprefix("delta://")).merge(
            source, "target.k = source.k", source_alias="source", target_alias="target"
        )
        merged.when_matched_update_all("target.t <= source.t").when_not_matched_insert_all().execute()

    return write


def iceberg(to: str) -> Write:
    """Upsert the newest of each key, chosen by pandas, whatever the time of the table's rows."""
    from pyiceberg.catalog import load_catalog

    parts = urlsplit(to)

    def write(rows: pa.Table) -> None:
        table = load_catalog(parts.netloc, **dict(parse_qsl(parts.query))).load_table("shop.quotes")
        table.upsert(pa.Table.from_pandas(_newest(rows), table.schema().as_arrow(), preserve_index=False))

    return write
