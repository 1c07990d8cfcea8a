"""Several pieces of work at once, whose results come in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

__all__ = ["map_ordered"]

A = TypeVar("A")
B = TypeVar("B")


def map_ordered(work: Callable[[A], B], items: Iterable[A], threads: int) -> Iterator[B]:
    """Yield what becomes of items, in their order.

    Parameters
    ----------
    work : callable
        What is done with each of them, by one of the threads; with a single item by the caller's own.
    items : iterable
        Drawn by the caller's thread, at most one more of them ahead than there are threads.
    threads : int
        How many work.

    Raises
    ------
    Exception
        What `work` raises, in its item's turn, once what was begun after it has ended.
    """
    items = iter(items)
    begin = list(islice(items, 2))
    if len(begin) < 2 or threads < 2:
        yield from map(work, chain(begin, items))
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[B]] = deque()
        for item in chain(begin, items):
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
