"""Run work in threads and yield the results in order."""

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
    """Yield the results of work on items, in order.

    Parameters
    ----------
    work : callable
        Function for one item, called in one of the threads, or in the caller's thread if there is only one
        item.
    items : iterable
        The items. The caller's thread consumes them, at most ``threads + 1`` items ahead of the results.
    threads : int
        Number of threads.

    Raises
    ------
    Exception
        If `work` fails for an item. The error is raised in place of the item's result, after all started work
        has ended.
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
