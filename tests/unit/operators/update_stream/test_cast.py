"""A failed cast raises one kind of error, whatever Arrow raises."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.operators.update_stream.cast import cast, cast_to_schema


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1 << 40], pa.int32()),  # a value that does not fit
        ([1], pa.list_(pa.int64())),  # types between which Arrow has no cast
        ([[1]], pa.int64()),
    ],
)
def test_what_cannot_be_cast_is_invalid(values: list[object], kind: pa.DataType) -> None:
    array = pa.array(values)
    with pytest.raises(pa.ArrowInvalid):
        cast(array, kind)
    with pytest.raises(pa.ArrowInvalid):
        cast(pa.table({"a": array}), pa.schema({"a": kind}))
    with pytest.raises(pa.ArrowInvalid):
        cast_to_schema(pa.record_batch({"a": array}), pa.schema({"a": kind}))


def test_what_can_be_is() -> None:
    assert cast(pa.array([1, None]), pa.int8()).equals(pa.array([1, None], pa.int8()))
