"""The table on local disk at its edges: nothing, strange keys, huge values, wrong columns, its database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InternalError, InvalidUsageError, UnavailableError
from penstock.state_store.tables.rocksdb_table import RocksdbTable, process_memory
from penstock.state_store.tables.table import Table

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.float64())])
New = Callable[..., Table]


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[New]:
    made: list[Table] = []

    def make(schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("k",)) -> Table:
        made.append(RocksdbTable(schema, key, scratch=tmp_path))
        return made[-1]

    yield make
    for table in made:
        table.close()


def _rows(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _numbered(numbers: range, text: str = "") -> pa.RecordBatch:
    return _rows(*[(i, f"{text}{i}", i / 2) for i in numbers])


def _content(table: Table) -> dict[Any, Any]:
    return {row["k"]: row["t"] for batch in table.rows() for row in batch.to_pylist()}


def test_rows_come_in_batches_of_bounded_bytes(tmp_path: Path) -> None:
    table = RocksdbTable(SCHEMA, ("k",), scratch=tmp_path, batch_bytes=3 << 20)
    table.put(_rows(*[(i, "x" * 10_000, 0.0) for i in range(1000)]))
    batches = list(table.rows())
    assert sum(batch.num_rows for batch in batches) == 1000
    assert 2 < len(batches) < 6
    table.close()


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
    tables: New, columns: list[Any], key: tuple[str, ...], fact: str
) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        tables(pa.schema(columns), key)


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
    assert process_memory() is process_memory()
    tables = [RocksdbTable(SCHEMA, ("k",), scratch=tmp_path) for _ in range(2)]
    assert process_memory().memtables.enabled()
    for table in tables:
        table.close()


def test_a_cache_that_rocksdb_does_not_use_is_an_error(tmp_path: Path) -> None:
    shared = replace(process_memory(), cache_bytes=12345)
    with pytest.raises(InternalError, match="block cache"):
        RocksdbTable(SCHEMA, ("k",), scratch=tmp_path, shared=shared)


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
