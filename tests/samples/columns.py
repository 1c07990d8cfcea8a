"""Columns of every Arrow type that Spark's columns can have, with nulls everywhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

__all__ = ["KINDS", "Draw", "arrays", "sliced"]

Draw = Callable[[st.SearchStrategy[Any]], Any]
"""Draws from a strategy: `DataObject.draw`, or what a composite strategy is given."""

_DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31))
_MOMENTS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))
_INTEGERS = {
    kind: st.integers(-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}
_FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **_INTEGERS,
    pa.uint8(): st.integers(0, 255),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): _DAYS,
    pa.time64("us"): st.times(),
    pa.timestamp("us"): _MOMENTS,
    pa.timestamp("us", "UTC"): _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    pa.duration("us"): st.timedeltas(timedelta(-(10**6)), timedelta(10**6)),
    pa.decimal128(7, 2): st.integers(-(10**7) + 1, 10**7 - 1).map(lambda i: Decimal(i).scaleb(-2)),
    pa.decimal128(38, 0): st.integers(-(10**27), 10**27).map(Decimal),
    pa.string(): st.text(max_size=12),
    pa.large_string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.large_binary(): st.binary(max_size=12),
    pa.null(): st.none(),
}
_PAIR = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])
_PAIRS = st.fixed_dictionaries({"a": st.none() | _INTEGERS[pa.int32()], "b": st.none() | st.text(max_size=3)})
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = _FLAT | {
    pa.list_(pa.int64()): st.lists(st.none() | _INTEGERS[pa.int64()], max_size=3),
    pa.list_(pa.list_(pa.bool_())): st.lists(st.none() | st.lists(st.booleans(), max_size=3), max_size=3),
    _PAIR: _PAIRS,
    pa.list_(_PAIR): st.lists(st.none() | _PAIRS, max_size=3),
    pa.struct([pa.field("inner", _PAIR), pa.field("day", pa.date32())]): st.fixed_dictionaries(
        {"inner": st.none() | _PAIRS, "day": st.none() | _DAYS}
    ),
    pa.map_(pa.string(), pa.list_(pa.int8())): st.dictionaries(
        st.text(max_size=3), st.none() | st.lists(_INTEGERS[pa.int8()], max_size=2), max_size=3
    ).map(lambda d: list(d.items())),
}


def sliced(column: pa.Array[Any], before: int) -> pa.Array[Any]:
    """Return `column` as a slice of a longer array, with nulls and values around it."""
    if not before:
        return column
    around = pa.nulls(before, column.type)
    return pa.concat_arrays([around, column, column, around]).slice(before, len(column))


def arrays(draw: Draw, kind: pa.DataType, count: int, *, nulls: bool) -> pa.Array[Any]:
    """Draw an array of `count` values."""
    values = st.none() | KINDS[kind] if nulls else KINDS[kind]
    return sliced(
        pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind), draw(st.integers(0, 9))
    )
