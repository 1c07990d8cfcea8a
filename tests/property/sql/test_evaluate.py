"""Expressions on Arrow tables equal DuckDB's results if both dialects mean the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidUsageError
from penstock.sql.evaluate import can_fail, evaluate, filter_rows, project, type_of, why_unsupported
from penstock.sql.expression import Expression
from tests.long_tests import examples

_SCHEMA = pa.schema(
    {"i": pa.int32(), "j": pa.int64(), "x": pa.float64(), "f": pa.float32(), "s": pa.string()}
)


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def _tables() -> st.SearchStrategy[pa.Table]:
    small, texts = st.integers(-20, 20), st.text("ab%", max_size=3)
    floats = st.sampled_from([0.0, 0.5, -1.5, 3.0, float("nan"), float("inf")])
    row = st.tuples(*(st.none() | one for one in (small, small, floats, floats, texts)))
    return st.lists(row, max_size=8).map(
        lambda rows: pa.Table.from_pylist(
            [dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], _SCHEMA
        )
    )


_NUMBERS = st.recursive(
    st.sampled_from(["i", "j", "x", "f", "1", "7", "CAST(0.5 AS DOUBLE)", "length(s)"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("(-{})".format, inner),
        st.builds("abs({})".format, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("CASE WHEN {0} > 1 THEN {1} ELSE {0} END".format, inner, inner),
        st.builds("CAST({} AS DOUBLE)".format, inner),
        st.builds("({} / 4)".format, inner),
    ),
    max_leaves=4,
)
_CONDITIONS = st.recursive(
    st.one_of(
        st.builds(
            "({} {} {})".format, _NUMBERS, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), _NUMBERS
        ),
        st.builds("({} IS NULL)".format, _NUMBERS),
        st.builds("({} BETWEEN {} AND {})".format, _NUMBERS, _NUMBERS, _NUMBERS),
        st.builds("({} IN (1, {}))".format, _NUMBERS, _NUMBERS),
        st.sampled_from(["s LIKE 'a%'", "s = 'ab'", "s < 'b'", "true", "i IN (1, NULL)", "i % 7 = 3"]),
        st.sampled_from(["f > 0.5", "i > 1.5", "x = f"]),
    ),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
    ),
    max_leaves=3,
)


def _duck(connection: duckdb.DuckDBPyConnection, text: str, table: pa.Table) -> list[object]:
    return [row[0] for row in connection.sql(f"SELECT {text} FROM rows_of_the_test").fetchall()]


@settings(deadline=None, max_examples=examples(150))
@given(table=_tables(), text=_NUMBERS | _CONDITIONS)
def test_values_are_those_of_an_oracle(duck: duckdb.DuckDBPyConnection, table: pa.Table, text: str) -> None:
    assume(type_of(Expression.parse(text), _SCHEMA) is not None)
    duck.register("rows_of_the_test", table)
    found = evaluate(Expression.parse(text), table).to_pylist()
    assert repr(_floats(found)) == repr(_floats(_duck(duck, text, table)))


def _floats(values: list[Any]) -> list[object]:
    """Return values so that equal ones print alike: 1.0 as 1, and a minus of zero or NaN not at all."""
    return [f"{abs(v) if math.isnan(v) or v == 0 else v:g}" if type(v) in (int, float) else v for v in values]


def _one(text: str, **values: object) -> object:
    table = pa.Table.from_pylist([dict.fromkeys(_SCHEMA.names) | values], _SCHEMA)
    return evaluate(Expression.parse(text), table)[0].as_py()


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("i / 2", -3.5, pa.float64()),
        ("i div 2", -3, pa.int64()),
        ("i % 2", -1, pa.int32()),
        ("i % -1", 0, pa.int32()),
        ("i + 1", -6, pa.int32()),
        ("i + 3000000000", 2_999_999_993, pa.int64()),
        ("i * f", -3.5, pa.float64()),
        ("f + f", 1.0, pa.float32()),
        ("f * 1.5", 0.75, pa.float64()),
        ("i <=> null", False, pa.bool_()),
        ("if(i < 0, 'a', 'b')", "a", pa.string()),
        ("case i when -7 then 1L end", 1, pa.int64()),
        ("cast(i as bigint)", -7, pa.int64()),
    ],
)
def test_types_and_values_are_those_of_spark(text: str, value: object, kind: pa.DataType) -> None:
    assert _one(text, i=-7, f=0.5) == value
    assert type_of(Expression.parse(text), _SCHEMA) == kind


def test_texts_equal_a_literal_in_chunks_with_nulls_and_without_any() -> None:
    parts = [pa.array(["x", "ab", None, "", "ab"])[1:], pa.array([], pa.string()), pa.array(["", ""])]
    table = pa.table({"s": pa.chunked_array([*parts, pa.nulls(2, pa.string())])})
    wanted = [True, None, False, True, False, False, None, None]
    for text in ("s = 'ab'", "'ab' = s"):
        assert evaluate(Expression.parse(text), table).to_pylist() == wanted
    empty = [None if one is None else one == "" for one in table["s"].to_pylist()]
    assert evaluate(Expression.parse("s = ''"), table).to_pylist() == empty
    assert evaluate(Expression.parse("s = 'a'"), table[:0]).to_pylist() == []
    assert evaluate(Expression.parse("s <> NULL"), table).null_count == len(table)


def test_nan_is_the_greatest_number_and_equals_itself() -> None:
    nan = float("nan")
    for text, truth in [
        ("x > 1e300", True),
        ("x = x", True),
        ("x < 1", False),
        ("x >= x", True),
        ("x > x", False),
    ]:
        assert _one(text, x=nan) is truth
        assert _one(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("rand()", "my_udf(i)", "sum(i)", "i / j", "i % j", "i * 1.5", "s + 1", "s > 1", "cast(s as int)"),
        "cast(x as int)",
        "i AND true",
        "missing + 1",
        "split(s, ',')[0]",
        "round(x)",
        "s.field",
        "null",
        "upper(s)",  # Java makes STRASSE of straße
        "i IS TRUE",
        *(
            "i = s",
            "b = 1",
            "b + b",
            "NOT i",
            "-s",
            "abs(s)",
            "length(i)",
            "s LIKE i",
            "i LIKE 'a'",
            "if(i, 1, 2)",
        ),
        *(
            "CASE WHEN i THEN 1 END",
            "CASE WHEN NULL THEN 1 END",
            "coalesce(i, s)",
            "named_struct('a', NULL)",
            "named_struct(s, i)",
            "named_struct('a')",
            "i IN (1, 'a')",
            "i BETWEEN 1 AND 'a'",
        ),
        *(
            "day = '2024-01-01'",
            "day > at",
            "at > local",
            "seconds < seconds",
            "r = r",
            "b AND NULL",
            "isnan(i)",
            "xs = xs",
        ),
        *(
            "s = 'O''Brien'",
            "s = 'a\\\\b'",
            "s LIKE 'a\\\\%'",
            "s COLLATE utf8_lcase = 'a'",
            "1e400 > x",
            "300Y = i",
        ),
        *(
            "x = 0.5F",
            "sum(i) FILTER (WHERE b)",
            "user = s",
            "uniform(0, 9) > i",
        ),
    ],
)
def test_what_spark_means_differently_or_may_fail_is_left_to_spark(text: str) -> None:
    more = pa.schema(
        {
            **{
                "b": pa.bool_(),
                "day": pa.date32(),
                "at": pa.timestamp("us", "UTC"),
                "local": pa.timestamp("us"),
            },
            **{"seconds": pa.timestamp("s"), "r": pa.struct({"i": pa.int32()}), "xs": pa.list_(pa.int32())},
        }
    )
    assert type_of(Expression.parse(text), pa.schema([*_SCHEMA, *more])) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CASE WHEN i < 10 THEN i + 1 ELSE 0 END", [2, 0, 0]),
        ("CASE i WHEN 1 THEN 0 WHEN i + 0 THEN 1 ELSE i + 1 END", [0, 1, None]),
        ("CASE WHEN i > 10 THEN 0 WHEN i + 1 > 0 THEN 1 END", [1, 0, None]),
        ("if(i < 10, i + 1, -i)", [2, -2147483647, None]),
        ("i < 10 AND i + 1 > 0", [True, False, None]),
        ("i > 10 OR i + 1 > 0", [True, True, None]),
        ("coalesce(i, j + 9223372036854775807)", [1, 2147483647, -1]),
        ("i > 10 OR j BETWEEN 0 AND i + 1 OR j IN (1, i + 1)", [True, True, None]),
        ("i IS NULL AND j + 9223372036854775806 < 0", [False, False, True]),
        ("i + (j + 9223372036854775806)", None),
    ],
)
def test_a_branch_that_is_not_taken_does_not_overflow(text: str, expected: list[object] | None) -> None:
    table = pa.table({"i": pa.array([1, 2_147_483_647, None], pa.int32()), "j": [1, 2, -(2**63)]})
    if expected is None:
        with pytest.raises(InvalidUsageError, match="overflow"):
            evaluate(Expression.parse(text), table)
    else:
        assert evaluate(Expression.parse(text), table).to_pylist() == expected


def test_only_whole_numbers_can_overflow() -> None:
    fails = {
        text: can_fail(Expression.parse(text), _SCHEMA)
        for text in ("i + 1", "x + 1", "i div 2", "-i", "abs(f)")
    }
    assert fails == {"i + 1": True, "x + 1": False, "i div 2": False, "-i": True, "abs(f)": False}


def test_conditions_on_many_values_are_no_deep_recursion() -> None:
    text = " OR ".join(f"i = {n}" for n in range(3000))
    assert _one(text, i=2999) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("j > 1.5", [False, True]),
        ("j BETWEEN 0.5 AND 1.5", [True, False]),
        ("j >= CAST(1 AS DOUBLE)", [True, True]),
        ("j > x", [False, True]),
        ("CAST(9007199254740992 AS DOUBLE) = j", [False, True]),
        ("j / 2", [0.5, 2.0**52]),
        ("j * x", [1.0, 2.0**54]),
    ],
)
def test_whole_numbers_that_are_no_doubles_are_the_nearest_ones(text: str, expected: list[object]) -> None:
    table = pa.table({"j": pa.array([1, 2**53 + 1]), "x": pa.array([1.0, 2.0])})
    assert evaluate(Expression.parse(text), table).to_pylist() == expected


@given(digits=st.integers(0, 10**15 - 1), scale=st.integers(1, 15), sign=st.sampled_from(["", "-"]))
def test_decimals_are_the_nearest_floats(digits: int, scale: int, sign: str) -> None:
    text = f"{sign}{Decimal(digits).scaleb(-scale):.{scale}f}"
    number = float(text)
    table = pa.table({"x": [number]})
    for same in (f"x = {text}", f"{text} <= x", f"x <= {text}"):
        assert evaluate(Expression.parse(same), table).to_pylist() == [True], same
    (double,) = evaluate(Expression.parse(f"CAST({text} AS DOUBLE)"), table).to_pylist()
    assert double == number
    (single,) = evaluate(Expression.parse(f"CAST({text} AS FLOAT)"), table).to_pylist()
    around = (np.nextafter(np.float32(single), np.float32(end)) for end in (-math.inf, math.inf))
    off = abs(Fraction(single) - Fraction(text))
    assert all(off <= abs(Fraction(float(other)) - Fraction(text)) for other in around)


_DECIMALS = pa.schema(
    {
        **{"i": pa.int32(), "j": pa.int64(), "x": pa.float64(), "y": pa.float64()},
        **{"d": pa.decimal128(20, 1), "e": pa.decimal128(9, 3), "wide": pa.decimal128(38, 0)},
    }
)


@pytest.mark.parametrize(
    "text",
    [
        *("d + 1 > 2", "-d < 0", "coalesce(d, 0.5) > 1", "d > '1'", "wide = d", "wide > 1.5"),
        *("j IN (wide, d)", "y = 0.99999999999999999999", "x > 1234567890.1234567"),
        *("j > 9007199254740992.0", "i / 3.0 > 3.3333331"),
    ],
)
def test_decimals_that_spark_rounds_are_left_to_spark(text: str) -> None:
    assert type_of(Expression.parse(text), _DECIMALS) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d > 2", [False, True, None]),
        ("d = 2.0", [True, False, None]),
        ("d >= i", [True, True, None]),
        ("i < e", [False, True, False]),
        ("d = j", [True, False, None]),
        ("d = e", [True, False, None]),
        ("d IN (1, 2.00)", [True, False, None]),
        ("d BETWEEN i AND 2.5", [True, False, None]),
        ("d <=> e", [True, False, False]),
        ("d > x", [False, False, None]),
        ("d * x", [4.0, math.inf, None]),
        ("CAST(e AS DOUBLE)", [2.0, 2.101, 0.1]),
        ("coalesce(d, x)", [2.0, 9007199254740993.5, 0.5]),
        ("wide > 1", [True, True, False]),
    ],
)
def test_decimals_are_compared_exactly_with_numbers(text: str, expected: list[object]) -> None:
    columns: dict[str, list[Any]] = {
        "i": [2, 2, 5],
        "j": [2, 9007199254740993, 5],
        "x": [2.0, math.inf, 0.5],
        "y": [1.0, 1.0, 1.0],
        "d": [Decimal("2.0"), Decimal("9007199254740993.5"), None],
        "e": [Decimal("2.000"), Decimal("2.101"), Decimal("0.100")],
        "wide": [Decimal(10**37), Decimal(2), Decimal(1)],
    }
    table = pa.table({name: pa.array(columns[name], _DECIMALS.field(name).type) for name in columns})
    expression = Expression.parse(text)
    assert type_of(expression, _DECIMALS) is not None
    assert evaluate(expression, table).to_pylist() == expected


def test_a_refused_expression_of_decimals_says_what_to_write() -> None:
    reason = why_unsupported(Expression.parse("d + 1 > 2"), _DECIMALS)
    assert reason == "it combines decimal128(20, 1), int32; cast decimals to DOUBLE"


def test_short_decimal_literals_are_compared_and_calculated_with() -> None:
    schema = pa.schema({"i": pa.int32(), "j": pa.int64(), "f": pa.float32(), "x": pa.float64()})
    for text in (
        "j > 90071992547409.5",
        "i > 1.5",
        "f > 0.1",
        "x BETWEEN 0.5 AND 1",
        "i IN (1, 2)",
        "i IN (1, 2.5)",
        "x IN (0.5, 1)",
    ):
        assert type_of(Expression.parse(text), schema) == pa.bool_(), text
    assert type_of(Expression.parse("x * 0.5 + f"), schema) == pa.float64()


def test_nothing_is_not_a_number() -> None:
    assert _one("isnan(x)") is False
    assert _one("isnan(x)", x=float("nan")) is True


def test_overflow_and_what_is_unknown_are_told() -> None:
    with pytest.raises(InvalidUsageError, match="overflow"):
        _one("i + 2147483647", i=1)
    with pytest.raises(InvalidUsageError, match=r"outside of Spark: it uses my_udf: expression=my_udf\(i\)"):
        _one("my_udf(i)")
    with pytest.raises(InvalidUsageError, match="not boolean"):
        filter_rows(_SCHEMA.empty_table(), Expression.parse("i"))


def test_later_conjuncts_see_only_what_passed_the_earlier() -> None:
    table = pa.table({"i": pa.array([1, 2_147_483_647], pa.int32())})
    assert filter_rows(table, Expression.parse("i < 10 AND i + 1 > 0"))["i"].to_pylist() == [1]


def test_a_projection_has_the_rows_of_its_table() -> None:
    table = pa.table({"i": pa.array([1, 2], pa.int32())})
    made = project(table, {"one": Expression.parse("1"), "i": Expression.parse("i")})
    assert made.to_pydict() == {"one": [1, 1], "i": [1, 2]}
    assert project(table.slice(0, 0), {"one": Expression.parse("1")}).num_rows == 0
