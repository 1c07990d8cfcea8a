"""Work that several threads do comes out in the order in which it was given."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.windows.map_ordered import map_ordered


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_results_come_in_the_order_of_items(count: int, threads: int) -> None:
    later = threading.Event()

    def work(item: int) -> int:
        # The first one ends last, where others can begin.
        if item == 0 and threads > 1 and count > 1:
            assert later.wait(30)
        if item == 1:
            later.set()
        return item * item

    assert list(map_ordered(work, range(count), threads)) == [item * item for item in range(count)]


def test_a_single_item_is_left_to_the_caller() -> None:
    assert list(map_ordered(lambda _: threading.get_ident(), [0], 2)) == [threading.get_ident()]


def test_few_items_are_drawn_ahead() -> None:
    drawn = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        for item in range(100):
            drawn += 1
            yield item

    for done, _ in enumerate(map_ordered(abs, items(), 2)):
        assert drawn <= done + 4


def test_an_error_comes_in_its_turn() -> None:
    found = map_ordered(lambda item: 1 // (3 - item), range(9), 2)
    assert [next(found) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
