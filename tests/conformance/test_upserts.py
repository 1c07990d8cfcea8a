"""Every table that takes upserts, against a dict: replays, older updates, deletes, types and wrong tables."""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import InvalidUsageError
from penstock.upserts import DELETED, Columns, UpsertTarget, newest_changes, open_target
from tests.servers.servers import MariaDb, PostgreSql, Redis, Server

STORES = ("sqlite", "duckdb", "postgresql", "mysql", "redis", "delta", "iceberg")
SCHEMA = pa.schema({"k": pa.string(), "n": pa.int32(), "t": pa.int64(), "v": pa.float64()})


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], str]]:
    started: dict[str, Server] = {}
    kinds: dict[str, type[Server]] = {"postgresql": PostgreSql, "mysql": MariaDb, "redis": Redis}

    def address(store: str) -> str:
        if store not in started:
            started[store] = kinds[store]()
        return str(started[store].uri)  # type: ignore[attr-defined]

    yield address
    for server in started.values():
        server.remove()


class Store:
    """A store, and how its rows are read without Penstock."""

    def __init__(self, kind: str, place: Path, servers: Callable[[str], str]) -> None:
        self.kind, self.place = kind, place
        files = {"sqlite": f"sqlite:///{place / 's.db'}", "duckdb": f"duckdb:///{place / 'd.db'}"}
        files |= {"delta": f"delta:///{place / 'delta'}"}
        self.catalog = {"uri": f"sqlite:///{place / 'catalog.db'}", "warehouse": f"file://{place}/iceberg"}
        files["iceberg"] = f"iceberg://tests?{urlencode(self.catalog)}"
        self.to = files.get(kind) or servers(kind)
        self.table = None if kind == "delta" else f"t{abs(hash(place)) % 10**9}"
        if kind == "iceberg":
            self.table = f"shop.{self.table}"

    def open(
        self, schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("k", "n"), **options: Any
    ) -> UpsertTarget:
        return open_target(self.to, self.table, Columns(schema, key, "t", **options))

    def rows(self, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
        return getattr(self, f"_{self.kind}")(schema)

    def _sqlite(self, schema: pa.Schema) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.place / "s.db")) as connection:
            rows = connection.execute(f"SELECT {', '.join(schema.names)} FROM {self.table}").fetchall()
        return [dict(zip(schema.names, row, strict=True)) for row in rows]

    def _duckdb(self, schema: pa.Schema) -> list[dict[str, Any]]:
        import duckdb

        with duckdb.connect(str(self.place / "d.db")) as connection:
            rows = connection.sql(f"SELECT {', '.join(schema.names)} FROM {self.table}").fetchall()
        return [dict(zip(schema.names, row, strict=True)) for row in rows]

    def _postgresql(self, schema: pa.Schema) -> list[dict[str, Any]]:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.to) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(schema.names)} FROM {self.table}")
            return cursor.fetch_arrow_table().to_pylist()

    def _mysql(self, schema: pa.Schema) -> list[dict[str, Any]]:
        import pymysql

        port = int(self.to.rpartition(":")[2].partition("/")[0])
        with pymysql.connect(
            host="127.0.0.1", port=port, user="u", password="p4ss", database="shop"
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT {', '.join(schema.names)} FROM {self.table}")
            return [dict(zip(schema.names, row, strict=True)) for row in cursor.fetchall()]

    def _redis(self, schema: pa.Schema) -> list[dict[str, Any]]:
        from redis import Redis as Client

        with Client.from_url(self.to, decode_responses=True) as client:
            hashes = [client.hgetall(name) for name in client.scan_iter(f"{self.table}:*")]
        text = pa.Table.from_pylist(
            [{name: one.get(name) for name in schema.names} for one in hashes if "_deleted" not in one],
            pa.schema([(name, pa.string()) for name in schema.names]),
        )
        return text.cast(schema).to_pylist()

    def _delta(self, schema: pa.Schema) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        rows = pa.table(DeltaTable(str(self.place / "delta")).to_pyarrow_table()).to_pylist()
        return [{name: row[name] for name in schema.names} for row in rows if not row.get(DELETED)]

    def _iceberg(self, schema: pa.Schema) -> list[dict[str, Any]]:
        table = self.iceberg_table()
        rows = table.scan().to_arrow().to_pylist()
        table.catalog.close()
        return [{name: row[name] for name in schema.names} for row in rows if not row.get(DELETED)]

    def iceberg_table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("tests", **self.catalog).load_table(str(self.table))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, servers: Callable[[str], str]) -> Store:
    return Store(request.param, tmp_path, servers)


def _by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, float | None]]:
    return {(row["k"], row["n"]): (row["t"], row["v"]) for row in rows}


@pytest.mark.parametrize("deletes", [False, True])
def test_a_table_holds_the_newest_row_of_each_key(store: Store, deletes: bool) -> None:
    rng = random.Random(7)
    target = store.open(deletes=deletes)
    target.prepare(create=True)
    rows: dict[tuple[str, int], tuple[int, float | None]] = {}
    times: dict[tuple[str, int], int] = {}
    batches: list[pa.Table] = []
    for _ in range(8):
        changes = []
        for _ in range(rng.randrange(1, 40)):
            key = (rng.choice("abç'\""), rng.randrange(3))
            time, value = rng.randrange(40), rng.choice([None, rng.random()])
            changes.append({"k": key[0], "n": key[1], "t": time, "v": value, DELETED: rng.random() < 0.3})
        table = pa.Table.from_pylist(changes, SCHEMA.append(pa.field(DELETED, pa.bool_())))
        batch = newest_changes(table if deletes else table.select(SCHEMA.names), ("k", "n"), "t")
        batches.append(batch)
        for batch in (batches[-1], rng.choice(batches) if deletes else batches[-1]):
            target.write(batch)
            for row in batch.to_pylist():
                key = (row["k"], row["n"])
                if times.get(key, -1) > row["t"]:
                    continue
                times[key] = row["t"]
                if row.get(DELETED):
                    rows.pop(key, None)
                else:
                    rows[key] = (row["t"], row["v"])
        assert _by_key(store.rows()) == rows
        if rng.random() < 0.4:
            target.close()
    target.close()


def test_all_types_and_nulls_come_back(store: Store) -> None:
    zone = dt.UTC
    row = {
        "k": 2**40,
        "t": dt.datetime(2026, 1, 31, 12, 0, 0, 123456, zone),
        "flag": True,
        "i8": -128,
        "i16": -(2**15),
        "i32": -(2**31),
        "i64": -(2**63),
        "f32": 1.5,
        "f64": 0.1,
        "text": "ß\n'\"",
        "bytes": b"\x00\xff",
        "day": dt.date(1969, 12, 31),
        "local": dt.datetime(2026, 1, 31, 12, 0, 0, 5),
        "price": Decimal("-12345678901234.5678"),
    }
    kinds = [
        pa.int64(), pa.timestamp("us", "UTC"), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
        pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"),
        pa.decimal128(20, 4),
    ]  # fmt: skip
    schema = pa.schema(list(zip(row, kinds, strict=True)))
    if store.kind == "redis":
        schema = pa.schema([field for field in schema if field.name not in ("bytes", "flag")])
    empty = dict.fromkeys(schema.names) | {"k": 7, "t": row["t"]}
    target = store.open(schema, ("k",))
    target.prepare(create=True)
    rows = [{name: row[name] for name in schema.names}, empty]
    target.write(pa.Table.from_pylist(rows, schema))
    target.close()
    found = sorted(store.rows(schema), key=lambda one: -one["k"])
    assert [_plain(one, schema) for one in found] == rows


def _plain(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return values as Arrow has them, where a store has no such type."""
    found = {}
    for name, value in row.items():
        kind = schema.field(name).type
        if value is not None:
            if isinstance(value, str) and pa.types.is_decimal(kind):
                value = Decimal(value)  # noqa: PLW2901
            elif isinstance(value, str) and pa.types.is_date(kind):
                value = dt.date.fromisoformat(value)  # noqa: PLW2901
            elif isinstance(value, str) and pa.types.is_timestamp(kind):
                value = dt.datetime.fromisoformat(value)  # noqa: PLW2901
            if pa.types.is_timestamp(kind) and kind.tz is not None and value.tzinfo is None:
                value = value.replace(tzinfo=dt.UTC)  # noqa: PLW2901
            if pa.types.is_boolean(kind):
                value = bool(value)  # noqa: PLW2901
        found[name] = value
    return found


def test_a_table_that_does_not_fit_is_refused(store: Store) -> None:
    if store.kind == "redis":
        return
    with pytest.raises(InvalidUsageError, match="there is no such table"):
        store.open().prepare(create=False)
    made = store.open()
    made.prepare(create=True)
    made.close()
    more = SCHEMA.append(pa.field("more", pa.int64()))
    with pytest.raises(InvalidUsageError, match=r"lacks columns of the rows.*missing=more"):
        store.open(more).prepare(create=True)
    if store.kind != "delta":
        with pytest.raises(InvalidUsageError, match="cannot take upserts by this key") as caught:
            store.open(key=("k",)).prepare(create=False)
        assert "p4ss" not in str(caught.value)
    with pytest.raises(InvalidUsageError, match=r"cannot hold|neither a number"):
        store.open(pa.schema({"k": pa.string(), "t": pa.list_(pa.int64())}), ("k",))


def test_postgresql_refuses_a_column_whose_bytes_would_mean_another_number(
    tmp_path: Path, servers: Callable[[str], str]
) -> None:
    store = Store("postgresql", tmp_path, servers)
    made = store.open()
    made.prepare(create=True)
    made.close()
    whole = SCHEMA.set(3, pa.field("v", pa.int64()))
    with pytest.raises(InvalidUsageError, match=r"another type: .*column=v type=double precision rows=int64"):
        store.open(whole).prepare(create=False)


@pytest.mark.parametrize("to", ["postgres", "http://host/x", "postgresql://host:x/y", ""])
def test_an_address_that_is_not_valid_is_refused(to: str) -> None:
    with pytest.raises(InvalidUsageError, match="address of the store is not valid"):
        open_target(to, "t", Columns(SCHEMA, ("k",), "t"))


def test_the_newest_change_of_each_key_is_the_last_of_its_greatest_time() -> None:
    table = pa.table({"k": ["a", "b", "a", "a"], "t": [3, 1, 2, 3], "v": [1, 2, 3, 4]})
    assert sorted(newest_changes(table, ("k",), "t").to_pylist(), key=lambda row: row["k"]) == [
        {"k": "a", "t": 3, "v": 4},
        {"k": "b", "t": 1, "v": 2},
    ]
    with pytest.raises(InvalidUsageError, match="without a key or time: column=t rows=1"):
        newest_changes(pa.table({"k": ["a"], "t": pa.array([None], pa.int64())}), ("k",), "t")
    with pytest.raises(InvalidUsageError, match="without a key or time: column=t rows=1"):
        newest_changes(pa.table({"k": ["a", "a"], "t": [1.0, float("nan")]}), ("k",), "t")


def test_keys_of_several_columns_stay_apart_whatever_they_contain(store: Store) -> None:
    schema = pa.schema({"k": pa.string(), "n": pa.string(), "t": pa.int64()})
    pairs = [("a:b", "c"), ("a", "b:c"), ("a\\", ":c"), ("a\\:", "c"), ("", "a:b:c"), ("a:b:c", "")]
    rows = [{"k": one, "n": other, "t": 1} for one, other in pairs]
    target = store.open(schema)
    target.prepare(create=True)
    target.write(newest_changes(pa.Table.from_pylist(rows, schema), ("k", "n"), "t"))
    target.close()
    assert sorted((row["k"], row["n"]) for row in store.rows(schema)) == sorted(pairs)


def test_a_batch_is_one_snapshot_of_iceberg_and_reads_only_files_that_may_hold_its_keys(
    tmp_path: Path, servers: Callable[[str], str]
) -> None:
    store = Store("iceberg", tmp_path, servers)
    target = store.open()
    target.prepare(create=True)

    def batch(keys: str, time: int) -> pa.Table:
        return pa.Table.from_pylist([{"k": key, "n": 1, "t": time, "v": 0.5} for key in keys], SCHEMA)

    for keys, time in (("ab", 1), ("yz", 1), ("ax", 2)):
        target.write(batch(keys, time))
    target.write(batch("ay", 1))  # all keys have newer rows or the same: y is written again
    target.write(batch("a", 1))  # nothing is
    target.close()
    table = store.iceberg_table()
    summaries = [one.summary for one in table.snapshots()]
    assert [one.operation.value for one in summaries] == ["append", "overwrite", "overwrite", "overwrite"]
    assert [int(one["deleted-data-files"] or 0) for one in summaries] == [0, 0, 1, 1]
    assert table.schema().identifier_field_names() == {"k", "n"}
    table.catalog.close()
    times = {key[0]: row[0] for key, row in _by_key(store.rows()).items()}
    assert times == {"a": 2, "b": 1, "x": 2, "y": 1, "z": 1}


def test_a_commit_to_iceberg_that_another_one_overtakes_fails_and_is_written_again(
    tmp_path: Path, servers: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("iceberg", tmp_path, servers)
    first, second = store.open(), store.open()
    first.prepare(create=True)
    row = {"k": "a", "n": 1, "v": 0.0}
    first.write(pa.Table.from_pylist([row | {"t": 1}], SCHEMA))
    from penstock.upserts import iceberg

    original = iceberg._range_of
    overtaken: list[bool] = []

    def overtake(*arguments: Any) -> Any:
        if not overtaken:
            overtaken.append(True)
            second.write(pa.Table.from_pylist([row | {"t": 3}, row | {"k": "b", "t": 3}], SCHEMA))
        return original(*arguments)

    monkeypatch.setattr(iceberg, "_range_of", overtake)
    batch = pa.Table.from_pylist([row | {"t": 2}, row | {"k": "b", "t": 4}], SCHEMA)
    with pytest.raises(Exception, match=r"(?i)conflict|missing|commit|added") as caught:
        first.write(batch)
    assert first.is_transient(caught.value)
    first.close()
    first.write(batch)
    first.close()
    second.close()
    assert _by_key(store.rows()) == {("a", 1): (3, 0.0), ("b", 1): (4, 0.0)}


def test_columns_of_iceberg_that_the_rows_lack_keep_their_values(
    tmp_path: Path, servers: Callable[[str], str]
) -> None:
    store = Store("iceberg", tmp_path, servers)
    wide = SCHEMA.append(pa.field("note", pa.string()))
    target = store.open(wide)
    target.prepare(create=True)
    rows = [{"k": key, "n": 1, "t": 1, "v": 0.0, "note": key} for key in "ab"]
    target.write(pa.Table.from_pylist(rows, wide))
    narrow = store.open()
    narrow.prepare(create=False)
    narrow.write(pa.Table.from_pylist([{"k": key, "n": 1, "t": 2, "v": 1.0} for key in "bc"], SCHEMA))
    found = {row["k"]: (row["t"], row["note"]) for row in store.rows(wide)}
    assert found == {"a": (1, "a"), "b": (2, "b"), "c": (2, None)}
    target.close()
    narrow.close()


@pytest.mark.parametrize("kind", [one for one in STORES if one != "redis"])
def test_a_table_whose_column_does_not_hold_the_values_is_refused(
    kind: str, tmp_path: Path, servers: Callable[[str], str]
) -> None:
    store = Store(kind, tmp_path, servers)
    made = store.open(deletes=True)
    made.prepare(create=True)
    made.close()
    cases: list[tuple[str, pa.DataType, bool]] = [
        ("v", pa.string(), False),
        ("n", pa.int64(), kind == "sqlite"),  # whose columns hold any integer
        ("v", pa.float32(), kind != "postgresql"),  # which takes bytes as they are
    ]
    for name, type_, is_good in cases:
        other = store.open(SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, type_)), deletes=True)
        if is_good:
            other.prepare(create=False)
        else:
            said = f"another type: .*column={name} .*rows={type_}"
            with pytest.raises(InvalidUsageError, match=said):
                other.prepare(create=False)
        other.close()


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()], ids=str
)
def test_deletions_are_forgotten_at_an_age(store: Store, kind: pa.DataType) -> None:
    is_number = pa.types.is_integer(kind)
    schema = SCHEMA.set(2, pa.field("t", kind))
    day = dt.timedelta(days=1)
    if store.kind == "redis":
        with pytest.raises(InvalidUsageError, match="Redis forgets deletions by its clock"):
            store.open(deletes=True, forget_after=10)
        return
    target = store.open(schema, deletes=True, forget_after=10 if is_number else 10 * day)
    target.prepare(create=True)

    def write(*rows: tuple[str, int, bool]) -> None:
        listed = [{"k": key, "n": 1, "t": time, "v": 0.5, DELETED: flag} for key, time, flag in rows]
        table = pa.Table.from_pylist(listed, SCHEMA.append(pa.field(DELETED, pa.bool_())))
        if not is_number:
            micros = pa.timestamp("us", None if pa.types.is_date(kind) else kind.tz)
            times = pc.multiply(table["t"], 86_400_000_000).cast(micros).cast(kind)
            table = table.set_column(2, "t", times)
        target.write(table)

    def times() -> dict[str, Any]:
        return {row["k"]: row["t"] for row in store.rows(schema)}

    write(("a", 1, True), ("b", 5, True), ("c", 1, False))
    write(("a", 0, False), ("b", 4, False))
    assert set(times()) == {"c"}
    write(("d", 13, False))  # a is forgotten, b is not; and c, which is as old as a, is no deletion
    write(("a", 0, False), ("b", 4, False))
    assert set(times()) == {"a", "c", "d"}
    target.close()


def test_a_deleted_hash_of_redis_expires_unless_a_newer_row_comes(
    tmp_path: Path, servers: Callable[[str], str]
) -> None:
    from redis import Redis as Client

    store = Store("redis", tmp_path, servers)
    schema = SCHEMA.set(2, pa.field("t", pa.timestamp("us")))
    target = store.open(schema, deletes=True, forget_after=dt.timedelta(hours=1))
    target.prepare(create=True)

    def write(time: int, deleted: bool) -> None:
        row = {"k": "a", "n": 1, "t": dt.datetime(2026, 1, time), "v": 0.0, DELETED: deleted}
        target.write(pa.Table.from_pylist([row], schema.append(pa.field(DELETED, pa.bool_()))))

    with Client.from_url(store.to) as client:
        write(1, True)
        assert 3_500 < client.ttl(f"{store.table}:a:1") <= 3_600
        write(2, False)
        assert client.ttl(f"{store.table}:a:1") == -1
    target.close()


@pytest.mark.parametrize(("kind", "age"), [(pa.int64(), dt.timedelta(days=1)), (pa.timestamp("us"), 5)])
def test_an_age_that_does_not_fit_the_time_is_refused(kind: pa.DataType, age: Any) -> None:
    with pytest.raises(InvalidUsageError, match="age of deletions to forget does not fit"):
        Columns(pa.schema({"k": pa.int64(), "t": kind}), ("k",), "t", True, age)
