"""The order of the procedures of a workflow (S-Store §2.2)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

__all__ = ["CycleError", "sort_members"]

T = TypeVar("T", bound=Hashable)


class CycleError(Exception):
    """Members form a cycle. The only argument lists them, with the first member again at the end."""


def sort_members(members: Sequence[T], after: Mapping[T, Iterable[T]]) -> list[T]:
    """Sort members so that each follows the members that `after` gives for it; ties keep their order.

    Raises
    ------
    CycleError
        If there is no such order.
    """
    remaining = dict.fromkeys(members)
    order: list[T] = []
    while remaining:
        free = next(
            (name for name in remaining if not any(member in remaining for member in after.get(name, ()))),
            None,
        )
        if free is None:
            raise CycleError(_cycle(remaining, after))
        order.append(free)
        del remaining[free]
    return order


def _cycle(remaining: Mapping[T, None], after: Mapping[T, Iterable[T]]) -> list[T]:
    """Return a cycle; there is one, because each remaining member follows another remaining member."""
    path = [next(iter(remaining))]
    while path[-1] not in path[:-1]:
        path.append(next(member for member in after[path[-1]] if member in remaining))
    return path[path.index(path[-1]) :][::-1]
