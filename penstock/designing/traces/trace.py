"""A trace: transactions, and the rows that they access, stored in columns for the designer (H-Store §4.2).

The compiler finds the accesses in a procedure's text (`declare`), and the source of each key column: an
attribute of the event, an element of a list, a row that an index finds, or a named route. An open database
uses the same accesses to place a transaction, whichever branches the transaction takes. So the estimated cost
fits the way in which a database runs the transactions. A trace may also have the accesses that transactions
made when they ran (`recorded`); `benchmarks/designs/recorded_traces.py` makes such traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.update_stream.stream import concat
from penstock.procedures.compiler.program import Program, event_schema
from penstock.procedures.compiler.values import AccessMode, Found
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.arrow_rows import as_arrow, batches_of
from penstock.procedures.partitions.event_keys import EventKeys
from penstock.procedures.partitions.partitioned_rows import find_rows
from penstock.procedures.partitions.placement import hash_values, numbers_of
from penstock.procedures.partitions.routes import Keys, Route, keys_of
from penstock.procedures.schema import MAX_KEY_COLUMNS, Column, TableSpec
from penstock.procedures.texts import Numbers

__all__ = ["ANY_TABLE", "Mode", "Request", "Trace", "TraceBuilder", "column_numbers", "declare"]

ANY_TABLE = -1
"""The number in place of a table's position in an access that needs all partitions in every design."""
Request = tuple[str, "pa.Table | pa.RecordBatch | Mapping[str, Any]"]
"""The name of a procedure or workflow, and events for it."""
Booleans = npt.NDArray[np.bool_]
Values = tuple[Numbers, Booleans]


class Mode(IntEnum):
    """The kinds of accesses."""

    READ = 0
    WRITE = 1
    SELECT = 2
    """A look-up by a secondary index."""
    FOUND = 3
    """A row that a look-up by a secondary index found."""


@dataclass(frozen=True)
class Trace:
    """Transactions in the order of their calls, and their accesses in the order of the transactions.

    Attributes
    ----------
    database : Database
        The declarations.
    tables : tuple of TableSpec
        The tables; accesses refer to them by position.
    procedures : tuple of str
        The procedures; transactions refer to them by position.
    attributes : tuple of tuple of str
        For each procedure, the attributes that may route its transactions; empty if only accesses route the
        transactions.
    procedure : ndarray of int32
        The procedure of each transaction.
    routes : ndarray of int64, two-dimensional
        For each position in `attributes` (row) and each transaction (column), the hash of the attribute.
    has_route : ndarray of bool
        Whether the transaction has a value for the attribute, in the shape of `routes`.
    transaction, table, mode : ndarray
        The transaction, table and `Mode` of each access.
    index : ndarray of int64
        For an access with `Mode.SELECT` or `Mode.FOUND`, the number of the secondary index. For an access
        with `Mode.WRITE`, a bit for each secondary index that the write changes.
    values : ndarray of int64, two-dimensional
        For each key column (row) and each access (column), the key's value: an integer, or the hash of a
        text.
    known : ndarray of bool
        Whether each of `values` is known. If an access has an unknown value in the column that partitions a
        table, it needs all partitions.
    sizes : ndarray of int64
        The bytes of each table; zeros if they are unknown.
    recorded : bool
        Whether the accesses were recorded in a run. In a recorded trace, an attribute may determine the
        partition in which a transaction begins.
    actual : Trace, optional
        A trace of the same transactions. Transactions of procedures with `attributes` have the accesses that
        they made in a run; all others have their declared accesses.
    """

    database: Database
    tables: tuple[TableSpec, ...]
    procedures: tuple[str, ...]
    attributes: tuple[tuple[str, ...], ...]
    procedure: npt.NDArray[np.int32]
    routes: Numbers
    has_route: Booleans
    transaction: npt.NDArray[np.int64]
    table: npt.NDArray[np.int16]
    mode: npt.NDArray[np.int8]
    index: Numbers
    values: Numbers
    known: Booleans
    sizes: Numbers
    recorded: bool = False
    actual: Trace | None = None

    @property
    def transactions(self) -> int:
        """The number of transactions."""
        return len(self.procedure)

    def slice(self, begin: int, end: int) -> Trace:
        """Return the transactions with the numbers from `begin` to `end` - 1."""
        first, last = np.searchsorted(self.transaction, [begin, end])
        parts = {
            name: getattr(self, name)[first:last] for name in ("table", "mode", "index")
        } | {name: getattr(self, name)[:, first:last] for name in ("values", "known")}  # fmt: skip
        return Trace(
            self.database, self.tables, self.procedures, self.attributes, self.procedure[begin:end],
            self.routes[:, begin:end], self.has_route[:, begin:end], self.transaction[first:last] - begin,
            sizes=self.sizes, recorded=self.recorded,
            actual=None if self.actual is None else self.actual.slice(begin, end), **parts,
        )  # fmt: skip


def column_numbers(column: Column, values: pa.Array[Any]) -> Numbers:
    """Return values as integers; a text becomes its hash."""
    return hash_values(column, values) if column.kind.is_interned else numbers_of(column, values)


@dataclass(frozen=True)
class _Accesses:
    """Accesses to one table as arrays; `values` and `known` have an array for each key column."""

    transaction: Numbers
    table: int
    mode: npt.NDArray[np.int8]
    index: Numbers
    values: Sequence[Numbers | None]
    known: Sequence[Booleans]


class TraceBuilder:
    """Collects transactions and their accesses; each request is added as a whole.

    Parameters
    ----------
    database : Database
        The declarations.
    sizes : mapping of str to int, optional
        The bytes of tables.
    recorded : bool
        See `Trace`.
    """

    def __init__(
        self, database: Database, sizes: Mapping[str, int] | None = None, *, recorded: bool = False
    ) -> None:
        self.database = database
        self.tables = tuple(database.tables.values())
        self.places = {spec.name: place for place, spec in enumerate(self.tables)}
        self._sizes = [(sizes or {}).get(spec.name, 0) for spec in self.tables]
        self._recorded = recorded
        self._procedures: dict[str, dict[str, int]] = {}
        """For each procedure, a dict from an attribute's name to its position."""
        self._places: list[int] = []
        self._routes: list[tuple[int, Numbers, Numbers, Booleans]] = []
        self._accesses: list[_Accesses] = []

    def begin(self, procedures: Sequence[str]) -> Numbers:
        """Add one transaction for each name in `procedures`; return the numbers of the transactions."""
        for name in dict.fromkeys(procedures):
            self._procedures.setdefault(name, {})
        numbers = {name: place for place, name in enumerate(self._procedures)}
        first = len(self._places)
        self._places += [numbers[name] for name in procedures]
        return np.arange(first, len(self._places))

    def add_routes(self, procedure: str, numbers: Numbers, attributes: Mapping[str, Values]) -> None:
        """Add attributes that may route transactions: their hashes, and whether they have a value."""
        places = self._procedures[procedure]
        for name, (values, there) in attributes.items():
            self._routes.append((places.setdefault(name, len(places)), numbers, values, there))

    def add(
        self,
        numbers: Numbers,
        table: int,
        mode: Mode | npt.NDArray[np.int8],
        values: Sequence[Numbers | None],
        known: Sequence[Booleans] | None = None,
        index: Numbers | None = None,
    ) -> None:
        """Add one access for each entry of `numbers`.

        Parameters
        ----------
        numbers : ndarray
            The transaction number of each access; numbers may repeat.
        table : int
            The position of the table.
        mode, values, index : ndarray
            See `Trace`. `values` has None for a key column if no access has a known value in this column.
        known : list of ndarray, optional
            For each key column, whether the access has a known value. By default, every value in `values` is
            known.
        """
        count = len(numbers)
        there = known or [np.full(count, column is not None) for column in values]
        modes = np.full(count, mode, np.int8)
        indexes = np.zeros(count, np.int64) if index is None else index
        self._accesses.append(_Accesses(numbers, table, modes, indexes, values, there))

    def build(self) -> Trace:
        """Return the trace.

        Raises
        ------
        InvalidUsageError
            If the trace has no transaction.
        """
        count = len(self._places)
        if not count:
            raise InvalidUsageError(
                "the trace has no transaction",
                database=self.database.name,
                hint="the log of a database has the calls since its newest version: run this while it is "
                "open, or give requests",
            )
        parts = self._accesses
        transaction = np.concatenate([np.zeros(0, np.int64), *(one.transaction for one in parts)])
        sizes = [len(one.transaction) for one in parts]
        values = np.zeros((MAX_KEY_COLUMNS, len(transaction)), np.int64)
        known = np.zeros(values.shape, np.bool_)
        begin = 0
        for one, size in zip(parts, sizes, strict=True):
            for place, (column, there) in enumerate(zip(one.values, one.known, strict=True)):
                if column is not None:
                    values[place, begin : begin + size] = column
                known[place, begin : begin + size] = there
            begin += size
        routes = np.zeros((max(map(len, self._procedures.values())), count), np.int64)
        has_route = np.zeros(routes.shape, np.bool_)
        for place, numbers, hashes, there in self._routes:
            routes[place, numbers], has_route[place, numbers] = hashes, there
        order = np.argsort(transaction, kind="stable")
        return Trace(
            self.database,
            self.tables,
            tuple(self._procedures),
            tuple(map(tuple, self._procedures.values())),
            np.array(self._places, np.int32),
            routes,
            has_route,
            transaction[order],
            np.repeat(np.array([one.table for one in parts], np.int16), sizes)[order],
            np.concatenate([np.zeros(0, np.int8), *(one.mode for one in parts)])[order],
            np.concatenate([np.zeros(0, np.int64), *(one.index for one in parts)])[order],
            values[:, order],
            known[:, order],
            np.array(self._sizes, np.int64),
            self._recorded,
        )


def declare(database: Database, requests: Iterable[Request], rows: TableSet | None = None) -> Trace:
    """Return the trace of requests, from the accesses that the compiler finds. No procedure runs.

    Parameters
    ----------
    database : Database
        The procedures and tables.
    requests : iterable of tuple
        Pairs of a procedure's or workflow's name and its events, in the order of calls.
    rows : TableSet, optional
        The rows that the tables have before the requests, for look-ups by index. Without them, the trace
        assumes that a row found by an index may be in any partition.

    Raises
    ------
    InvalidUsageError
        If there is no request or procedure, or events do not fit.
    """
    sizes = {} if rows is None else {name: rows[name].size_bytes for name in database.tables}
    builder = TraceBuilder(database, sizes)
    for name, events_in in requests:
        program, events = find_program(database, name, events_in)
        if events.num_rows:
            _declare(builder, name, program, events, rows)
    return builder.build()


def find_program(database: Database, name: str, rows: Any) -> tuple[Any, pa.RecordBatch]:
    """Return the program of a procedure or workflow, and events with exactly its attributes.

    Raises
    ------
    InvalidUsageError
        If there is no such procedure, or the events do not fit.
    """
    definition = database.procedures.get(name) or database.workflows.get(name)
    if definition is None:
        hint = did_you_mean(name, [*database.procedures, *database.workflows], "procedures")
        raise InvalidUsageError("there is no such procedure", procedure=name, hint=hint)
    table = as_arrow(rows, owner=name)
    program = definition.program(table.schema)
    schema = event_schema(program.event)
    batches = batches_of(table, schema, owner=name)
    return program, concat([pa.RecordBatch.from_pylist([], schema), *batches])


def _declare(
    builder: TraceBuilder, name: str, program: Any, events: pa.RecordBatch, rows: TableSet | None
) -> None:
    numbers = builder.begin([name] * events.num_rows)
    hidden = [spec.name for spec in program.tables if spec.name not in builder.places]
    if not isinstance(program, Program) or program.stages or hidden:
        builder.add(numbers, ANY_TABLE, Mode.WRITE, [])
        return

    def lookup(found: Found, values: Sequence[pa.Array[Any]]) -> tuple[Numbers, pa.RecordBatch]:
        return find_rows([] if rows is None else [rows], found.table, found.index, values)

    event_keys = EventKeys(program, Route((), None, (), is_single=False), events, {}, lookup)
    seen: dict[Keys, bool] = {}
    for access in program.accesses:
        for keys in keys_of(program, access, ()):
            origins = tuple(
                None if rows is None and isinstance(origin, Found) else origin for origin in keys.origins
            )
            known = Keys(access.table, origins, ())
            seen[known] = seen.get(known, False) or access.mode is not AccessMode.READ
    for keys, writes in seen.items():
        of, columns = event_keys.values(keys)
        values = [None if one is None else column_numbers(*one) for one in columns]
        builder.add(numbers[of], builder.places[keys.table], Mode.WRITE if writes else Mode.READ, values)


def linked_columns(database: Database, procedures: Sequence[str]) -> list[set[tuple[str, str]]]:
    """Return sets of key columns whose values have the same domain.

    Columns of a set have the same name and type, or a procedure takes their values from the same origin.

    Parameters
    ----------
    database : Database
        The tables and procedures.
    procedures : sequence of str
        The procedures of the trace.
    """
    groups: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    for spec in database.tables.values():
        for column in spec.key_columns:
            groups.setdefault(("name", column.name, column.kind), set()).add((spec.name, column.name))
    for name in procedures:
        definition = database.procedures.get(name)
        for program in definition.programs if definition is not None else ():
            if isinstance(program, Program):
                for access in program.accesses:
                    table = database.tables.get(access.table)
                    key = () if table is None else table.key
                    for part, origin in zip(key, access.origins, strict=False):
                        if origin is not None:
                            groups.setdefault((name, str(origin)), set()).add((access.table, part))
    joined: list[set[tuple[str, str]]] = []
    for group in groups.values():
        for other in [one for one in joined if one & group]:
            joined.remove(other)
            group.update(other)
        joined.append(group)
    return joined
