"""Any blocks come back from a p-unit; any damage is found."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpointing import PUnit, decode, encode
from penstock.errors import CorruptDataError
from tests.samples.columns import KINDS, arrays

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def _units(draw: st.DrawFn) -> PUnit:
    blocks = {}
    for name in draw(st.lists(st.text(max_size=6), unique=True, max_size=3)):
        kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
        count = draw(st.integers(0, 5))
        columns = [arrays(draw, kind, count, nulls=draw(st.booleans())) for kind in kinds]
        blocks[name] = pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(kinds))])
    meta: dict[str, Any] = draw(st.dictionaries(st.text(max_size=5), _JSON, max_size=3))
    return PUnit(draw(st.text(max_size=8)), meta, blocks)


@given(_units())
def test_every_unit_comes_back(unit: PUnit) -> None:
    back = decode(encode(unit), "memory")
    assert (back.kind, back.meta, list(back.blocks)) == (unit.kind, unit.meta, list(unit.blocks))
    for name, block in unit.blocks.items():
        back.blocks[name].validate(full=True)
        assert back.blocks[name].schema.equals(block.schema)
        assert back.blocks[name].to_pylist() == block.to_pylist()


@given(_units(), st.data())
def test_damage_anywhere_is_found(unit: PUnit, data: st.DataObject) -> None:
    content = bytes(encode(unit))
    begin = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(begin + 1, min(begin + 64, len(content))))
    damaged = content[:begin] + data.draw(st.binary(max_size=64)) + content[end:]
    if damaged == content:
        return
    with pytest.raises(CorruptDataError):
        decode(damaged, "memory")
