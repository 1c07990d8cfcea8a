"""Run requests in Python over dicts, and record the queries that they execute, in order (H-Store §5.2.1).

A query is a look-up, a write, an insert or a delete of one row, or a look-up by an index. Consecutive writes
of one row are one query. Reading the rows that an index finds is not a further query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.designing.traces.grouped_table import GroupedSelection, GroupedTable, Key, Row
from penstock.designing.traces.queries import Query, QueryName
from penstock.designing.traces.trace import Request, column_numbers, find_program
from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.arrow_rows import as_arrow, batches_of
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.plain.rounds import PlainRounds
from penstock.procedures.plain.selection import PlainSelection, find_index
from penstock.procedures.plain.tables import python_rows
from penstock.procedures.plain.words import RejectedError
from penstock.procedures.procedure import Procedure
from penstock.procedures.rows import from_python
from penstock.procedures.schema import IndexSpec, TableSpec
from penstock.procedures.texts import Numbers

__all__ = ["ProcedureTrace", "key_numbers", "record"]

RecordedQuery = tuple[QueryName, Key]
Masks = npt.NDArray[np.uint64]


@dataclass
class ProcedureTrace:
    """The transactions of one procedure, and the queries that they executed.

    Attributes
    ----------
    procedure : str
        The procedure's name.
    kind : tuple of str and object, optional
        The name of an attribute, and the value that it has in all events.
    program : Program
        The compiled procedure.
    events : pyarrow.RecordBatch
        The event of each transaction.
    names : tuple of QueryName
        The distinct names of queries.
    starts : ndarray of int64
        The position of each transaction's first query; the last element is the number of queries.
    query : ndarray of int64
        The position in `names` of each query's name.
    keys : mapping
        For each position in `names`, the keys of the queries with this name: an array for each key column. An
        unknown value is null.
    aborted : ndarray of bool
        Whether each transaction was rejected.
    tables : mapping
        The tables by name.
    """

    procedure: str
    kind: tuple[str, Any] | None
    program: Program
    events: pa.RecordBatch
    names: tuple[QueryName, ...]
    starts: Numbers
    query: Numbers
    keys: Mapping[int, list[pa.Array[Any]]]
    aborted: npt.NDArray[np.bool_]
    tables: Mapping[str, TableSpec] = field(repr=False)

    @property
    def title(self) -> str:
        """The procedure's name, followed by the value in `kind`."""
        return self.procedure if self.kind is None else f"{self.procedure} {self.kind[1]}"

    @property
    def transactions(self) -> int:
        """The number of transactions."""
        return len(self.aborted)

    def counters(self) -> Numbers:
        """Return, for each query, how often its transaction has executed a query of this name before."""
        owner = np.repeat(np.arange(self.transactions), np.diff(self.starts))
        groups = owner * max(len(self.names), 1) + self.query
        order = np.argsort(groups, kind="stable")
        ordered = groups[order]
        begins = (
            np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, int)
        )
        inside = np.arange(len(ordered)) - np.repeat(begins, np.diff(np.r_[begins, len(ordered)]))
        counters = np.empty(len(ordered), np.int64)
        counters[order] = inside
        return counters

    def slice(self, begin: int, end: int) -> ProcedureTrace:
        """Return the transactions with the numbers from `begin` to `end` - 1."""
        first, last = self.starts[begin], self.starts[end]
        keys = {}
        for place, columns in self.keys.items():
            before = int((self.query[:first] == place).sum())
            count = int((self.query[first:last] == place).sum())
            keys[place] = [column.slice(before, count) for column in columns]
        return replace(
            self, events=self.events.slice(begin, end - begin), starts=self.starts[begin : end + 1] - first,
            query=self.query[first:last], keys=keys, aborted=self.aborted[begin:end],
        )  # fmt: skip

    def place(self, placements: Mapping[str, Placement], partitions: int) -> list[list[Query]]:
        """Return the queries of each transaction with the partitions that they access."""
        masks = np.zeros(len(self.query), np.uint64)
        everywhere = np.uint64((1 << partitions) - 1)
        for place, name in enumerate(self.names):
            chosen = self.query == place
            placement = placements.get(name.table)
            if placement is None:
                masks[chosen] = everywhere if name.writes else 0
                continue
            column = self.tables[name.table].key.index(placement.names[0])
            values = self.keys[place][column]
            known = values.is_valid().to_numpy(zero_copy_only=False)
            numbers = placement.partitions_of(placement.columns, [values]).astype(np.uint64)
            masks[chosen] = np.where(known, np.uint64(1) << numbers, everywhere)
        queries = [Query(*one) for one in zip(self.query.tolist(), masks.tolist(), strict=True)]
        return [queries[begin:end] for begin, end in zip(self.starts[:-1], self.starts[1:], strict=True)]


class _Journal(list[Any]):
    """The undo journal of a transaction. Each new entry is also recorded as a query."""

    def append(self, change: Any, /) -> None:
        super().append(change)
        change[0].record_change(change[1])


class _RecordingTable(GroupedTable):
    """A table that records the queries that access it."""

    def __init__(
        self, spec: TableSpec, rows: Iterable[Row], journal: _Journal, queries: list[RecordedQuery]
    ) -> None:
        super().__init__(spec, rows, journal)
        self._queries = queries
        self._names = {verb: QueryName(verb, spec.name) for verb in ("read", "write", "insert", "delete")}
        self._change_verb = "write"

    def record(self, name: QueryName, key: Key) -> None:
        """Record a query of the current transaction."""
        self._queries.append((name, key))

    def record_change(self, key: Key) -> None:
        """Record a change of a row; consecutive writes of one row are one query."""
        self.moved.add(key)
        query = (self._names[self._change_verb], key)
        if self._change_verb != "write" or not self._queries or self._queries[-1] != query:
            self._queries.append(query)

    def record_undo(self, key: Key) -> None:
        """Record that a change of a row was undone; this is not a query."""
        self.moved.add(key)

    def get(self, key: Any) -> Any:
        """Return a row, or None if the table does not have it; record the read."""
        self.record(self._names["read"], self._key(key))
        return super().get(key)

    def __contains__(self, key: Any) -> bool:
        self.record(self._names["read"], self._key(key))
        return super().__contains__(key)

    def note_look_up(self, index: IndexSpec, columns: tuple[str, ...], key: Key) -> None:
        """Record a look-up by an index as one query."""
        self.record(QueryName("select", self.spec.name, columns), key)

    def by(self, *columns: str) -> PlainSelection:
        """Return the rows in the order of an index."""
        return GroupedSelection(self, find_index(self.spec, columns))

    def _change(self, key: Key, values: Row | None) -> None:
        self._change_verb = "delete" if values is None else "insert"
        super()._change(key, values)
        self._change_verb = "write"


class _ProcedureTraceBuilder:
    """Collects the recorded transactions of one procedure."""

    def __init__(self, procedure: str, kind: tuple[str, Any] | None, program: Program) -> None:
        self.procedure, self.kind, self.program = procedure, kind, program
        self.events: list[pa.RecordBatch] = []
        self.names: dict[QueryName, int] = {}
        self.sizes: list[int] = []
        self.query: list[int] = []
        self.keys: defaultdict[int, list[Key]] = defaultdict(list)
        self.aborted: list[bool] = []

    def add(self, queries: Sequence[RecordedQuery], *, aborted: bool) -> None:
        for name, key in queries:
            place = self.names.setdefault(name, len(self.names))
            self.query.append(place)
            self.keys[place].append(key)
        self.sizes.append(len(queries))
        self.aborted.append(aborted)

    def build(self, tables: Mapping[str, TableSpec]) -> ProcedureTrace:
        names = tuple(self.names)
        keys = {
            place: [
                from_python(list(values), column.type)
                for column, values in zip(
                    tables[names[place].table].key_columns, zip(*rows, strict=True), strict=True
                )
            ]
            for place, rows in self.keys.items()
        }
        events = pa.Table.from_batches(self.events).combine_chunks()
        return ProcedureTrace(
            self.procedure, self.kind, self.program, events.to_batches()[0], names,
            np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64), np.array(self.query, np.int64),
            keys, np.array(self.aborted), tables,
        )  # fmt: skip


def record(
    database: Database,
    requests: Iterable[Request],
    tables: Mapping[str, pa.Table | pa.RecordBatch | Mapping[str, Any]] | TableSet | None = None,
    *,
    kind: str | None = None,
) -> list[ProcedureTrace]:
    """Run requests over tables, and return the queries that they execute.

    Parameters
    ----------
    database : Database
        The tables and procedures.
    requests : iterable of tuple
        Pairs of a procedure's name and its events, in the order of calls.
    tables : mapping or TableSet, optional
        The rows that the tables have before the first request.
    kind : str, optional
        An event attribute that decides what a procedure does. Each value of this attribute gets a separate
        trace.

    Raises
    ------
    InvalidUsageError
        If there is no request or procedure, events or rows do not fit, or a procedure is a workflow, has
        streams or windows, or runs with ``plain=True``.
    """
    state = tables if isinstance(tables, TableSet) else _load(database, tables or {})
    journal = _Journal()
    queries: list[RecordedQuery] = []
    recording = {
        name: _RecordingTable(spec, state[name].scan(), journal, queries)
        for name, spec in database.tables.items()
    }
    builders: dict[tuple[str, Any], _ProcedureTraceBuilder] = {}
    all_rounds: dict[str, PlainRounds] = {}
    for name, rows in requests:
        program, events = find_program(database, name, rows)
        hidden = [spec.name for spec in program.tables if spec.name not in recording]
        if name in database.workflows or hidden or not isinstance(program, Program):
            raise InvalidUsageError(
                "only compiled procedures over tables can be predicted",
                procedure=name,
                hint="leave its requests out of the trace",
            )
        kinds: list[Any] = [None] * events.num_rows
        if kind is not None and kind in events.schema.names:
            kinds = events.column(kind).to_pylist()
        targets = {}
        for value in dict.fromkeys(kinds):
            chosen = pa.array([other == value for other in kinds])
            key = (name, value)
            if key not in builders:
                builders[key] = _ProcedureTraceBuilder(
                    name, None if value is None else (str(kind), value), program
                )
            builders[key].events.append(events.filter(chosen))
            targets[value] = builders[key]
        if name not in all_rounds:
            all_rounds[name] = _rounds_of(database.procedures[name], recording, journal)
        rounds = all_rounds[name]
        function = rounds.function(database.procedures[name].text)
        parameters = [rounds.parameter(table) for table in database.procedures[name].text.tables]
        for value, attributes in zip(kinds, python_rows(events), strict=True):
            queries.clear()
            del journal[:]
            aborted = False
            try:
                function(SimpleNamespace(**attributes), *parameters)
            except RejectedError:
                aborted = True
                for table, key, _ in journal:
                    table.record_undo(key)
                rounds.undo(0)
            targets[value].add(queries, aborted=aborted)
    traces = [builder.build(database.tables) for builder in builders.values() if builder.aborted]
    if not traces:
        raise InvalidUsageError("the trace has no transaction", database=database.name)
    return traces


def _load(database: Database, tables: Mapping[str, Any]) -> TableSet:
    state = TableSet(database.tables.values())
    for name, rows in tables.items():
        if name not in database.tables:
            raise InvalidUsageError("there is no such table", table=name)
        for batch in batches_of(as_arrow(rows, owner=name), database.tables[name].schema, owner=name):
            state.load(name, batch)
    return state


def _rounds_of(procedure: Procedure, tables: Mapping[str, _RecordingTable], journal: _Journal) -> PlainRounds:
    rounds = PlainRounds(procedure.catalog.find_dependencies([procedure.text]))
    rounds.journal = journal
    for name in rounds.tables:
        tables[name].on_insert = rounds.tables[name].on_insert
        rounds.tables[name] = tables[name]
    return rounds


def key_numbers(trace: ProcedureTrace, place: int, column: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return a key column of all queries with the same name as integers, and whether each value is known."""
    spec = trace.tables[trace.names[place].table]
    values = trace.keys[place][column]
    known = values.is_valid().to_numpy(zero_copy_only=False)
    return column_numbers(spec.key_columns[column], values), known
