"""Tables that record traces, and that find the rows of an index without a scan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from penstock.procedures.plain.selection import PlainSelection
from penstock.procedures.plain.tables import PlainTable
from penstock.procedures.schema import IndexSpec, TableSpec

__all__ = ["GroupedSelection", "GroupedTable", "Key", "Row"]

Key = tuple[Any, ...]
Row = dict[str, Any]


class GroupedTable(PlainTable):
    """A table that groups its keys by the columns of look-ups.

    Parameters
    ----------
    spec : TableSpec
        The table.
    rows : iterable of dict
        The rows that the table has at first.
    journal : list
        See `PlainTable`.

    Attributes
    ----------
    moved : set of tuple
        The keys of changed rows, whose groups may be out of date. Code that changes a row must add the row's
        key to this set.
    """

    def __init__(self, spec: TableSpec, rows: Iterable[Row], journal: list[Any]) -> None:
        super().__init__(spec, journal)
        self.rows = {tuple(row[name] for name in spec.key): row for row in rows}
        self.moved: set[Key] = set()
        self._groups: dict[tuple[str, ...], dict[Key, set[Key]]] = {}
        self._group_of: dict[tuple[str, ...], dict[Key, Key]] = {}

    def note_look_up(self, index: IndexSpec, columns: tuple[str, ...], key: Key) -> None:
        """Record a look-up by the first `columns` of an index; `key` has None for each unknown value."""
        raise NotImplementedError  # subclasses record look-ups in their own form

    def peek(self, key: Key) -> Any:
        """Return a row without recording it; None if there is none."""
        return super().get(key)

    def group(self, columns: tuple[str, ...], values: Key) -> set[Key]:
        """Return the keys of all rows with these values in the columns; other keys may be among them."""
        if columns not in self._groups:
            self._groups[columns], self._group_of[columns] = defaultdict(set), {}
            self._arrange(columns, self.rows)
        for one in self._groups:
            self._arrange(one, self.moved)
        self.moved.clear()
        return self._groups[columns].get(values, set())

    def _arrange(self, columns: tuple[str, ...], keys: Iterable[Key]) -> None:
        groups, group_of = self._groups[columns], self._group_of[columns]
        for key in keys:
            if key in group_of:
                groups[group_of.pop(key)].discard(key)
            row = self.rows.get(key)
            if row is not None:
                values = tuple(row[name] for name in columns)
                groups[values].add(key)
                group_of[key] = values


class GroupedSelection(PlainSelection):
    """The rows of an index of a `GroupedTable`; records each look-up."""

    _table: GroupedTable

    def __getitem__(self, key: Any) -> PlainSelection:
        made = super().__getitem__(key)
        return type(self)(self._table, self._index, made._equal, made._low, made._high)

    def _keys(self) -> list[Key]:
        table, columns = self._table, self._index.columns[: len(self._equal)]
        known = dict(zip(columns, self._equal, strict=True))
        table.note_look_up(self._index, columns, tuple(known.get(name) for name in table.spec.key))
        chosen = {key: table.rows[key] for key in table.group(columns, self._equal)}
        part = SimpleNamespace(spec=table.spec, rows=chosen)
        return PlainSelection(part, self._index, self._equal, self._low, self._high)._keys()

    def _rows(self, keys: Any) -> Any:
        for key in keys:
            row = self._table.peek(key)
            if row is not None:
                yield row
