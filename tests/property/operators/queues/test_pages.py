"""Paged memory equals lists, and never hands out a location twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.queues.pages import PagedMemory
from tests.oracles.naive import NaivePages

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(0, 14)),
        st.tuples(st.just("free"), st.randoms(use_true_random=False)),
        st.tuples(st.just("empty"), st.randoms(use_true_random=False)),
        st.tuples(st.just("shrink"), st.none()),
    ),
    max_size=30,
)


@given(st.integers(1, 5), STEPS)
def test_locations_follow_the_source_and_are_unique(page_rows: int, steps: list[tuple[str, Any]]) -> None:
    memory, model = PagedMemory(page_rows), NaivePages(page_rows)
    held: list[int] = []
    for step, value in steps:
        before = memory.pages_used
        room = sum(map(len, model.available.values()))
        if step == "allocate":
            got = memory.allocate(value).tolist()
            assert got == [model.allocate() for _ in range(value)]
            assert not set(got) & set(held)
            assert len(set(got)) == value
            held += got
            # Locations of pages in use go first.
            assert memory.pages_used - before == max(-(-(value - room) // page_rows), 0)
        elif step == "shrink":
            capacity = memory.page_capacity
            assert memory.shrink() == (memory.page_capacity < capacity)
        else:
            value.shuffle(held)
            count = len(held) if step == "empty" else value.randint(0, len(held))
            given_back, held = held[:count], held[count:]
            memory.free(np.array(given_back, np.int64))
            for location in given_back:
                model.free(location)
        pages = {location // page_rows for location in held}
        assert memory.pages_used == len(pages) == len(model.available)
        assert memory.locations_used == len(held)
        assert all(location < memory.capacity for location in held)
