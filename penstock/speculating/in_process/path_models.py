"""Estimate the paths of procedures in Python from the paths of earlier transactions (H-Store §6.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from penstock.procedures.schema import TableSpec
from penstock.speculating.statements import Statement

__all__ = ["Access", "PathModel", "statement_of"]

Key = tuple[Any, ...]
_VERBS = {"read": True, "select": False, "delete": True}
"""True if a statement with this verb may access a row by its key.

Every change counts as a ``delete``, which changes all columns.
"""


class Access(NamedTuple):
    """An access of a procedure that Python runs; `key` is None if it may access any row."""

    verb: str
    table: str
    key: Key | None


def statement_of(verb: str, spec: TableSpec, *, has_key: bool = True) -> Statement:
    """Return the statement of an access, which may use all columns of the table.

    A read without a key becomes a ``select``, so that a table has few different statements.
    """
    has_key = has_key and _VERBS[verb]
    verb = verb if has_key or verb != "read" else "select"
    every = frozenset(spec.schema.names)
    writes = every if verb == "delete" else frozenset[str]()
    return Statement(verb, spec.name, every, writes, has_key)


class PathModel:
    """Learns the accesses of a procedure's latest transaction, and the attributes that give their keys.

    A key column is mapped to an attribute if both have had equal values in all transactions that took the
    same path (H-Store §5.3.1). If a column is mapped to no attribute, the key is unknown.
    """

    def __init__(self) -> None:
        self._shape: tuple[tuple[str, str], ...] | None = None
        self._sources: list[list[set[str]]] = []

    def learn(self, event: Mapping[str, Any], path: Iterable[Access]) -> None:
        """Learn the path of a transaction that has run."""
        path = list(path)
        shape = tuple((one.verb, one.table) for one in path)
        sources = [
            [{name for name, value in event.items() if value == part} for part in one.key or ()]
            for one in path
        ]
        if shape == self._shape:
            for known, found in zip(self._sources, sources, strict=True):
                for mine, others in zip(known, found, strict=True):
                    mine.intersection_update(others)
        else:
            self._shape, self._sources = shape, sources

    @property
    def has_learned(self) -> bool:
        """Return whether the model has learned from a transaction."""
        return self._shape is not None

    def estimate(self, event: Mapping[str, Any]) -> Iterator[Access]:
        """Yield the accesses that the transaction of an event is expected to make."""
        for (verb, table), columns in zip(self._shape or (), self._sources, strict=True):
            known = all(columns) and _VERBS[verb]
            key = tuple(event[min(names)] for names in columns) if known else None
            yield Access(verb, table, None if key is not None and None in key else key)
