"""Aggregates as partials of panes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import decompose, pane_ms
from penstock.operators.scan.spec import Partial
from tests.sketches import needs_sketches


@pytest.mark.parametrize(
    ("text", "partials", "assembly"),
    [
        ("count(*)", [("count", "*", "count")], "count"),
        ("count(1)", [("count", "*", "count")], "count"),
        ("count(x)", [("count", "x", "count_x")], "count_x"),
        ("sum(x)", [("sum", "x", "sum_x")], "sum_x"),
        ("min(x)", [("min", "x", "min_x")], "min_x"),
        ("max(x)", [("max", "x", "max_x")], "max_x"),
        ("avg(x)", [("sum", "x", "sum_x"), ("count", "x", "count_x")], "(sum_x / count_x)"),
        ("mean(x)", [("sum", "x", "sum_x"), ("count", "x", "count_x")], "(sum_x / count_x)"),
        (
            "sum(p * v) / sum(v)",
            [("sum", "p * v", "sum_p_v"), ("sum", "v", "sum_v")],
            "sum_p_v / sum_v",
        ),
        (
            "count(*) FILTER (WHERE x > 1)",
            [("count", "CASE WHEN x > 1 THEN 1 END", "count_case_when_x_1_then_1_end")],
            "count_case_when_x_1_then_1_end",
        ),
    ],
)
def test_an_aggregate_is_partials_and_an_expression(
    text: str, partials: list[tuple[str, str, str]], assembly: str
) -> None:
    found = decompose({"a": text}, "t")
    assert [(p.kind, p.expression, p.name) for p in found.partials] == partials
    assert found.assembly == {"a": assembly}
    assert not found.times


def test_aggregates_share_their_partials() -> None:
    found = decompose({"mean": "avg(x)", "total": "sum(x)", "n": "count(x)", "sd": "stddev(x)"}, "t")
    assert [p.kind for p in found.partials] == ["sum", "count", "m2"]
    assert found.assembly["sd"].startswith("CASE WHEN count_x > 1 THEN SQRT(m2_x / ")


def test_first_and_last_come_with_their_times() -> None:
    found = decompose({"open": "first(price)", "close": "last(price)", "at": "max(t)"}, "t")
    assert found.times == {"first_price": "min_t", "last_price": "max_t"}
    assert found.partials == (
        Partial("first", "price", "first_price"),
        Partial("min", "t", "min_t"),
        Partial("last", "price", "last_price"),
        Partial("max", "t", "max_t"),
    )


@pytest.mark.parametrize("text", ["count(DISTINCT x, y)", "count(DISTINCT *)", "mode(x)", "sum(DISTINCT x)"])
def test_what_has_no_partials_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="do not support this aggregate: name=a"):
        decompose({"n": "count(*)", "a": text}, "t")


def test_counts_of_distinct_values_are_of_sets() -> None:
    texts = {"a": "count(DISTINCT x)", "b": "count(DISTINCT x + y) FILTER (WHERE y > 0) / count(*)"}
    found = decompose(texts, "t")
    filtered = "CASE WHEN y > 0 THEN x + y END"
    assert [(p.kind, p.expression) for p in found.partials] == [
        *(("distinct", "x"), ("distinct", filtered), ("count", "*"))
    ]
    assert found.assembly["a"] == "distinct_x"


@needs_sketches
def test_approximate_counts_are_sketches_of_hashes() -> None:
    texts = {
        "a": "approx_count_distinct(x)",
        "b": "approx_count_distinct(x, 0.01)",
        "c": "approx_count_distinct(x) FILTER (WHERE y > 0)",
    }
    found = decompose(texts, "t")
    hashed = "CASE WHEN NOT (x) IS NULL THEN XXHASH64(x) END"
    filtered = "CASE WHEN NOT (x) IS NULL AND (y > 0) THEN XXHASH64(x) END"
    assert [(p.kind, p.expression, p.log2_size) for p in found.partials] == [
        *(("sketch", hashed, 9), ("sketch", hashed, 14), ("sketch", filtered, 9))
    ]
    with pytest.raises(InvalidUsageError, match="is not a number"):
        decompose({"a": "approx_count_distinct(x, y)"}, "t")


def test_names_of_partials_are_free() -> None:
    found = decompose({"a": "sum(a + b)", "b": "sum(a - b)", "c": "sum(pane)"}, "t", ["sum_a_b", "sum_pane"])
    assert [p.name for p in found.partials] == ["sum_a_b_2", "sum_a_b_3", "sum_pane_2"]


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("x + 1", "no aggregate"),
        ("sum(x) + y", "neither grouped nor aggregated"),
        ("sum(max(x))", "contains another aggregate"),
    ],
)
def test_what_is_no_aggregate_is_refused(text: str, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        decompose({"a": text}, "t")


def test_a_group_column_may_stand_outside_of_aggregates() -> None:
    found = decompose({"a": "sum(x) * house"}, "t", ["house"])
    assert found.assembly == {"a": "sum_x * house"}


def test_a_pane_divides_size_and_slide() -> None:
    assert pane_ms(60_000, 1_000) == 1_000
    assert pane_ms(10_000, 4_000) == 2_000
    assert pane_ms(10_000, 10_000) == 10_000
    for size_ms, slide_ms in ((0, 1), (1, 0), (1_000, 2_000)):
        with pytest.raises(InvalidUsageError):
            pane_ms(size_ms, slide_ms)


def test_sums_of_whole_numbers_may_be_no_doubles() -> None:
    assembly = Assembly({}, {"mean": ("sum", "count")}, {"deviation": ("count", "m2")})
    sums, counts = pa.array([None, 2**53 + 1], pa.int64()), pa.array([0, 2])
    assert assembly.compute("mean", [sums, counts]).to_pylist() == [None, 2.0**52]
    assert assembly.compute("deviation", [counts, pa.array([None, 2.0])]).to_pylist() == [None, 2.0**0.5]
