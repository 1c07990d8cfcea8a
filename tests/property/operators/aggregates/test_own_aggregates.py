"""User-defined aggregates of windows equal plain Python over the windows' values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.aggregates.own_states import check_own_images, finish_own
from penstock.operators.scan.fragments.accumulators import new_accumulator
from penstock.operators.scan.spec import Fragments, Partial, Scan
from penstock.sql.evaluate import evaluate
from penstock.sql.expression import Expression
from penstock.windows.append.sliding import slide
from tests.samples.aggregates import LogSum, Pairs, Spread, WeightedMean

PARTIAL = Partial("own", "x", "s", function="tests.samples.aggregates:Spread")
VALUES = st.lists(st.one_of(st.none(), st.integers(-9, 9), st.integers(-(2**40), 2**40)), max_size=20)


def accumulate(kind: Any, parts: list[tuple[Any, Any]], count: int) -> Any:
    accumulator = new_accumulator(PARTIAL, kind)
    for slots, values in parts:
        accumulator.add(np.asarray(slots, np.int32), np.zeros(len(slots)), values, count)
    return accumulator.result(count)


def spread(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return (max(known) - min(known)) * 1000 + len(known) if known else None


@settings(max_examples=30)
@given(sets=st.lists(VALUES, min_size=1, max_size=12), data=st.data())
def test_windows_of_panes_equal_plain_python(sets: list[list[Any]], data: st.DataObject) -> None:
    rows = [(slot, value) for slot, values in enumerate(sets, 1) for value in values]
    rows = [*data.draw(st.permutations(rows)), (0, 5)]
    at = data.draw(st.integers(0, len(rows)))
    parts = [
        ([slot for slot, _ in some], pa.array([value for _, value in some], pa.int64()))
        for some in (rows[:at], rows[at:])
    ]
    states = accumulate(pa.int64(), parts, len(sets) + 1)
    check_own_images(states, PARTIAL.function)
    steps = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12))
    ranges, low, high = [], 0, 0
    for step, more in steps:
        low, high = low + step, max(high, low + step) + more
        ranges.append((low, min(high, len(sets)))) if low < len(sets) else None
    lows, highs = (np.array([one[end] for one in ranges], np.int64) for end in (0, 1))
    entries = pa.RecordBatch.from_arrays([states], ["s"])
    windows = slide([PARTIAL], {}, lows, entries, lows, highs, closing=True)
    expected = [spread([value for some in sets[begin:end] for value in some]) for begin, end in ranges]
    assert finish_own(windows.column(0), PARTIAL.function).to_pylist() == expected


@settings(max_examples=30)
@given(sets=st.lists(VALUES, min_size=1, max_size=8), cut=st.integers(0, 8))
def test_states_that_are_cut_into_parts_merge_again(sets: list[list[Any]], cut: int) -> None:
    """States of the same panes from several micro-batches, sliced as a reader of state slices them."""
    slots = [slot for slot, values in enumerate(sets, 1) for _ in values]
    values = pa.array([value for some in sets for value in some], pa.int64())
    whole = accumulate(pa.int64(), [(slots, values)], len(sets) + 1)
    twice = [(np.arange(1, len(sets) + 1)[at], whole.slice(at.start or 0, at.stop)) for at in (slice(cut),)]
    twice += [(np.arange(1, len(sets) + 1)[cut:], whole.slice(cut))]
    merged = accumulate(pa.binary(), twice, len(sets) + 1)
    assert merged.to_pylist() == whole.to_pylist()


def test_an_aggregate_is_text_that_names_its_class() -> None:
    text = f"2 * {LogSum.of('x')} + max(x)"
    assert text == "2 * own('tests.samples.aggregates:LogSum', x) + max(x)"
    split = decompose({"a": text, "b": LogSum.of("x"), "c": Spread.of("x")}, "t")
    assert [(one.kind, one.function) for one in split.partials] == [
        ("own", "tests.samples.aggregates:LogSum"),
        ("max", ""),
        ("own", "tests.samples.aggregates:Spread"),
    ]
    assembly = Assembly.from_decomposition(split)
    assert assembly.own == {
        "__penstock_own_0": ("own_x", "tests.samples.aggregates:LogSum"),
        "__penstock_own_1": ("own_x_2", "tests.samples.aggregates:Spread"),
    }
    scan = Scan(("t", "x"), fragments=Fragments(1000, "t", "us", (), split.partials))
    assert Scan.from_json(scan.to_json()) == scan


def test_a_condition_filters_the_values() -> None:
    split = decompose({"a": f"{Spread.of('x')} FILTER (WHERE y > 0)"}, "t")
    assert split.partials[0].expression == "CASE WHEN y > 0 THEN x END"
    split = decompose({"a": f"{WeightedMean.of('x', 'x + y')} FILTER (WHERE y > 0)"}, "t")
    assert split.partials[0].expression == (
        "NAMED_STRUCT('v0', CASE WHEN y > 0 THEN x END, 'v1', CASE WHEN y > 0 THEN x + y END)"
    )
    rows = pa.table({"x": pa.array([2**63 - 1, 1], pa.int64()), "y": pa.array([0, 1], pa.int64())})
    split = decompose({"a": f"{WeightedMean.of('y', 'x + 1')} FILTER (WHERE y > 0)"}, "t")
    values = evaluate(Expression.parse(split.partials[0].expression), rows).to_pylist()
    assert values == [{"v0": None, "v1": None}, {"v0": 1, "v1": 2}]


def test_an_aggregate_of_two_values_is_called_with_two() -> None:
    assert WeightedMean.of("x", "y") == "own('tests.samples.aggregates:WeightedMean', x, y)"
    for wrong in ((), ("x",), ("x", "y", "z")):
        with pytest.raises(InvalidUsageError, match="another number of values") as raised:
            WeightedMean.of(*wrong)
        assert raised.value.context["aggregate"] == "WeightedMean"


PAIRS = st.lists(st.tuples(*2 * [st.one_of(st.none(), st.integers(-999, 999))]), max_size=20)


@settings(max_examples=30)
@given(sets=st.lists(PAIRS, min_size=1, max_size=8), cut=st.integers(0, 200))
def test_rows_in_which_any_value_is_null_are_skipped(sets: list[list[Any]], cut: int) -> None:
    split = decompose({"a": WeightedMean.of("x", "y"), "n": Pairs.of("x", "y")}, "t")
    rows = [(slot, *pair) for slot, pairs in enumerate(sets, 1) for pair in pairs]
    slots, x, y = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    table = pa.table({"x": pa.array(x, pa.int64()), "y": pa.array(y, pa.int32())})
    structs = evaluate(Expression.parse(split.partials[0].expression), table).combine_chunks()
    accumulators = [new_accumulator(partial, structs.type) for partial in split.partials]
    for part in (slice(None, cut), slice(cut, None)):
        values = structs.slice(part.start or 0, len(slots[part]))
        for one in accumulators:
            one.add(np.asarray(slots[part], np.int32), np.zeros(len(values)), values, len(sets) + 1)
    means, counts = (
        finish_own(one.result(len(sets) + 1), partial.function).to_pylist()
        for one, partial in zip(accumulators, split.partials, strict=True)
    )
    known = [[pair for pair in pairs if None not in pair] for pairs in sets]
    assert counts == [len(pairs) for pairs in known]
    totals = [(sum(v * w for v, w in pairs), sum(w for _, w in pairs)) for pairs in known]
    assert means == [above / below if below else None for above, below in totals]


TWO = Partial("own", "x", "s", function="tests.samples.aggregates:WeightedMean")


def numbers(count: int) -> pa.DataType:
    return pa.struct([(f"v{number}", pa.float64()) for number in range(count)])


@pytest.mark.parametrize(
    ("partial", "kind"),
    [
        (PARTIAL, pa.string()),
        (PARTIAL, numbers(1)),
        (PARTIAL, numbers(2)),
        (TWO, pa.float64()),
        (TWO, numbers(1)),
        (TWO, numbers(3)),
        (TWO, pa.struct([("v0", pa.float64()), ("v1", pa.string())])),
        (TWO, pa.struct([("v0", pa.float64()), ("v1", numbers(2))])),
    ],
)
def test_other_values_than_a_number_for_each_parameter_are_refused(
    partial: Partial, kind: pa.DataType
) -> None:
    with pytest.raises(InvalidUsageError, match="cannot aggregate a column of this type"):
        new_accumulator(partial, kind)


@pytest.mark.parametrize(("partial", "given"), [(PARTIAL, 2), (TWO, 1), (TWO, 3)])
def test_no_kernel_runs_over_another_number_of_values(partial: Partial, given: int) -> None:
    accumulator = new_accumulator(partial, pa.float64() if partial is PARTIAL else numbers(2))
    values = pa.array([dict.fromkeys(numbers(given).names, 1.0)], numbers(given))
    with pytest.raises(InternalError, match="gets another number of values"):
        accumulator.add(np.ones(1, np.int32), np.zeros(1), values, 2)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("own('tests.samples.aggregates:Spread')", "not called with its name and values"),
        ("own(x, y)", "not called with its name and values"),
        ("own('tests.samples.aggregates:WeightedMean', x, *)", "not called with its name and values"),
        (
            "own('tests.samples.aggregates:Spread', x, y)",
            "another number of values than its add takes.*1: value",
        ),
        ("own('tests.samples.aggregates:WeightedMean', x)", "another number of values.*2: value, weight"),
        ("own('tests.samples.aggregates', x)", "not named by module and class"),
        ("own('tests.samples.aggregates:Spraed', x)", "cannot be imported"),
        ("own('tests.no_module:Spread', x)", "cannot be imported"),
        ("own('tests.samples.aggregates:math', x)", "not a user-defined aggregate"),
        ("own('penstock:Aggregate', x)", "not a user-defined aggregate"),
        ("own('tests.samples.aggregates:Spread', sum(x))", "contains another aggregate"),
        ("own(DISTINCT 'tests.samples.aggregates:Spread', x)", "do not support this aggregate"),
    ],
)
def test_a_wrong_call_is_an_error(text: str, fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        decompose({"a": text}, "t")


METHODS = {name: getattr(LogSum, name) for name in ("init", "add", "merge", "finish")}


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"words": 0}, "no size"),
        ({"words": 2.0}, "no size"),
        ({"words": None}, "no size"),
        ({"merge": None}, "has no merge"),
        ({"add": staticmethod(lambda state: None)}, "add with other arguments"),
        ({"add": staticmethod(lambda state, *values: None)}, "add with other arguments"),
        ({"add": staticmethod(lambda state, value, *, weight: None)}, "add with other arguments"),
        ({"finish": METHODS["finish"]}, "finish that is not a static method"),
    ],
)
def test_a_wrong_definition_is_an_error_at_once(change: dict[str, Any], fact: str) -> None:
    right = {"words": 2} | {name: staticmethod(method) for name, method in METHODS.items()}
    assert type("Right", (penstock.Aggregate,), right).__name__ == "Right"
    with pytest.raises(InvalidUsageError, match=fact) as raised:
        type("Wrong", (penstock.Aggregate,), right | change)
    assert raised.value.context["aggregate"] == "Wrong"
    apart = {
        "add": staticmethod(lambda state, value, /, weight: None),
        "merge": staticmethod(lambda state, other, /: None),
    }
    assert type("Apart", (penstock.Aggregate,), right | apart).__name__ == "Apart"
    with pytest.raises(InvalidUsageError, match="has no add"):
        type("Short", (penstock.Aggregate,), {name: one for name, one in right.items() if name != "add"})


def test_an_aggregate_that_workers_cannot_import_is_refused() -> None:
    class Local(LogSum):
        pass

    with pytest.raises(InvalidUsageError, match="cannot be imported by workers"):
        Local.of("x")


class Uncompilable(LogSum):
    """Asks for something that Numba does not know."""

    @staticmethod
    def add(state: Any, value: Any) -> None:
        state[0] = open(value)  # noqa: PTH123, SIM115  # the point of the test


def test_a_method_that_numba_refuses_is_an_error_with_its_reason() -> None:
    partial = Partial("own", "x", "s", function=f"{__name__}:Uncompilable")
    place = rf"method=add at={Path(__file__).name}:\d+ reason=.*open"
    with pytest.raises(InvalidUsageError, match=rf"cannot be compiled: .*{place}") as raised:
        new_accumulator(partial, pa.int64())
    assert "open" in str(raised.value.__cause__)


class Returnless(LogSum):
    """Returns no number."""

    @staticmethod
    def finish(state: Any) -> None:
        pass


def test_a_method_that_returns_no_number_is_named() -> None:
    with pytest.raises(InvalidUsageError, match=r"cannot be compiled: .*:Returnless method=finish .*reason="):
        finish_own(pa.array([b"\0" * 16], pa.binary()), f"{__name__}:Returnless")


class Outside(LogSum):
    """Writes behind its state."""

    words = 1

    @staticmethod
    def add(state: Any, value: Any) -> None:
        state[5] += value


class Picky(LogSum):
    """Takes no negative values."""

    @staticmethod
    def add(state: Any, value: Any) -> None:
        if value < 0:
            raise ValueError("negative")
        state[0] += value


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("Outside", r"index outside its state: aggregate=.*:Outside method=add words=1"),
        ("Picky", r"raised an error: aggregate=.*:Picky method=add error=ValueError"),
    ],
)
def test_an_error_of_a_method_names_it(name: str, fact: str) -> None:
    accumulator = new_accumulator(Partial("own", "x", "s", function=f"{__name__}:{name}"), pa.float64())
    with pytest.raises(InvalidUsageError, match=fact):
        accumulator.add(np.ones(1, np.int32), np.zeros(1, np.int64), pa.array([-1.0]), 2)


def test_states_of_another_size_are_refused() -> None:
    with pytest.raises(CorruptDataError, match="another size"):
        check_own_images(pa.array([b"\0" * 16], pa.binary()), PARTIAL.function)
    with pytest.raises(CorruptDataError, match="null"):
        check_own_images(pa.array([None], pa.binary()), PARTIAL.function)
