"""Vector clocks: how far each of several counters has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from penstock.errors import CorruptDataError, InvalidUsageError

__all__ = ["Order", "VectorClock"]

Order = Literal["before", "equal", "after", "concurrent"]


class VectorClock(Mapping[str, int]):
    """An immutable vector of counters by name; each counts from 0 and only goes up.

    A component that is not there reads as 0.

    Parameters
    ----------
    components : mapping of str to int, optional
        The counters, none negative.

    Raises
    ------
    InvalidUsageError
        If a counter is negative.

    Notes
    -----
    The *VC* of (Scabbard §3.1). What the names mean is the business of `lineage`.
    """

    __slots__ = ("_components",)

    def __init__(self, components: Mapping[str, int] | None = None) -> None:
        self._components = dict(components or {})
        for name, value in self._components.items():
            if value < 0:
                raise InvalidUsageError("a vector clock counts from 0", component=name, value=value)

    def __getitem__(self, name: str) -> int:
        return self._components.get(name, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._components

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)

    def __hash__(self) -> int:
        return hash(frozenset(self._components.items()))

    def __repr__(self) -> str:
        return f"VectorClock({self._components!r})"

    def merge(self, other: Mapping[str, int]) -> VectorClock:
        """Return the later of both, component by component."""
        both = {**other, **self}
        return VectorClock({name: max(at, other[name]) if name in other else at for name, at in both.items()})

    def meet(self, other: Mapping[str, int]) -> VectorClock:
        """Return the earlier of both, component by component."""
        return VectorClock({name: min(at, other[name]) for name, at in self.items() if name in other})

    def dominates(self, other: Mapping[str, int]) -> bool:
        """Return whether no component of `other` is later than here."""
        return all(self[name] >= value for name, value in other.items())

    def compare(self, other: VectorClock) -> Order:
        """Return where this clock stands: before, equal to, after `other`, or concurrent with it."""
        match self.dominates(other), other.dominates(self):
            case True, True:
                return "equal"
            case True, False:
                return "after"
            case False, True:
                return "before"
        return "concurrent"

    def advanced(self, name: str, value: int) -> VectorClock:
        """Return this clock with one component moved on to `value`.

        Raises
        ------
        InvalidUsageError
            If that component is already later.
        """
        if value < self[name]:
            raise InvalidUsageError(
                "a vector clock does not go back", component=name, at=self[name], to=value
            )
        return VectorClock({**self._components, name: value})

    def to_json(self) -> dict[str, int]:
        """Return a JSON object, with its names in order."""
        return dict(sorted(self._components.items()))

    @classmethod
    def from_json(cls, fields: object) -> VectorClock:
        """Return the clock that `to_json` wrote.

        Raises
        ------
        CorruptDataError
            If `fields` is no object of counters.
        """
        if not isinstance(fields, dict) or not all(
            isinstance(name, str) and type(value) is int and value >= 0 for name, value in fields.items()
        ):
            raise CorruptDataError("this is no vector clock", kind=type(fields).__name__)
        return cls(fields)
