"""The table on local disk at its edges: nothing, strange keys, huge values, wrong columns, its database."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InternalError, InvalidUsageError, UnavailableError
from penstock.state_store.tables import rocksdb_table
from penstock.state_store.tables.rocksdb_table import RocksdbTable
from penstock.state_store.tables.table import Table

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.float64())])
New = Callable[..., Table]


@pytest.fixture
def new(tmp_path: Path) -> Iterator[New]:
    tables: list[Table] = []

    def make(schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("k",)) -> Table:
        tables.append(RocksdbTable(schema, key, scratch=tmp_path))
        return tables[-1]

    yield make
    for table in tables:
        table.close()


def _rows(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _numbered(numbers: range, text: str = "") -> pa.RecordBatch:
    return _rows(*[(i, f"{text}{i}", i / 2) for i in numbers])


def _content(table: Table) -> dict[Any, Any]:
    return {row["k"]: row["t"] for batch in table.rows() for row in batch.to_pylist()}


def test_empty_batches_change_nothing(new: New) -> None:
    table, nothing = new(), _rows()
    table.put(nothing)
    rows, found = table.get(nothing)
    assert (rows.num_rows, len(found), len(table)) == (0, 0, 0)
    assert [batch.num_rows for batch in table.rows()] == [0]


def test_a_key_that_is_not_there_has_null_values(new: New) -> None:
    table = new()
    rows, found = table.get(_numbered(range(2)))
    assert rows.to_pylist() == [{"t": None, "n": None}] * 2
    table.put(_rows((7, "x", 1.0), (1, None, None)))
    rows, found = table.get(_rows((0, "", 0.0), (7, "", 0.0), (1, "", 0.0), (7, "", 0.0)).select(["k"]))
    assert found.tolist() == [False, True, True, True]
    assert rows.column("t").to_pylist() == [None, "x", None, "x"]
    assert rows.schema.names == ["t", "n"]


def test_zeros_are_one_key_and_so_are_nans(new: New) -> None:
    schema = pa.schema([("k", pa.float64()), ("t", pa.string())])
    table = new(schema)
    table.put(_rows((0.0, "a"), (-0.0, "b"), (math.nan, "c"), (-math.nan, "d"), (1.0, "e"), schema=schema))
    assert len(table) == 3
    rows, found = table.get(_rows((-0.0, ""), (math.nan, ""), (0.0, ""), schema=schema))
    assert found.all()
    assert rows.column("t").to_pylist() == ["b", "d", "b"]
    keys = sorted(map(str, (row["k"] for batch in table.rows() for row in batch.to_pylist())))
    assert keys == ["0.0", "1.0", "nan"]


def test_huge_values_come_back_and_make_batches_of_their_own(new: New) -> None:
    table = new()
    texts = {i: chr(97 + i) * (9 << 20) for i in range(5)}
    table.put(_rows(*[(i, text, 0.0) for i, text in texts.items()]))
    table.put(_rows((9, "small", 0.0)))
    batches = list(table.rows())
    assert all(batch.nbytes < 150 << 20 for batch in batches)
    assert {r["k"]: r["t"] for batch in batches for r in batch.to_pylist()} == texts | {9: "small"}


def test_rows_come_in_batches_of_bounded_bytes(tmp_path: Path) -> None:
    table = RocksdbTable(SCHEMA, ("k",), scratch=tmp_path, batch_bytes=3 << 20)
    table.put(_rows(*[(i, "x" * 10_000, 0.0) for i in range(1000)]))
    batches = list(table.rows())
    assert sum(batch.num_rows for batch in batches) == 1000
    assert 2 < len(batches) < 6
    table.close()


def test_rows_are_those_of_the_call_while_the_table_changes_and_is_closed(new: New) -> None:
    table = new()
    table.put(_numbered(range(20_000), "old "))
    batches, taken = table.rows(), list[pa.RecordBatch]()
    thread = threading.Thread(target=lambda: taken.extend(batches))
    thread.start()
    for i in range(5):
        table.put(_numbered(range(0, 20_000, i + 2), f"new and longer {i} "))
    table.close()
    thread.join()
    found = {row["k"]: row["t"] for batch in taken for row in batch.to_pylist()}
    assert found == {i: f"old {i}" for i in range(20_000)}


def test_the_key_comes_first_whatever_the_order_of_what_is_put(new: New) -> None:
    table = new(SCHEMA, ("n",))
    table.put(_numbered(range(3)).select(["n", "t", "k"]))
    (batch,) = table.rows()
    assert batch.schema.names == ["n", "k", "t"]
    assert sorted(batch["k"].to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        (_rows((None, "x", 0.0)), "key column has nulls"),
        (_rows((1, "x", 0.0)).select(["k", "t"]), "column is missing"),
        (_rows((1, "x", 0.0)).select(["t", "n"]), "column is missing"),
        (
            _rows((1, "x", 0), schema=pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.int64())])),
            "has another type",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(
    new: New, rows: pa.RecordBatch, fact: str
) -> None:
    table = new()
    with pytest.raises(InvalidUsageError, match=fact):
        table.put(rows)
    assert (len(table), [batch.num_rows for batch in table.rows()]) == (0, [0])


@pytest.mark.parametrize(
    ("columns", "key", "fact"),
    [
        ([("k", pa.int64())], (), "needs a key"),
        ([("k", pa.int64())], ("k", "k"), "key column repeats"),
        ([("k", pa.int64()), ("k", pa.int64())], ("k",), "column repeats"),
        ([("k", pa.int64())], ("x",), "no such key"),
        ([("k", pa.list_(pa.int64()))], ("k",), "cannot be a key"),
        ([("k", pa.int64()), ("v", pa.dictionary(pa.int8(), pa.string()))], ("k",), "cannot hold"),
    ],
)
def test_schemas_that_no_table_can_have_are_refused(
    new: New, columns: list[Any], key: tuple[str, ...], fact: str
) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        new(pa.schema(columns), key)


def _database(table: RocksdbTable) -> Path:
    assert table._database is not None
    return table._database.path


def test_rocksdb_has_the_options_it_was_given(tmp_path: Path) -> None:
    table = RocksdbTable(SCHEMA, ("k",), scratch=tmp_path)
    (path,) = sorted(_database(table).glob("db/OPTIONS-*"))[-1:]
    options = path.read_text()
    for option in (
        "filter_policy=bloomfilter",
        "no_block_cache=false",
        "write_buffer_size=33554432",
        "compression=kLZ4Compression",
    ):
        assert option in options, option
    table.put(_numbered(range(10_000)))
    assert not any(file.stat().st_size for file in _database(table).glob("db/*.log"))
    assert table._database is not None
    table._database._db.flush()
    properties = table._database._db.property_value("rocksdb.aggregated-table-properties")
    (size,) = re.findall(r"filter block size=(\d+)", properties)
    assert 10_000 < int(size) < 20_000
    table.close()


def test_all_tables_of_a_process_share_one_cache(tmp_path: Path) -> None:
    assert rocksdb_table._shared() is rocksdb_table._shared()
    tables = [RocksdbTable(SCHEMA, ("k",), scratch=tmp_path) for _ in range(2)]
    assert rocksdb_table._shared().memtables.enabled()
    for table in tables:
        table.close()


def test_a_cache_that_rocksdb_does_not_use_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_table, "_CACHE_BYTES", 12345)
    with pytest.raises(InternalError, match="block cache"):
        RocksdbTable(SCHEMA, ("k",), scratch=tmp_path)


def test_each_copy_has_a_private_directory_that_goes_with_it(tmp_path: Path) -> None:
    one, other = (RocksdbTable(SCHEMA, ("k",), scratch=tmp_path) for _ in range(2))
    assert _database(one) != _database(other)
    for table in (one, other):
        assert _database(table).parent == tmp_path
        assert _database(table).stat().st_mode & 0o777 == 0o700
    one.put(_numbered(range(10)))
    assert len(list(tmp_path.iterdir())) == 2
    one.close()
    one.close()
    other.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidUsageError, match="closed"):
        one.put(_numbered(range(1)))


def test_a_scratch_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot open"):
        RocksdbTable(SCHEMA, ("k",), scratch=tmp_path / "missing")
