"""The row store equals a dictionary from locations to rows, for every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators import row_store
from penstock.operators.row_store import RowStore
from tests.columns import KINDS, Draw, arrays


@st.composite
def _schemas(draw: st.DrawFn) -> pa.Schema:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    # As a stream's payload, it has a column of fixed width that is never null.
    return pa.schema(
        [pa.field("time", pa.int64()), *(pa.field(f"c{i}", kind) for i, kind in enumerate(kinds))]
    )


def _rows(draw: Draw, schema: pa.Schema, count: int) -> pa.RecordBatch:
    nulls = draw(st.booleans())
    columns = [arrays(draw, field.type, count, nulls=nulls) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check(store: RowStore, model: dict[int, dict[str, Any]], order: list[int]) -> None:
    taken = store.take(np.array(order, np.int64))
    taken.validate(full=True)
    assert taken.schema.equals(store.schema)
    assert taken.to_pylist() == [model[location] for location in order]


@given(
    st.data(), _schemas(), st.lists(st.sampled_from(["put", "put", "drop", "compact", "resize"]), max_size=15)
)
def test_rows_come_back_after_overwriting_compacting_and_resizing(
    data: st.DataObject, schema: pa.Schema, steps: list[str]
) -> None:
    store, model, capacity = RowStore(schema), dict[int, dict[str, Any]](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_store, "_LEAST_GARBAGE", data.draw(st.integers(0, 3)))
        patch.setattr(row_store, "_MOST_CHUNKS", data.draw(st.integers(1, 4)))
        for step in steps:
            if step == "put":
                locations = data.draw(st.lists(st.integers(0, 7), unique=True, max_size=8))
                capacity = max([capacity, *(location + 1 for location in locations)])
                store.resize(capacity)
                rows = _rows(data.draw, schema, len(locations))
                store.put(np.array(locations, np.int64), rows)
                model |= dict(zip(locations, rows.to_pylist(), strict=True))
            elif step == "drop":
                for location in data.draw(st.sets(st.sampled_from(sorted(model) or [0]))):
                    model.pop(location, None)
            elif step == "compact":
                store.compact(np.array(sorted(model), np.int64))
            else:
                capacity = max(model, default=-1) + 1 + data.draw(st.integers(0, 20))
                store.resize(capacity)
            _check(store, model, data.draw(st.permutations(sorted(model))))
    _check(store, model, sorted(model))
