"""Vector clocks are immutable, and are ordered by their components."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptDataError, InvalidUsageError
from tests.models.protocol import VectorClock

CLOCKS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)).map(VectorClock)


def test_a_missing_component_is_0() -> None:
    clock = VectorClock({"a": 2})
    assert (clock["a"], clock["b"]) == (2, 0)


def test_the_earlier_and_the_later_of_two_clocks_are_taken_by_component() -> None:
    assert VectorClock({"a": 2, "b": 5}).meet({"b": 3, "c": 4}) == {"b": 3}
    assert VectorClock({"a": 2, "b": 5}).merge({"b": 3, "c": 4}) == {"a": 2, "b": 5, "c": 4}


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ({"a": 1}, {"a": 1, "b": 0}, "equal"),
        ({"a": 1}, {"a": 2}, "before"),
        ({"a": 1, "b": 1}, {"b": 1}, "after"),
        ({"a": 1}, {"b": 1}, "concurrent"),
    ],
)
def test_clocks_are_partly_ordered(left: dict[str, int], right: dict[str, int], order: str) -> None:
    assert VectorClock(left).compare(VectorClock(right)) == order


@given(CLOCKS, CLOCKS, CLOCKS)
def test_merge_is_the_least_that_dominates_both(a: VectorClock, b: VectorClock, c: VectorClock) -> None:
    assert a.merge(b).dominates(a)
    assert a.merge(b) == b.merge(a)
    assert not (c.dominates(a) and c.dominates(b)) or c.dominates(a.merge(b))


def test_a_component_moves_on_in_a_new_clock_and_never_back() -> None:
    clock = VectorClock({"a": 2})
    assert clock.advanced("a", 4) == {"a": 4}
    assert clock == {"a": 2}
    with pytest.raises(InvalidUsageError, match="does not go back"):
        clock.advanced("a", 1)
    with pytest.raises(InvalidUsageError, match="counts from 0"):
        VectorClock({"a": -1})


@given(CLOCKS)
def test_a_clock_survives_json(clock: VectorClock) -> None:
    back = VectorClock.from_json(json.loads(json.dumps(clock.to_json())))
    assert back == clock
    assert hash(back) == hash(clock)


@pytest.mark.parametrize("fields", [None, [], {"a": -1}, {"a": "1"}, {"a": True}, {1: 1}])
def test_what_is_no_clock_is_refused(fields: object) -> None:
    with pytest.raises(CorruptDataError):
        VectorClock.from_json(fields)
