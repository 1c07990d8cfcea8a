"""Rows become the right bytes and come back, for every type."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state_store.tables.row_codec import RowCodec
from tests.oracles.naive import row_bytes
from tests.samples.columns import KINDS, arrays, sliced

_NUMBERS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
_TEXTS = st.none() | st.text(max_size=5)
_PLAIN: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int64(), _NUMBERS),
    "s": (pa.string(), _TEXTS),
    "n": (pa.null(), st.none()),
    "[i8": (pa.list_(pa.int64()), st.none() | st.lists(_NUMBERS, max_size=3)),
    "[s": (pa.list_(pa.string()), st.none() | st.lists(_TEXTS, max_size=3)),
    "[[s": (pa.list_(pa.list_(pa.string())), st.lists(st.none() | st.lists(_TEXTS, max_size=2), max_size=3)),
}


@given(st.data(), st.lists(st.sampled_from(list(_PLAIN)), min_size=1, max_size=4), st.integers(0, 5))
def test_bytes_equal_the_plain_encoding(data: st.DataObject, kinds: list[str], count: int) -> None:
    values = [data.draw(st.lists(_PLAIN[k][1], min_size=count, max_size=count)) for k in kinds]
    columns = [pa.array(v, _PLAIN[kind][0]) for kind, v in zip(kinds, values, strict=True)]
    before = data.draw(st.integers(0, 3))
    bounds, out = RowCodec([c.type for c in columns]).encode([sliced(c, before) for c in columns])
    rows = [out[a:b].tobytes() for a, b in pairwise(bounds.tolist())]
    assert rows == [row_bytes(kinds, row) for row in zip(*values, strict=True)]


@given(st.data(), st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4), st.integers(0, 6))
def test_rows_come_back_with_their_types_in_any_order(
    data: st.DataObject, kinds: list[pa.DataType], count: int
) -> None:
    columns = [arrays(data.draw, kind, count, nulls=data.draw(st.booleans())) for kind in kinds]
    codec = RowCodec(kinds)
    bounds, out = codec.encode(columns)
    order = data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    decoded = codec.decode(out, bounds[np.array(order, np.int64)])
    for column, back in zip(columns, decoded, strict=True):
        back.validate(full=True)
        assert back.type == column.type
        assert back.equals(column.take(pa.array(order, pa.int64())))
