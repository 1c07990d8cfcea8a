"""Conformance tests of user-defined operators and aggregates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from penstock.checkpointing import PUnit, decode, encode
from penstock.operators.aggregates.own import Aggregate
from penstock.operators.aggregates.own_states import OwnStates, finish_own
from penstock.operators.own.abc import Operator, output_schema
from penstock.operators.own.state import OperatorState, call, check_results

__all__ = ["AggregateTests", "OperatorTests"]

_HOUR_US = 3_600_000_000


class OperatorTests:
    """The contract of a user-defined operator: everything that it remembers is in its tables."""

    @pytest.fixture
    def operator(self) -> Operator:
        """Return the operator that is passed to `penstock.apply`."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    @pytest.fixture
    def batches(self) -> Sequence[pa.Table]:
        """Return the rows of some micro-batches, at least two."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    def test_a_restart_before_each_micro_batch_changes_nothing(
        self, operator: Operator, batches: Sequence[pa.Table]
    ) -> None:
        """Compare an object that keeps running with an object that is restored from stored tables."""
        ongoing, units, hour = OperatorState(operator), list[PUnit](), count()
        for batch in batches:
            clock = partial(int, _HOUR_US * next(hour))
            restarted = OperatorState(operator)
            restarted.restore(units)
            results = [_run(one, batch, clock) for one in (ongoing, restarted)]
            assert results[0] == results[1]
            units.append(decode(bytes(encode(ongoing.delta())), "memory"))
            restarted.delta()
            assert dict(restarted.tables) == dict(ongoing.tables)

    def test_a_micro_batch_that_runs_again_has_the_same_results(
        self, operator: Operator, batches: Sequence[pa.Table]
    ) -> None:
        """Run the last micro-batch twice from the same tables."""
        state = OperatorState(operator)
        for batch in batches[:-1]:
            _run(state, batch, lambda: 0)
        unit = state.delta()
        results = []
        for _ in range(2):
            again = OperatorState(operator)
            again.restore([unit])
            results.append(_run(again, batches[-1], lambda: _HOUR_US))
        assert results[0] == results[1]

    def test_a_micro_batch_without_rows_has_the_columns_of_the_output(
        self, operator: Operator, batches: Sequence[pa.Table]
    ) -> None:
        """Run an operator over no rows."""
        _run(OperatorState(operator), batches[0].slice(0, 0), lambda: 0)


def _run(state: OperatorState, batch: pa.Table, clock: Callable[[], int]) -> pa.Table:
    results = call(state.operator, "run", batch, clock)
    return check_results(state.operator, results, output_schema(state.operator))


class AggregateTests:
    """The contract of a user-defined aggregate: results do not depend on the split of values into states."""

    values: Sequence[float | tuple[float, ...]] = (3.0, 1.0, 2.0, 2.0, 8.0, 5.5)
    """At least three values to aggregate. They are tuples if `add` takes several values."""

    @pytest.fixture
    def aggregate(self) -> type[Aggregate]:
        """Return the aggregate."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    def test_any_split_gives_the_same_result(self, aggregate: type[Aggregate]) -> None:
        """Split the values in three, merge the parts' states, and compare with the state of all values."""
        values = list(self.values)
        expected = _finish(aggregate, _state(aggregate, values))
        for first in range(len(values) + 1):
            for second in range(first, len(values) + 1):
                parts = [values[:first], values[first:second], values[second:]]
                for order in (parts, parts[::-1]):
                    states = [_state(aggregate, part) for part in order]
                    right = states[1].copy()
                    _call(aggregate, "merge", right, states[2].copy())
                    _call(aggregate, "merge", states[0], right)
                    assert _same(_finish(aggregate, states[0]), expected)

    def test_an_empty_state_changes_nothing(self, aggregate: type[Aggregate]) -> None:
        """Merge an empty state into a filled state, and a filled state into an empty state."""
        whole = _state(aggregate, self.values)
        merged, empty = whole.copy(), _state(aggregate, ())
        _call(aggregate, "merge", merged, empty.copy())
        assert _same(_finish(aggregate, merged), _finish(aggregate, whole))
        _call(aggregate, "merge", empty, whole.copy())
        assert _same(_finish(aggregate, empty), _finish(aggregate, whole))

    def test_the_compiled_methods_give_the_result_of_plain_python(self, aggregate: type[Aggregate]) -> None:
        """Compile the aggregate as windows do, and compare its result with the result of plain Python."""
        reference = f"{aggregate.__module__}:{aggregate.__qualname__}"
        rows = [value if isinstance(value, tuple) else (value,) for value in self.values]
        columns = [pa.array(column, pa.float64()) for column in zip(*rows, strict=True)]
        values = pa.StructArray.from_arrays(columns, [f"v{at}" for at in range(len(columns))])
        values = columns[0] if len(columns) == 1 else values
        states = OwnStates(values.type, reference)
        slots = np.ones(len(rows), np.int32)
        states.add(slots, np.zeros(len(rows), np.int64), values, 2)
        (result,) = finish_own(states.result(2), reference).to_pylist()
        assert _same(result, _finish(aggregate, _state(aggregate, self.values)))

    def test_merging_leaves_the_other_state_as_it_is(self, aggregate: type[Aggregate]) -> None:
        """Merge, and check that the second argument is unchanged."""
        one, other = _state(aggregate, self.values[:2]), _state(aggregate, self.values[2:])
        before = other.copy()
        _call(aggregate, "merge", one, other)
        np.testing.assert_array_equal(other, before)


def _call(aggregate: type[Aggregate], method: str, *arguments: object) -> object:
    """Call a method as plain Python."""
    return getattr(aggregate, method)(*arguments)


def _state(
    aggregate: type[Aggregate], values: Sequence[float | tuple[float, ...]]
) -> npt.NDArray[np.float64]:
    state = np.zeros(aggregate.words)
    _call(aggregate, "init", state)
    for value in values:
        _call(aggregate, "add", state, *(value if isinstance(value, tuple) else (value,)))
    return state


def _finish(aggregate: type[Aggregate], state: object) -> float | None:
    result = _call(aggregate, "finish", state)
    return None if result is None else float(result)  # type: ignore[arg-type]  # users' code returns a number


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
