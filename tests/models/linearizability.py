"""A check that a history of concurrent calls could be that of calls one after the other.

A history is linearizable if each call seems to happen at one moment between its begin and its end, so that
the results are those of calls in the order of these moments (Herlihy and Wing 1990). The check searches such
an order, as Wing and Gong do (1993), and remembers which sets of calls with which state it has tried (Lowe
2017). A history is linearizable if it is for each key alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Operation", "Step", "is_linearizable", "keys_that_are_not_linearizable"]

Step = Callable[[Any, Any], tuple[Any, Hashable]]
"""Takes the state of a key and what was asked; returns the result and the next state."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of a client.

    Attributes
    ----------
    key : hashable
        The key that it reads or changes.
    asked : Any
        The argument of the model's step.
    begin, end : float
        The times of call and return. The end is infinite if it did not return: then it may have happened at
        any time, or never, and `result` means nothing.
    result : Any
        The answer.
    """

    key: Hashable
    asked: Any
    begin: float
    end: float
    result: Any = None


def keys_that_are_not_linearizable(
    history: Iterable[Operation], step: Step, first: Hashable = None
) -> list[Hashable]:
    """Return the keys whose operations could not have happened one after the other."""
    by_key: dict[Hashable, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    return [key for key, operations in by_key.items() if not is_linearizable(operations, step, first)]


def is_linearizable(operations: Sequence[Operation], step: Step, first: Hashable = None) -> bool:
    """Return whether operations on one key could have happened one after the other."""
    ordered = sorted(operations, key=lambda one: one.begin)
    finished = sum(1 << place for place, one in enumerate(ordered) if one.end < math.inf)
    tried: set[tuple[int, Hashable]] = set()
    open_: list[tuple[int, Hashable]] = [(0, first)]
    while open_:
        done, state = open_.pop()
        if done & finished == finished:
            return True
        for place in _next(ordered, done):
            one = ordered[place]
            result, after = step(state, one.asked)
            found = (done | 1 << place, after)
            if (result == one.result or one.end == math.inf) and found not in tried:
                tried.add(found)
                open_.append(found)
    return False


def _next(ordered: Sequence[Operation], done: int) -> list[int]:
    """Return the operations that may be next: none that is not done has ended before they began."""
    places, earliest_end = [], math.inf
    first = (~done & (done + 1)).bit_length() - 1
    for place in range(first, len(ordered)):
        if done >> place & 1:
            continue
        if ordered[place].begin > earliest_end:
            break
        places.append(place)
        earliest_end = min(earliest_end, ordered[place].end)
    return places
