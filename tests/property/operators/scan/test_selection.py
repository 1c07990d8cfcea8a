"""Rows selected from tables, beside Arrow's filter."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.scan.selection import select_rows


@given(
    st.lists(
        st.tuples(st.text("ab\u00e9", max_size=40), st.booleans())
        | st.tuples(st.sampled_from(["", "four", "twelve bytes"]), st.just(True)),
        max_size=60,
    ),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
)
def test_rows_are_selected_as_arrow_filters_them(
    rows: list[tuple[str, bool]], kind: pa.DataType, cut: int, end: int, nulls: bool
) -> None:
    texts = [None if nulls and len(text) % 5 == 4 else text for text, _ in rows]
    whole = pa.table({"text": pa.array(texts, pa.string()).cast(kind), "n": range(len(rows))})
    mask = pa.array([keep for _, keep in rows], pa.bool_())
    part = slice(cut, len(rows) - end)
    for some, keep in ((whole, mask), (whole[part], mask[part])):
        for dictionaries in (False, True):
            found = select_rows(some, keep, dictionaries=dictionaries)
            assert found.cast(some.schema).equals(some.filter(keep))
            assert dictionaries or found.schema == some.schema
    twice, mask = pa.concat_tables([whole, whole]), pa.concat_arrays([mask, mask])
    assert select_rows(twice, mask).equals(twice.filter(mask))
