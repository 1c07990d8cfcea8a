"""Rows keep their place, their values and their nulls; memory that nobody needs comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.state_store.tables.row_store import RowStore
from tests.samples.columns import KINDS


def _at(*locations: int) -> Any:
    return np.array(locations, np.int64)


def _batch(schema: pa.Schema, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
def test_a_column_of_nothing_but_nulls_comes_back(kind: pa.DataType) -> None:
    schema = pa.schema([("time", pa.int64()), ("c", kind)])
    store = RowStore(schema)
    store.resize(4)
    rows = _batch(schema, (1, None), (2, None))
    store.put(_at(3, 1), rows)
    assert store.take(_at(3, 1)).equals(rows)
    assert store.take(_at()).equals(rows.slice(0, 0))


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
def test_nothing_can_be_taken_before_anything_was_put(kind: pa.DataType) -> None:
    store = RowStore(pa.schema([("time", pa.int64()), ("c", kind)]))
    assert store.take(_at()).num_rows == 0
    store.compact(_at())
    store.resize(8)
    assert store.take(_at()).schema == store.schema


def test_a_null_is_overwritten_by_a_value_and_a_value_by_a_null() -> None:
    schema = pa.schema([("n", pa.int32()), ("b", pa.bool_()), ("s", pa.string())])
    store = RowStore(schema)
    store.resize(2)
    first, second = _batch(schema, (1, True, "x")), _batch(schema, (None, None, None))
    for rows in (first, second, first):
        store.put(_at(1), rows)
        assert store.take(_at(1)).equals(rows)


def test_garbage_of_varying_width_is_let_go() -> None:
    schema = pa.schema([("time", pa.int64()), ("text", pa.string())])
    store = RowStore(schema)
    store.resize(100)
    for i in range(300):
        store.put(_at(*range(100)), _batch(schema, *[(i, "x" * 100)] * 100))
        store.compact(_at(*range(100)))
    assert store.size_bytes < 5000 * 120
    assert store.take(_at(5)).to_pylist() == [{"time": 299, "text": "x" * 100}]


def test_compacting_moves_rows_and_keeps_each_at_its_location() -> None:
    schema = pa.schema([("time", pa.int64()), ("text", pa.string())])
    store = RowStore(schema, min_garbage_bytes=1)
    store.resize(20)
    for i in range(4):
        store.put(
            _at(*range(20)), _batch(schema, *[(i, f"{i}{'.' * i} at {location}") for location in range(20)])
        )
    left = _at(19, 3, 7, 8, 0)
    store.compact(left)
    assert store.size_bytes < 20 * (8 + 8 + 8) + 5 * len("3... at 19") + 1
    assert store.take(_at(3, 19, 0)).column("text").to_pylist() == ["3... at 3", "3... at 19", "3... at 0"]
    store.put(_at(1), _batch(schema, (4, "new")))
    assert store.take(_at(8, 1, 7)).column("text").to_pylist() == ["3... at 8", "new", "3... at 7"]


def test_what_is_overwritten_in_place_leaves_no_garbage() -> None:
    schema = pa.schema([("text", pa.string())])
    store = RowStore(schema)
    store.resize(1000)
    for i in range(50):
        store.put(_at(*range(999, -1, -1)), _batch(schema, *[(f"{i:4}" * 4,)] * 1000))
        assert not store.may_compact
    assert store.size_bytes < 1000 * (8 + 8) + 2 * 16_000 + 1


def test_a_row_of_no_columns_can_be_stored() -> None:
    store = RowStore(pa.schema([]))
    store.resize(3)
    store.put(_at(0, 2), store.take(_at(0, 2)))
    assert store.take(_at(0, 2, 1)).num_rows == 3


@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8(), 2), pa.string_view()]
)
def test_a_type_that_spark_does_not_have_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidUsageError, match="cannot hold"):
        RowStore(pa.schema([("c", kind)]))


@pytest.mark.long
def test_more_text_than_a_column_holds_is_refused() -> None:
    store = RowStore(pa.schema([("c", pa.binary())]))
    store.resize(1)
    store.put(_at(0), pa.RecordBatch.from_arrays([pa.array([bytes(1 << 20)])], ["c"]))
    with pytest.raises(InvalidUsageError, match="too large"):
        store.take(np.zeros(2048, np.int64))
    assert store.take(np.zeros(3, np.int64)).nbytes > 3 << 20


def test_garbage_is_bounded_in_bytes_where_rows_are_large() -> None:
    schema = pa.schema([("time", pa.int64()), ("text", pa.string())])
    store = RowStore(schema)
    store.resize(1)
    for i in range(100):
        store.put(_at(0), _batch(schema, (i, "x" * 1_000_000)))
        store.take(_at(0))
        store.compact(_at(0))
    assert store.size_bytes < 8_000_000
    assert store.take(_at(0)).column("time").to_pylist() == [99]
    store.compact(_at())
    assert store.size_bytes < 8_000_000


def test_what_is_taken_does_not_change_later() -> None:
    schema = pa.schema([("time", pa.int64()), ("text", pa.string())])
    store = RowStore(schema)
    store.resize(1)
    store.put(_at(0), _batch(schema, (1, "one")))
    taken = store.take(_at(0))
    store.put(_at(0), _batch(schema, (2, "two")))
    assert taken.to_pylist() == [{"time": 1, "text": "one"}]


def test_a_buffer_longer_than_its_values_is_read_up_to_them() -> None:
    values = pa.py_buffer(np.arange(3, dtype=np.int32).tobytes() + b"xyz")
    column = pa.Array.from_buffers(pa.int32(), 3, [None, values])
    store = RowStore(pa.schema([("c", pa.int32())]))
    store.resize(3)
    store.put(_at(0, 1, 2), pa.RecordBatch.from_arrays([column], ["c"]))
    assert store.take(_at(2, 0)).column("c").to_pylist() == [2, 0]
