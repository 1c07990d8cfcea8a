"""Sets of a procedure that Python runs."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidUsageError

__all__ = ["SET_HINT", "PlainSet"]

SET_HINT = "write s = set(), s.add(x), x in s, len(s)"


class PlainSet:
    """A set in a procedure: it has no order, and its elements are of one kind.

    Parameters
    ----------
    check : callable
        Rejects the transaction if a value is null.
    """

    def __init__(self, check: Any) -> None:
        self._check = check
        self._elements: set[Any] = set()

    def add(self, element: Any) -> None:
        """Add an element."""
        self._elements.add(self._checked(element))

    def __contains__(self, element: Any) -> bool:
        return self._checked(element) in self._elements

    def __len__(self) -> int:
        return len(self._elements)

    def _checked(self, element: Any) -> Any:
        self._check(element)
        kinds = {type(one) for one in (element, *self._elements)}
        if float in kinds or len(kinds) > 1:
            raise InvalidUsageError("a set has elements of one kind, and no floats", hint=SET_HINT)
        return element
