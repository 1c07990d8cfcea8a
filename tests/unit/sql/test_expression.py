"""SQL expressions as the graph sees them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.errors import InvalidUsageError
from penstock.sql.expression import Expression, column, conjunction, split_alias
from penstock.sql.tree import Tree


def test_the_columns_of_an_expression_are_those_that_it_reads() -> None:
    assert Expression.parse("price * volume + s.field + `a b`").columns == ("a b", "price", "s", "volume")
    assert Expression.parse("1 + 2").columns == ()


def test_a_column_of_spark_is_refused() -> None:
    column_of_spark: Any = object()
    with pytest.raises(InvalidUsageError, match=r"an expression is not a text: got=object. Hint: write"):
        Expression.parse(column_of_spark)


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
    assert Expression.parse("segment * 2 < s").substitute(made).text == "(position div 5280) * 2 < speed"
    assert Expression.parse("segment").substitute(made).text == "position div 5280"
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
    assert split_alias(text) == (name, Expression.parse(rest))


@pytest.mark.parametrize(
    "text", ["", "a >", "SELECT 1", "(SELECT 1) > 2", "row_number() OVER (ORDER BY a)", "a AS b", "a; b"]
)
def test_what_is_no_expression_of_one_row_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError):
        Expression.parse(text)


def test_more_than_a_column_needs_a_name() -> None:
    with pytest.raises(InvalidUsageError, match="expression AS name"):
        split_alias("price * volume")


def test_an_expression_survives_pickling() -> None:
    made = Expression.parse("a + 1")
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_text_stays_as_it_was_written() -> None:
    text = "to_char( 78.12,'$99.99' ) = 'O''Brien' and instr(a,'x',1,2)>0 And aes_encrypt(a, 'k') is NULL"
    made = Expression.parse(text)
    assert made.text == text
    assert [part.text for part in made.conjuncts()] == [
        "to_char( 78.12,'$99.99' ) = 'O''Brien'",
        "instr(a,'x',1,2)>0",
        "aes_encrypt(a, 'k') is NULL",
    ]
    assert made.resolve(["A"]).text == text.replace("(a,", "(A,")
    assert split_alias(f"{text} AS b") == ("b", made)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = b IS NULL", "is(compare(a b))"),
        ("a <> b IS NOT NULL", "not(is(compare(a b)))"),
        ("NOT a LIKE b", "not(match(a b))"),
        ("a NOT LIKE b", "not(match(a b))"),
        ("a NOT IN (b, c) AND d", "and(not(in(a b c)) d)"),
        ("! a = b", "not(compare(a b))"),
        ("! a AND b", "and(not(a) b)"),
        ("a = b IN (c)", "in(compare(a b) c)"),
        ("a BETWEEN b AND c AND d OR e", "or(and(between(a b c) d) e)"),
        ("- a * b + c & d", "binary(binary(binary(unary(a) b) c) d)"),
        ("a || b = c", "compare(binary(a b) c)"),
        ("a < b < c", "compare(compare(a b) c)"),
        ("a::int IS NULL", "is(cast(a))"),
        ("a.b[c].d", "field(index(field(a) c))"),
    ],
)
def test_precedence_is_that_of_spark(text: str, tree: str) -> None:
    def shown(node: Tree) -> str:
        if node.kind == "column":
            return str(node.value)
        return f"{node.kind}({' '.join(map(shown, node.parts))})"

    assert shown(Expression.parse(text).tree) == tree


@pytest.mark.parametrize(
    "text", ["uniform(0, 9)", "randstr(3)", "current_user", "user", "now()", "exists(a, x -> x > 1)"]
)
def test_what_changes_or_depends_on_names_is_never_moved(text: str) -> None:
    assert not Expression.parse(text).deterministic


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("transform(a, x -> x + b)", ("a", "b")),
        ("zip_with(a, b, (x, y) -> x + y + c)", ("a", "b", "c")),
        ("extract(YEAR FROM a)", ("a",)),
        ("timestampadd(HOUR, b, a)", ("a", "b")),
        ("trim(BOTH b FROM a)", ("a", "b")),
        ("substring(a FROM 2 FOR b)", ("a", "b")),
        ("cast(a AS struct<x: int, y: decimal(3, 1)>).x", ("a",)),
        ("a + INTERVAL '1' DAY", ("a",)),
        ("DATE'2024-01-01' < a", ("a",)),
        ("mask(a, upperChar => b)", ("a", "b")),
        ("x'1f' = a /* b */ -- c", ("a",)),
        ("CASE a WHEN b THEN c ELSE d END", ("a", "b", "c", "d")),
        ("listagg(a, ',') WITHIN GROUP (ORDER BY b DESC NULLS LAST) FILTER (WHERE c)", ("a", "b", "c")),
        ("a COLLATE utf8_lcase = b", ("a", "b")),
        ("a:b.c::int", ("a",)),
    ],
)
def test_only_columns_are_columns(text: str, columns: tuple[str, ...]) -> None:
    assert Expression.parse(text).columns == columns


def test_a_star_reads_all_columns_but_that_of_a_count() -> None:
    assert Expression.parse("to_json(struct(*))").resolve(["a", "b"]).columns == ("a", "b")
    assert Expression.parse("count(*) + a").resolve(["a", "b"]).columns == ("a",)


def test_fields_keep_the_names_that_columns_were_written_with() -> None:
    made = Expression.parse("struct(A, b)").resolve(["a", "b"])
    assert (made.text, made.columns) == ("struct(A, b)", ("a", "b"))
