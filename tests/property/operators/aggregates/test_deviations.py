"""Deviations lose no precision if the mean is much larger; NaN and infinities are treated as in Spark."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpointing.p_unit import PUnit
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.aggregates.moments import from_settings, to_settings
from penstock.operators.scan.fragments import Fragmenter, merge_fragments
from penstock.operators.scan.spec import PANE, Fragments
from penstock.operators.scheduling.policy import Policy
from penstock.windows.append.sliding import slide
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.layout import ENTRY_PANE, WindowLayout
from penstock.windows.spec import WindowSpec
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals

SPLIT = decompose({"spread": "stddev(n)"}, "t").add_count()
FRAGMENTS = Fragments(1, "t", "ms", (), SPLIT.partials)
ASSEMBLY = Assembly.from_decomposition(SPLIT)
FAR = st.sampled_from([0.0, 1e9, -1e15, 1.7e18])
NEAR = st.sampled_from([1e-3, 1.0, 1e4])


def entries_of(values: list[Any], panes: list[int], kind: pa.DataType) -> pa.RecordBatch:
    """Return values folded by pane."""
    types = {"t": pa.int64(), **{one.name: kind for one in SPLIT.partials}}
    fragmenter = Fragmenter(FRAGMENTS, types)
    column = pa.array(values, kind)
    given_ones = [None if one.expression == "*" else column for one in SPLIT.partials]
    fragmenter.add(pa.array(panes, pa.int64()), [], given_ones)
    return fragmenter.finish()


def deviation(made: pa.RecordBatch) -> list[float | None]:
    """Return the deviations of partials."""
    (parts,) = ASSEMBLY.deviations.values()
    (name,) = ASSEMBLY.deviations
    found: list[float | None] = ASSEMBLY.compute(name, [made[part] for part in parts]).to_pylist()
    return found


def about(values: list[Any], step: float = 0.0) -> Any:
    """Return the approximate deviation of a sample."""
    return None if len(values) < 2 else pytest.approx(exact(values), rel=1e-12, abs=step)


def exact(values: list[Any]) -> float:
    """Return the deviation of a sample, rounded once."""
    known = [Fraction(value) for value in values]
    mean = sum(known) / len(known)
    return math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))


@settings(deadline=None)
@given(
    values=st.lists(st.lists(st.floats(-1, 1), max_size=9), min_size=1, max_size=12),
    far=FAR,
    near=NEAR,
    single=st.booleans(),
    size=st.integers(1, 6),
)
def test_deviations_of_floats_lose_no_more_than_their_values_have(
    values: list[list[float]], far: float, near: float, single: bool, size: int
) -> None:
    kind = pa.float32() if single else pa.float64()
    panes = [[far + near * value for value in some] for some in values]
    if single:
        panes = [[float(np.float32(value)) for value in some] for some in panes]
    flat = [(value, pane) for pane, some in enumerate(panes) for value in some]
    if not flat:
        return
    made = entries_of([value for value, _ in flat], [pane for _, pane in flat], kind)
    # A pane's mean is rounded to a step of its values; within a pane nothing is.
    step = 4 * math.ulp(abs(far) + near)
    there = [some for some in panes if some]
    assert deviation(made) == [about(some) for some in there]
    low = np.maximum(np.arange(len(there)) - size + 1, 0)
    high = np.arange(len(there)) + 1
    windows = slide(SPLIT.partials, {}, made[PANE].to_numpy(), made, low, high, closing=True)
    for found, begin, end in zip(deviation(windows), low, high, strict=True):
        assert found == about([value for some in there[begin:end] for value in some], step)
    whole = merge_fragments(FRAGMENTS, [made.set_column(0, PANE, pa.array([0] * len(there)))])
    assert deviation(whole) == [about([value for some in there for value in some], step)]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64()])
def test_equal_values_deviate_by_nothing_and_nulls_do_not_count(kind: pa.DataType) -> None:
    value: Any = 2.0**70 / 3 if pa.types.is_floating(kind) else 2 ** (kind.bit_width - 1) - 1
    made = entries_of([None, value, value, None, value, None], [0, 0, 0, 1, 2, 2], kind)
    assert deviation(made) == [0.0, None, None]
    every = np.zeros(1, np.int64)
    whole = slide(SPLIT.partials, {}, np.arange(3), made, every, every + 3, closing=True)
    assert deviation(whole) == [0.0]


def test_what_is_no_number_is_as_in_spark() -> None:
    inf, nan = math.inf, math.nan
    cases = [[1.0, nan], [1.0, inf], [inf, inf], [-inf, inf], [1e200, -1e200], [1e200, 1e200]]
    values = [value for case in cases for value in case]
    made = entries_of(values, [at // 2 for at in range(len(values))], pa.float64())
    assert [str(one) for one in deviation(made)] == ["nan", "nan", "nan", "nan", "inf", "0.0"]


def test_means_that_drift_far_over_many_windows_leave_deviations_as_they_are() -> None:
    count, size = 20_000, 60
    generator = np.random.default_rng(5)
    values = np.arange(count) * 10**14 + generator.integers(-5, 5, count)
    made = entries_of(values.tolist(), list(range(count)), pa.int64())
    low = np.maximum(np.arange(count) - size + 1, 0)
    windows = slide(SPLIT.partials, {}, np.arange(count), made, low, np.arange(count) + 1, closing=True)
    found = deviation(windows)
    for at in range(1, count, 997):
        assert found[at] == pytest.approx(exact(values[low[at] : at + 1].tolist()), rel=1e-13)


def earlier(block: pa.RecordBatch, squares: list[float]) -> pa.RecordBatch:
    """Return entries as an earlier version stored them."""
    at = block.schema.get_field_index("m2_n")
    return block.set_column(at, "sum_of_squares_n", pa.array(squares))


@pytest.mark.parametrize("mode", ["append", "lazy"])
def test_states_with_sums_of_squares_are_read(mode: str) -> None:
    kinds = tuple(pa.float64() if one.kind == "m2" else pa.int64() for one in SPLIT.partials)
    layout = WindowLayout(
        WindowSpec(2, 1), pa.schema([]), SPLIT.partials, kinds, {}, str(SPLIT.rows), assembly=ASSEMBLY
    )
    made = entries_of([1, 2, 4, 8], [0, 0, 1, 1], pa.int64())
    arriving = made.rename_columns([ENTRY_PANE, *made.schema.names[1:]])
    squares = [5.0, 80.0]
    if mode == "append":
        state = TimePanes(layout)
        state.run([arriving], 1)
        units = [
            PUnit(unit.kind, unit.meta, {"entries": earlier(unit.blocks["entries"], squares)})
            for unit in state.snapshot()
        ]
        again = TimePanes(layout)
        again.restore(units)
        (windows,) = again.run([], 2).windows
    else:
        queue = UpdateWindows(layout, WindowMode.LAZY, Policy.FIFO)
        queue.enqueue(WindowArrivals([arriving], 2), 0)
        units = [
            PUnit(unit.kind, unit.meta, dict(unit.blocks) | _earlier_rows(unit, squares))
            for unit in queue.snapshot()
        ]
        queue = UpdateWindows(layout, WindowMode.LAZY, Policy.FIFO)
        queue.restore(units)
        windows = queue.dequeue(1, 0).rows
    assert windows[next(iter(ASSEMBLY.deviations))].to_pylist() == [pytest.approx(exact([1, 2, 4, 8]))]


def _earlier_rows(unit: PUnit, squares: list[float]) -> dict[str, pa.RecordBatch]:
    return {"rows": earlier(unit.blocks["rows"], squares)} if "rows" in unit.blocks else {}


def test_settings_name_partials_as_earlier_versions_did() -> None:
    stored = [to_settings(one) for one in SPLIT.partials]
    assert ["sum_of_squares", "n", "sum_of_squares_n"] in stored
    assert tuple(map(from_settings, stored)) == SPLIT.partials
