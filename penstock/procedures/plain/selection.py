"""Find the rows of an index by sorting; this is the reference in tests of the kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Protocol

from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.operations import NULL
from penstock.procedures.plain.words import NO_BOUND, RejectedError
from penstock.procedures.schema import Column, IndexSpec, Kind, TableSpec

__all__ = ["PlainSelection", "find_index"]

Row = dict[str, Any]


class Table(Protocol):
    """Finds the rows of a table by their keys; `rows` has None for a key without a row."""

    spec: TableSpec
    rows: dict[tuple[Any, ...], Row | None]

    def get(self, key: Any) -> Any:
        """Return the row of a key."""


def find_index(spec: TableSpec, columns: Sequence[str]) -> IndexSpec:
    """Return the index of a table that has these columns.

    Raises
    ------
    InvalidUsageError
        If the table has no such index.
    """
    for index in spec.indexes:
        if index.columns == tuple(columns):
            return index
    raise InvalidUsageError(
        "the table has no such index",
        table=spec.name,
        columns=tuple(columns),
        hint=f"declare it: table(..., indexes=[{_show(columns)}])",
    )


def _show(columns: Sequence[str]) -> str:
    return repr(columns[0]) if len(columns) == 1 else repr(tuple(columns))


class PlainSelection:
    """The rows of an index, or of a range of it. A loop runs over the rows that existed when it began.

    Parameters
    ----------
    table : PlainTable
        The table that has the index.
    index : IndexSpec
        The index that orders the rows.
    equal : tuple
        The values of the first columns.
    low, high : object, optional
        The bounds of the next column; `high` is excluded. None means no bound.
    """

    def __init__(
        self, table: Table, index: IndexSpec, equal: tuple[Any, ...] = (), low: Any = None, high: Any = None
    ) -> None:
        self._table = table
        self._index = index
        self._equal = equal
        self._low = low
        self._high = high

    def __getitem__(self, key: Any) -> PlainSelection:
        *parts, last = key if isinstance(key, tuple) else (key,)
        bounds = [last.start, last.stop] if isinstance(last, slice) else [None, None]
        finite = [bound for bound in bounds if bound is not None]
        if not isinstance(last, slice):
            parts.append(last)
        if None in parts or NO_BOUND in finite:
            raise RejectedError(NULL)
        columns = self._index.words[: len(parts)] + self._index.words[len(parts) : len(parts) + 1] * len(
            finite
        )
        if len(parts) + bool(finite) > len(self._index.columns):
            raise InvalidUsageError("an index has fewer columns", index=self._index.columns)
        for column, value in zip(columns, [*parts, *finite], strict=True):
            _check_kind(column, value)
        return PlainSelection(self._table, self._index, tuple(parts), *bounds)

    def _keys(self) -> list[tuple[Any, ...]]:
        width = len(self._equal)
        equal = self._words(self._equal, 0)
        low, high = (
            [] if bound is None else self._words([bound], width) for bound in (self._low, self._high)
        )
        matches = []
        for key, row in self._table.rows.items():
            if row is None or any(row[name] is None for name in self._index.columns):
                continue
            words = self._words([row[word.name] for word in self._index.words], 0)
            at = words[width : width + 1]
            if words[:width] == equal and (not low or at >= low) and (not high or at < high):
                matches.append((words, key))
        return [key for _, key in sorted(matches)]

    def _words(self, values: Sequence[Any], begin: int) -> list[Any]:
        return [
            _word(column, value) for column, value in zip(self._index.words[begin:], values, strict=False)
        ]

    def _rows(self, keys: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        for key in keys:
            row = self._table.get(key)
            if row is not None:
                yield row

    def __iter__(self) -> Iterator[Any]:
        return self._rows(self._keys())

    def __reversed__(self) -> Iterator[Any]:
        return self._rows(self._keys()[::-1])

    def __len__(self) -> int:
        return len(self._keys())

    def first(self, *count: int) -> Any:
        """Return the first row or None; with `count`, the first rows."""
        return self._some(iter(self), count)

    def last(self, *count: int) -> Any:
        """Return the last row or None; with `count`, the last rows, the last one first."""
        return self._some(reversed(self), count)

    def _some(self, rows: Iterator[Any], count: tuple[Any, ...]) -> Any:
        if not count:
            return next(rows, None)
        if count[0] is None:
            raise RejectedError(NULL)
        return _limit(rows, count[0])


def _limit(rows: Iterator[Any], count: int) -> Iterator[Any]:
    for _, row in zip(range(count), rows, strict=False):
        yield row


def _check_kind(column: Column, value: Any) -> None:
    kinds = {Kind.INTEGER: (int,), Kind.FLOAT: (float, int), Kind.BOOLEAN: (bool,), Kind.TEXT: (str,)}
    if type(value) not in kinds.get(column.kind, (bytes if column.kind is Kind.BINARY else Decimal,)):
        raise InvalidUsageError(
            "a value has another kind than its column", column=column.name, kind=str(column.kind)
        )


def _word(column: Column, value: Any) -> Any:
    """Return a sort key with Spark's order: texts by their bytes, NaN after all floats."""
    if column.kind is Kind.TEXT:
        return value.encode("utf-8", "surrogatepass")
    if column.kind is Kind.FLOAT:
        return (math.isnan(value), 0.0 if math.isnan(value) else float(value))
    return value
