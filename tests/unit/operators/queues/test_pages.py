"""Paged memory as in UpStream §7.1."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.queues.pages import PagedMemory


def _free(memory: PagedMemory, *locations: int) -> None:
    memory.free(np.array(locations, np.int64))


def test_a_page_is_used_up_before_the_next_is_taken() -> None:
    memory = PagedMemory(4)
    assert memory.allocate(3).tolist() == [0, 1, 2]
    assert memory.pages_used == 1
    assert memory.allocate(2).tolist() == [3, 4]
    assert memory.pages_used == 2


def test_a_freed_location_goes_out_before_a_new_page() -> None:
    memory = PagedMemory(4)
    memory.allocate(8)
    _free(memory, 2)
    assert memory.allocate(1).tolist() == [2]
    assert memory.pages_used == 2


def test_a_page_goes_back_to_the_pool_with_its_last_location() -> None:
    memory = PagedMemory(2)
    memory.allocate(6)
    _free(memory, 2)
    assert memory.pages_used == 3
    _free(memory, 3)
    assert memory.pages_used == 2
    assert sorted(memory.allocate(2).tolist()) == [2, 3]
    assert memory.pages_used == 3


def test_the_next_available_page_may_go_back_to_the_pool() -> None:
    memory = PagedMemory(3)
    memory.allocate(4)
    _free(memory, 3)
    assert memory.pages_used == 1
    assert memory.allocate(1).tolist() == [3]


def test_no_more_pages_are_made_than_are_needed_twice_over() -> None:
    memory = PagedMemory(10)
    for _ in range(500):
        taken = memory.allocate(95)
        memory.free(taken)
    assert memory.pages_used == 0
    assert memory.page_capacity <= 20


def test_shrinking_keeps_what_is_in_use() -> None:
    memory = PagedMemory(2)
    taken = memory.allocate(200)
    memory.free(taken[20:])
    assert memory.shrink()
    assert memory.page_capacity == 20
    assert not memory.shrink()
    more = memory.allocate(200)
    assert len({*more.tolist(), *taken[:20].tolist()}) == 220


def test_a_page_in_use_at_the_end_keeps_the_others_before_it() -> None:
    memory = PagedMemory(2)
    taken = memory.allocate(200)
    memory.free(taken[:-1])
    assert not memory.shrink()
    assert memory.pages_used == 1


def test_shrinking_to_nothing_and_growing_again_works() -> None:
    memory = PagedMemory(2)
    memory.free(memory.allocate(100))
    assert memory.shrink()
    assert memory.page_capacity == 1
    assert len(set(memory.allocate(50).tolist())) == 50


def test_a_page_without_locations_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="page_rows=0"):
        PagedMemory(0)
