"""SQL expressions as the graph sees them."""

from __future__ import annotations

import pickle

import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.expression import Expression, column, conjunction, named


def test_the_columns_of_an_expression_are_those_that_it_reads() -> None:
    assert Expression.parse("price * volume + s.field + `a b`").columns == ("a b", "price", "s", "volume")
    assert Expression.parse("1 + 2").columns == ()


@pytest.mark.parametrize(
    "text",
    [
        "rand()",
        "a + randn()",
        "uuid()",
        "current_timestamp",
        "now()",
        "current_date",
        "monotonically_increasing_id()",
        "my_udf(a)",
        "shuffle(a)",
        "unix_timestamp()",
    ],
)
def test_what_may_change_from_call_to_call_is_not_deterministic(text: str) -> None:
    assert not Expression.parse(text).deterministic


@pytest.mark.parametrize("text", ["a + 1", "upper(a)", "pmod(a, 3)", "timestamp_seconds(a)", "a IS NULL"])
def test_what_spark_computes_from_the_row_alone_is_deterministic(text: str) -> None:
    assert Expression.parse(text).deterministic


def test_a_conjunction_is_taken_apart_and_put_together() -> None:
    whole = Expression.parse("a > 1 AND (b = 'x' AND (c OR d))")
    parts = whole.conjuncts()
    assert [part.text for part in parts] == ["a > 1", "b = 'x'", "c OR d"]
    assert conjunction(parts).text == "a > 1 AND b = 'x' AND (c OR d)"
    assert Expression.parse("a OR b").conjuncts() == (Expression.parse("a OR b"),)


def test_columns_are_replaced_by_what_made_them() -> None:
    made = {"segment": Expression.parse("position div 5280"), "s": column("speed")}
    assert Expression.parse("segment * 2 < s").substitute(made).normal == "(position DIV 5280) * 2 < speed"
    assert Expression.parse("segment").substitute(made).normal == "position DIV 5280"
    unchanged = Expression.parse("other   + 1")
    assert unchanged.substitute(made) is unchanged


def test_names_are_resolved_as_spark_does() -> None:
    found = Expression.parse("EventType = 1 and cpu > 0").resolve(["eventType", "cpu"])
    assert found.columns == ("cpu", "eventType")
    with pytest.raises(InvalidUsageError, match=r"no column 'cpuu'.*node=where.*did you mean 'cpu'"):
        Expression.parse("cpuu > 1").resolve(["eventType", "cpu"], node="where")
    with pytest.raises(InvalidUsageError, match="no column 'A'"):
        Expression.parse("A > 1").resolve(["a", "Aa", "aA", "x"][1:])


@pytest.mark.parametrize("name", ["a b", "select", "current_date", "ts", "a`b", "größe", "1st"])
def test_a_column_of_any_name_is_an_expression(name: str) -> None:
    made = column(name)
    assert made.is_column
    assert Expression.parse(made.text).columns == (name,)


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("price * volume AS turnover", "turnover", "price * volume"),
        ("price", "price", "price"),
        ("s.field", "field", "s.field"),
    ],
)
def test_an_entry_of_a_select_list_has_a_name(text: str, name: str, rest: str) -> None:
    assert named(text) == (name, Expression.parse(rest))


@pytest.mark.parametrize(
    "text", ["", "a >", "SELECT 1", "(SELECT 1) > 2", "row_number() OVER (ORDER BY a)", "a AS b", "a; b"]
)
def test_what_is_no_expression_of_one_row_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError):
        Expression.parse(text)


def test_more_than_a_column_needs_a_name() -> None:
    with pytest.raises(InvalidUsageError, match="expression AS name"):
        named("price * volume")


def test_an_expression_survives_pickling_and_hides_its_tree() -> None:
    made = Expression.parse("a + 1")
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.tree is not made.tree
