"""The row store equals a dictionary from locations to rows, for every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state_store.tables import row_store
from penstock.state_store.tables.row_store import RowStore
from tests.oracles.naive import NaiveHeap
from tests.samples.columns import KINDS, Draw, arrays


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
    store = RowStore(schema, min_garbage_bytes=data.draw(st.integers(1, 30)))
    model, capacity = dict[int, dict[str, Any]](), 0
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
    copy, then = store.copy(), dict(model)
    again = _rows(data.draw, schema, len(model))
    store.put(np.array(sorted(model), np.int64), again)
    _check(store, dict(zip(sorted(model), again.to_pylist(), strict=True)), sorted(model))
    _check(copy, then, sorted(then))


@given(st.data(), _schemas(), st.lists(st.booleans(), max_size=8))
def test_rows_that_are_not_found_are_nulls(data: st.DataObject, schema: pa.Schema, found: list[bool]) -> None:
    store = RowStore(schema)
    rows = _rows(data.draw, schema, len(found))
    store.resize(len(found))
    store.put(np.arange(len(found)), rows)
    taken = store.take(np.where(found, np.arange(len(found)), -1), np.array(found, np.bool_))
    taken.validate(full=True)
    nothing = dict.fromkeys(schema.names)
    assert taken.to_pylist() == [
        row if here else nothing for row, here in zip(rows.to_pylist(), found, strict=True)
    ]


_RANGES = st.lists(st.binary(max_size=20), max_size=8)


@given(_RANGES, _RANGES)
def test_heaps_equal_their_reference_and_reuse_the_room_of_what_they_overwrite(
    first: list[bytes], second: list[bytes]
) -> None:
    heap, model = NaiveHeap(), dict[int, bytes]()
    starts, sizes, data, end = np.zeros(8, np.int64), np.zeros(8, np.int64), np.zeros(400, np.uint8), 0
    for values, offset in ((first, 0), (second, 3)):
        locations = [(i * 3 + offset) % 8 for i in range(len(values))]
        bounds = np.cumsum([0, *map(len, values)])
        source = np.frombuffer(b"".join(values), np.uint8)
        at = np.array(locations, np.int64)
        assert row_store._missing_room(sizes, at, bounds) == heap.missing(locations, values)
        end, _ = row_store._write(starts, sizes, data, end, at, bounds, source)
        heap.write(locations, values)
        model |= dict(zip(locations, values, strict=True))
        assert end == heap.end
        assert data[:end].tobytes() == bytes(heap.content)
    order = np.array(sorted(model), np.int64)
    bounds = np.cumsum([0, *sizes[order].tolist()])
    out = np.empty(int(bounds[-1]), np.uint8)
    row_store._gather(starts, sizes, data, order, bounds, out)
    assert out.tobytes() == b"".join(model[location] for location in order.tolist())
