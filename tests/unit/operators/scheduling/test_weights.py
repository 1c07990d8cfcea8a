"""Weights of keys: what is taken, and what is refused."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.weights import ONE, KeyWeights, find_shares, shares_of
from penstock.operators.update_stream.stream import UpdateStream
from tests.samples.streams import STREAM


def _stream(key: pa.DataType, weight: pa.DataType = pa.float64()) -> UpdateStream:  # noqa: B008
    schema = pa.schema([("key", key), ("time", pa.int64()), ("weight", weight)])
    return UpdateStream(schema, ("key",), "time", weight="weight")


def _keys(stream: UpdateStream, values: list[Any]) -> Any:
    return stream.codec.encode([pa.array(values, stream.schema.field("key").type)])


def test_shares_are_roots_and_have_bounds() -> None:
    assert (shares_of(np.array([1.0, 4.0, 0.25, 1e-300, 1e300])) / ONE).tolist() == [1, 2, 0.5, 2**-20, 2**20]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["GOOG", "GM"]),
        (pa.int16(), [3, -4]),
        (pa.float64(), [0.5, math.nan]),
        (pa.date32(), [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)]),
        (pa.decimal128(9, 2), [Decimal("1.50"), Decimal(2)]),
        (pa.bool_(), [True, False]),
    ],
    ids=str,
)
def test_a_mapping_finds_keys_of_every_kind(kind: pa.DataType, values: list[Any]) -> None:
    stream = _stream(kind)
    weights = pickle.loads(pickle.dumps(KeyWeights(stream, {values[0]: 9})))
    assert weights.shares(_keys(stream, [values[1], values[0], values[1]])).tolist() == [ONE, 3 * ONE, ONE]


def test_values_of_the_key_may_be_text() -> None:
    stream = _stream(pa.int64())
    assert KeyWeights(stream, {"7": 4}).shares(_keys(stream, [7, 8])).tolist() == [2 * ONE, ONE]


def test_an_empty_mapping_has_weight_one_for_all() -> None:
    stream = _stream(pa.int64())
    assert KeyWeights(stream, {}).shares(_keys(stream, [1, 2])).tolist() == [ONE, ONE]


@pytest.mark.parametrize("weight", [0, -1.0, math.nan, math.inf, None, "9", True])
def test_a_mapping_with_a_weight_that_is_none_is_refused(weight: Any) -> None:
    with pytest.raises(InvalidUsageError, match="positive, finite"):
        KeyWeights(STREAM, {1: weight})


def test_a_mapping_with_keys_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="does not fit the key column"):
        KeyWeights(STREAM, {"GOOG": 1.0})
    with pytest.raises(InvalidUsageError, match="null"):
        KeyWeights(STREAM, {None: 1.0})
    with pytest.raises(InvalidUsageError, match="two keys of the weights are equal"):
        KeyWeights(_stream(pa.float64()), {math.nan: 1.0, float("nan"): 2.0})
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("time", pa.int64())])
    with pytest.raises(InvalidUsageError, match="one column"):
        KeyWeights(UpdateStream(schema, ("a", "b"), "time"), {1: 2.0})


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(25, 4)], ids=str)
def test_a_column_of_numbers_may_be_the_weight(kind: pa.DataType) -> None:
    stream = _stream(pa.int64(), kind)
    columns = [pa.array([1, 2]), pa.array([1, 1]), pa.array([1, 9]).cast(kind)]
    rows = pa.RecordBatch.from_arrays(columns, schema=stream.schema)
    found = find_shares(stream, None, rows, stream.keys(rows))
    assert found is not None
    assert found.tolist() == [ONE, 3 * ONE]
    assert not stream.find_unusable(rows).any()


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.timestamp("us")], ids=str)
def test_a_column_of_something_else_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidUsageError, match="cannot be the weight"):
        _stream(pa.int64(), kind)


def test_a_weight_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="no such column"):
        UpdateStream(STREAM.schema, ("key",), "time", weight="wait")


def test_rows_without_a_weight_are_refused_or_dropped_and_counted() -> None:
    stream = _stream(pa.int64())
    weights = pa.array([1.0, None, 0.0, -2.0, math.nan, math.inf, 3.0])
    rows = pa.RecordBatch.from_arrays([pa.array(range(7)), pa.array([1] * 7), weights], schema=stream.schema)
    kept, dropped = stream.drop_unusable(rows, "drop")
    assert (kept.column("key").to_pylist(), dropped) == ([0, 6], 5)
    with pytest.raises(InvalidUsageError, match="weight that is not positive and finite") as caught:
        stream.drop_unusable(rows, "error")
    assert caught.value.context["columns"] == ["weight"]
