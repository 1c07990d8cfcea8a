"""Runs requests in Python over dicts, and records the rows that they access (H-Store §4.2).

This is the trace of a system that finds out the partitions of a transaction while it runs. A row that is
found by a secondary index is not known before, so its look-up needs all partitions, or a copy of the index in
each. Rejected transactions count like others: they have accessed their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.designing.traces.grouped_table import GroupedSelection, GroupedTable, Key, Row
from penstock.designing.traces.trace import (
    Booleans,
    Mode,
    Request,
    Trace,
    TraceBuilder,
    column_numbers,
    find_program,
)
from penstock.errors import InvalidUsageError
from penstock.procedures.analysis.routing import attribute_of
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.arrow_rows import as_arrow, batches_of
from penstock.procedures.partitions.placement import hash_values, mix_hashes
from penstock.procedures.plain.rounds import PlainRounds
from penstock.procedures.plain.selection import PlainSelection, find_index
from penstock.procedures.plain.tables import python_rows
from penstock.procedures.plain.words import RejectedError
from penstock.procedures.procedure import Procedure
from penstock.procedures.rows import from_python
from penstock.procedures.schema import IndexSpec, TableSpec
from penstock.procedures.texts import Numbers

__all__ = ["record"]

Recorded = tuple[int, Mode, int, Key]
"""The table, the mode, the index or indexes (see `Trace`), and the key with None where it is not known."""


class _ChangedKeys(set[Key]):
    """The keys that were changed; in `moved` are those whose places in indexes may be out of date."""

    def __init__(self, moved: set[Key]) -> None:
        self.moved = moved

    def add(self, key: Key, /) -> None:
        super().add(key)
        self.moved.add(key)


class _RecordingTable(GroupedTable):
    """A table that records accesses in `accesses`."""

    def __init__(
        self, spec: TableSpec, place: int, state: TableSet, journal: list[Any], accesses: dict[Recorded, None]
    ) -> None:
        super().__init__(spec, state[spec.name].scan(), journal)
        self.place, self.accesses = place, accesses
        self.changed: _ChangedKeys = _ChangedKeys(self.moved)

    def note(self, mode: Mode, key: Key, index: int = 0) -> None:
        """Record an access of the present transaction."""
        self.accesses[self.place, mode, index, key] = None

    def get(self, key: Any) -> Any:
        """Return a row; None if there is none."""
        self.note(Mode.READ, self._key(key))
        return super().get(key)

    def note_look_up(self, index: IndexSpec, columns: tuple[str, ...], key: Key) -> None:
        """Record a look-up by an index."""
        self.note(Mode.SELECT, key, self.spec.indexes.index(index))

    def __contains__(self, key: Any) -> bool:
        self.note(Mode.READ, self._key(key))
        return super().__contains__(key)

    def by(self, *columns: str) -> PlainSelection:
        """Return the rows in the order of an index."""
        return _RecordingSelection(self, find_index(self.spec, columns))

    def changed_indexes(self, old: Row | None, new: Row | None) -> int:
        """Return a bit for each index that a change of a row changes."""
        bits = 0
        for number, index in enumerate(self.spec.indexes):
            if old is None or new is None or any(old[name] != new[name] for name in index.columns):
                bits |= 1 << number
        return bits


class _RecordingSelection(GroupedSelection):
    """The rows of an index; also records each row that it returns."""

    _table: _RecordingTable

    def _rows(self, keys: Any) -> Any:
        number = self._table.spec.indexes.index(self._index)
        for key in keys:
            row = self._table.peek(key)
            if row is not None:
                self._table.note(Mode.FOUND, key, number)
                yield row


class _Recorder:
    """Tables, and the accesses of transactions over them."""

    def __init__(self, database: Database, state: TableSet) -> None:
        self.journal: list[Any] = []
        self.accesses: dict[Recorded, None] = {}
        self.tables = {
            spec.name: _RecordingTable(spec, place, state, self.journal, self.accesses)
            for place, spec in enumerate(database.tables.values())
        }
        self._rounds: dict[str, PlainRounds] = {}

    def run(self, procedure: Procedure, program: Any, events: pa.RecordBatch) -> list[list[Recorded]]:
        """Run a transaction for each event; return the accesses of each."""
        rounds = self._rounds.get(program.digest)
        if rounds is None:
            dependencies = procedure.catalog.find_dependencies([procedure.text])
            rounds = self._rounds[program.digest] = PlainRounds(dependencies)
            rounds.journal = self.journal
            for name in rounds.tables:
                self.tables[name].on_insert = rounds.tables[name].on_insert
                rounds.tables[name] = self.tables[name]
        function = rounds.function(procedure.text)
        parameters = [rounds.parameter(name) for name in procedure.text.tables]
        recorded = []
        for values in python_rows(events):
            self.accesses.clear()
            del self.journal[:]
            try:
                function(SimpleNamespace(**values), *parameters)
            except RejectedError:
                self._note_writes()
                rounds.undo(0)
            else:
                self._note_writes()
            recorded.append(list(self.accesses))
        return recorded

    def _note_writes(self) -> None:
        for table, key, old in self.journal:
            table.note(Mode.WRITE, key, table.changed_indexes(old, table.rows[key]))
            table.moved.add(key)


def record(
    database: Database,
    requests: Iterable[Request],
    tables: Mapping[str, pa.Table | pa.RecordBatch | Mapping[str, Any]] | None = None,
    *,
    kind: str | None = None,
) -> Trace:
    """Run requests over tables, and return the trace of the rows that they access.

    Parameters
    ----------
    database : Database
        The tables and procedures.
    requests : iterable of tuple
        The name of a procedure, and its events, in the order of their calls.
    tables : mapping, optional
        The first rows of tables.
    kind : str, optional
        An attribute of events, for procedures that are several in one: each of its values counts as one.

    Raises
    ------
    InvalidUsageError
        If there is no request or procedure, events or rows do not fit, or a procedure has streams or windows.
    """
    state = TableSet(database.tables.values())
    for name, rows in (tables or {}).items():
        for batch in batches_of(as_arrow(rows, owner=name), database.tables[name].schema, owner=name):
            state.load(name, batch)
    recorder = _Recorder(database, state)
    builder = TraceBuilder(
        database, {name: state[name].size_bytes for name in database.tables}, recorded=True
    )
    for name, rows in requests:
        program, events = find_program(database, name, rows)
        hidden = [spec.name for spec in program.tables if spec.name not in builder.places]
        if name in database.workflows or hidden:
            raise InvalidUsageError("only procedures over tables are recorded", procedure=name)
        kinds = [name] * events.num_rows
        if kind is not None and kind in events.schema.names:
            kinds = [f"{name} {value}" for value in events.column(kind).to_pylist()]
        numbers = builder.begin(kinds)
        routes = _routes_of(program, events)
        for one in dict.fromkeys(kinds):
            chosen = np.array(kinds) == one
            parts = {route: (values[chosen], there[chosen]) for route, (values, there) in routes.items()}
            builder.add_routes(one, numbers[chosen], parts)
        found = recorder.run(database.procedures[name], program, events)
        _add(builder, numbers, found)
    return builder.build()


def _routes_of(program: Any, events: pa.RecordBatch) -> dict[str, tuple[Numbers, Booleans]]:
    """Return the hashes of attributes that hold a column of a key, and of two such ones together.

    With them comes whether they are there.
    """
    accesses = program.accesses if isinstance(program, Program) else ()
    keys = [
        [name for origin in access.origins if (name := attribute_of(program, origin)) is not None]
        for access in accesses
    ]
    columns = {column.name: column for column in program.event}
    routes = {
        name: (
            hash_values(columns[name], events.column(name)),
            events.column(name).is_valid().to_numpy(zero_copy_only=False),
        )
        for name in dict.fromkeys(name for key in keys for name in key)
    }
    for one, other in dict.fromkeys(pair for key in keys for pair in combinations(key, 2)):
        both = mix_hashes([routes[one][0], routes[other][0]])
        routes[f"{one}, {other}"] = both, routes[one][1] & routes[other][1]
    return routes


def _add(builder: TraceBuilder, numbers: Numbers, recorded: list[list[Recorded]]) -> None:
    """Add the accesses of transactions, one table at a time."""
    rows: dict[int, list[tuple[int, int, int, Key]]] = {}
    for number, accesses in zip(numbers.tolist(), recorded, strict=True):
        for place, mode, index, key in accesses:
            rows.setdefault(place, []).append((number, mode, index, key))
    for place, found in rows.items():
        transactions, modes, indexes, keys = zip(*found, strict=True)
        values, known = [], []
        for column, parts in zip(builder.tables[place].key_columns, zip(*keys, strict=True), strict=True):
            array = from_python(list(parts), column.type)
            values.append(column_numbers(column, array))
            known.append(array.is_valid().to_numpy(zero_copy_only=False))
        builder.add(
            np.array(transactions, np.int64), place, np.array(modes, np.int8), values, known,
            np.array(indexes, np.int64),
        )  # fmt: skip
