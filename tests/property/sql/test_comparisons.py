"""Intervals accept the same values as comparisons with literals, as evaluated and as Spark defines them."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidUsageError
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.spec import Fragments, Partial, Scan
from penstock.sql.comparisons import intersect_intervals, intervals_of, mask_of
from penstock.sql.evaluate import evaluate
from penstock.sql.expression import Expression
from tests.long_tests import examples

SCHEMA = pa.schema({"b": pa.int8(), "h": pa.int16(), "i": pa.int32(), "j": pa.int64(), "f": pa.float32(),
                    "x": pa.float64(), "s": pa.string()})  # fmt: skip
_COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PLAIN = [
    *("0", "-0.0", "0.0", "1", "-1", "7", "127", "128", "-129", "40000", "2147483647", "-2147483648"),
    *("4294967296", "9007199254740992", "9007199254740993", "9223372036854775807", "0.1", "-0.1", "0.5"),
    *("1.5", "-1.5", "127.5", "16777217", "16777217.5", "0.10000000149011612", "1e-3", "1e-46", "-1e-320"),
    *("1e39", "-1e300", "1e308", "3.4028235677973366e38"),
]
_CAST = ["CAST(0.1 AS FLOAT)", "CAST(7 AS BIGINT)", "CAST(0.1 AS DOUBLE)"]


def _whole(bits: int) -> st.SearchStrategy[int]:
    ends = [sign * 2**power + more for power in (0, 7, 15, 24, 31, 32, 53, 63) for sign in (1, -1)
            for more in (-1, 0, 1)]  # fmt: skip
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([one for one in ends if least <= one <= most]) | st.integers(-8, 8)


def _float(width: Any) -> st.SearchStrategy[float]:
    known = [0.0, -0.0, 0.1, 0.5, 1.5, -1.5, 7.0, math.nan, math.inf, -math.inf, 16777216.0]
    exact = pa.array(known, pa.float32() if width == 32 else pa.float64()).to_pylist()
    return st.sampled_from(exact) | st.floats(width=width)


_ROW = st.tuples(_whole(8), _whole(16), _whole(32), _whole(64), _float(32), _float(64), st.sampled_from("ab"))
_TABLES = st.lists(_ROW, max_size=12).map(
    lambda rows: pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 7, schema=SCHEMA)
)
_NUMERIC = st.sampled_from(SCHEMA.names[:-1])
_LITERAL = st.sampled_from([*_PLAIN, *_CAST])
_SIMPLE = st.one_of(
    st.builds("{} {} {}".format, _NUMERIC, st.sampled_from(list(_COMPARISONS)), _LITERAL),
    st.builds("{} {} {}".format, _LITERAL, st.sampled_from(list(_COMPARISONS)), _NUMERIC),
    st.builds("{} BETWEEN {} AND {}".format, _NUMERIC, _LITERAL, _LITERAL),
)
_OTHER = st.sampled_from(["s = 'a'", "i + 1 > 0", "f > x", "j * 2 < 9", "NOT i = 1", "f IS NULL", "x < NULL"])


def _evaluated(predicate: str, table: pa.Table) -> list[bool]:
    parts = (evaluate(part, table) for part in Expression.parse(predicate).conjuncts())
    return reduce(pc.and_, [pc.fill_null(part, False) for part in parts]).to_pylist()


@settings(max_examples=examples(200))
@given(table=_TABLES, parts=st.lists(_SIMPLE, min_size=1, max_size=4))
def test_what_is_an_interval_lets_pass_what_evaluation_does(table: pa.Table, parts: list[str]) -> None:
    found = [intervals_of(Expression.parse(part), SCHEMA) for part in parts]
    known = [(part, one) for part, one in zip(parts, found, strict=True) if one is not None]
    if not known:
        return
    wanted = _evaluated(" AND ".join(part for part, _ in known), table)
    for intervals in (
        intersect_intervals(some for _, one in known for some in one),
        [o for _, one in known for o in one],
    ):
        mask = mask_of(intervals, table)
        assert mask is not None
        assert mask.tolist() == wanted


@settings(max_examples=examples(200))
@given(
    table=_TABLES,
    name=_NUMERIC,
    sign=st.sampled_from(list(_COMPARISONS)),
    text=st.sampled_from(_PLAIN),
)
def test_comparisons_are_those_of_spark(table: pa.Table, name: str, sign: str, text: str) -> None:
    intervals = intervals_of(Expression.parse(f"{name} {sign} {text}"), SCHEMA)
    number = Decimal(text) if "." in text or "e" in text else int(text)
    if intervals is None:
        exact = isinstance(number, int) and (name not in "fx" or abs(number) <= 2**53)
        assert not exact, "only what is not exact is left"
        return
    # Spark compares decimals with floats, and with whole numbers that have fewer digits, as doubles.
    other = number if isinstance(number, int) else float(number)

    def ordered(value: float) -> tuple[bool, float]:
        return (True, 0.0) if math.isnan(value) else (False, value)

    mask = mask_of(intervals, table)
    assert mask is not None
    wanted = [_COMPARISONS[sign](ordered(value), ordered(other)) for value in table[name].to_pylist()]
    assert mask.tolist() == wanted


@given(table=_TABLES, parts=st.lists(_SIMPLE | _OTHER, min_size=1, max_size=4), nulls=st.booleans())
def test_a_scan_keeps_the_rows_for_which_all_is_true(table: pa.Table, parts: list[str], nulls: bool) -> None:
    if nulls and table.num_rows:
        table = pa.concat_tables([table, pa.table([[None]] * 7, schema=SCHEMA)])
    where = " AND ".join(parts)
    rows = pa.concat_tables([table, table.slice(1)])
    try:
        found = Scanner(Scan(tuple(SCHEMA.names), where=where), SCHEMA).apply(rows)
        mask = _evaluated(where, rows)
    except InvalidUsageError:
        return  # what is not known, and integers that overflow
    assert str(found.to_pydict()) == str(rows.filter(pa.array(mask, pa.bool_())).to_pydict())


def test_what_is_not_exact_is_left() -> None:
    left = [
        "j > 1.5",
        "j = CAST(1 AS DOUBLE)",
        "f > 9007199254740993",
        "i > NULL",
        "s = 'a'",
        "i + 1 > 2",
        "i > j",
    ]
    for text in [*left, "i IN (1, 2)", "NOT i > 1", "x <=> 1", "i = true"]:
        assert intervals_of(Expression.parse(text), SCHEMA) is None, text
    assert intervals_of(Expression.parse("unknown > 1"), SCHEMA) is None
    nulls = pa.table([[None]] * 7, schema=SCHEMA)
    intervals = intervals_of(Expression.parse("i > 1"), SCHEMA)
    assert intervals is not None
    assert mask_of(intervals, nulls) is None
    assert mask_of(intervals, pa.table({"i": pa.array([2], pa.int64())})) is None


@pytest.mark.parametrize(
    ("text", "low", "high", "nan"),
    [("f > 0.1", 0.10000000149011612, math.inf, True), ("f < 0.1", -math.inf, 0.09999999403953552, False)],
)
def test_the_ends_of_an_interval_are_of_the_columns_type(
    text: str, low: float, high: float, nan: bool
) -> None:
    intervals = intervals_of(Expression.parse(text), SCHEMA)
    assert intervals is not None
    (one,) = intervals
    assert (float(one.low), float(one.high), one.nan, one.low.dtype) == (low, high, nan, "float32")


def test_conjuncts_of_one_column_are_one_interval() -> None:
    texts = ("f > 0.5", "f <= 2", "f <> 1", "i BETWEEN -3 AND 9", "4 > i")
    found = intersect_intervals(
        one for text in texts for one in intervals_of(Expression.parse(text), SCHEMA) or ()
    )
    assert [(one.column, one.inverted) for one in found] == [("f", False), ("i", False), ("f", True)]
    assert (int(found[1].low), int(found[1].high)) == (-3, 3)


def test_a_conjunct_that_can_fail_fails_for_the_rows_that_those_before_it_let_pass() -> None:
    rows = pa.table({"i": pa.array([1, 2**31 - 1], pa.int32()), "d": [1.0, 9.0]})
    after, alone = (
        Scanner(Scan(("i", "d"), where=text), rows.schema) for text in ("d < 5 AND i + 1 > 0", "i + 1 > 0")
    )
    assert after.apply(rows).to_pydict() == {"i": [1], "d": [1.0]}
    with pytest.raises(InvalidUsageError, match="overflow"):
        alone.apply(rows)
    with pytest.raises(InvalidUsageError, match="Spark can"):  # it may test `d < 5` first
        Scanner(Scan(("i", "d"), where="i + 1 > 0 AND d < 5"), rows.schema)


def test_what_is_computed_of_rows_that_are_not_selected_does_not_fail() -> None:
    rows = pa.table({"i": pa.array([1, 2, 2**31 - 1], pa.int32()), "d": [1.0, 2.0, 9.0]})
    time = pa.array([0, 0, 0], pa.timestamp("us"))
    partials = (Partial("sum", "i + 1", "total"),)
    fragments = Fragments(1000, "t", "us", (), partials)
    scan = Scan(("i", "d", "t"), where="d < 5", select={"i": "i", "t": "t"}, fragments=fragments)
    scanner = Scanner(scan, rows.append_column("t", time).schema)
    (made,) = scanner.scan_tables([rows.append_column("t", time)])
    assert made["total"].to_pylist() == [5]


@given(digits=st.integers(0, 10**15 - 1), scale=st.integers(1, 15), sign=st.sampled_from(["", "-"]))
def test_a_literal_is_the_nearest_float(digits: int, scale: int, sign: str) -> None:
    text = f"{sign}{Decimal(digits).scaleb(-scale):.{scale}f}"
    intervals = intervals_of(Expression.parse(f"x = {text}"), SCHEMA)
    assert intervals is not None
    assert (intervals[0].low, intervals[0].high) == (float(text), float(text))
