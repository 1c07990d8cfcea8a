"""The tables of one bucket, and runs of programs over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import CorruptDataError, InternalError
from penstock.procedures.compiler.program import (
    REJECTED,
    PlainProgram,
    Program,
    event_schema,
    result_schema,
)
from penstock.procedures.parallel.evaluation import Evaluation
from penstock.procedures.plain.rounds import PlainRounds
from penstock.procedures.rows import TableRows, arrow_column, from_python, null_mask, numpy_column
from penstock.procedures.schema import TableSpec
from penstock.procedures.texts import TextNumbers
from penstock.procedures.workflows.rejections import rejections
from penstock.procedures.workflows.stream_rows import StreamRows
from penstock.procedures.workflows.streams import StreamSpec

__all__ = ["REJECTED", "Run", "TableSet", "event_schema", "plain_rows", "result_schema"]

_FIRST_UNDO = 1 << 8
PREFETCH_INDEX_BYTES = 1 << 20
"""Indexes of at least this size do not stay in the cache, so prefetching pays."""
_LOOKUPS_AHEAD = 32
_MIN_TEXTS_TO_FORGET = 1 << 16
"""Unused texts are forgotten only if there are more texts than this."""


class TableSet:
    """The tables of one bucket, with their versions and the programs that run over them.

    Transactions run one after the other, so the state depends only on the events and their order.

    Parameters
    ----------
    specs : iterable of TableSpec
        The declarations of the tables.
    prefetch_index_bytes : int
        The least size of the indexes of a program at which look-ups are prefetched.

    Attributes
    ----------
    transactions : int
        The number of transactions that ran.
    forwarded : int
        The number of these transactions that ran on the coordinator of a query with several buckets.
    is_new : bool
        Whether the tables have never been stored or restored.
    offset : int, optional
        The tables include all calls of the command log before this offset.
    program : str, optional
        The digest of the program that ran last. Stored versions record the digest.
    request_memory : object
        The index of remembered requests (`penstock.procedures.requests`); None until a request needs it.
    evaluation : Evaluation, optional
        Evaluates batches of events on several threads; None if one thread runs all events.
    """

    def __init__(
        self, specs: Iterable[TableSpec], *, prefetch_index_bytes: int = PREFETCH_INDEX_BYTES
    ) -> None:
        specs = tuple(specs)
        self.prefetch_index_bytes = prefetch_index_bytes
        self.texts = TextNumbers()
        self._tables = {spec.name: TableRows(spec, self.texts) for spec in specs}
        self._streams: dict[str, StreamRows] = {}
        self._indexes = {
            spec.name: [list(index.columns) for index in spec.indexes] for spec in specs if spec.indexes
        }
        self.undo = _undo_log(_FIRST_UNDO)
        self.control = np.zeros(2, np.int64)
        self._most_texts = _MIN_TEXTS_TO_FORGET
        self.transactions = self.forwarded = 0
        self.is_new = True
        self.offset: int | None = None
        self.program: str | None = None
        self.request_memory: Any = None
        self.evaluation: Evaluation | None = None

    def __getitem__(self, name: str) -> TableRows:
        """Return a table."""
        return self._tables[name]

    def __contains__(self, name: str) -> bool:
        """Return whether a table exists."""
        return name in self._tables

    def stream(self, spec: StreamSpec) -> StreamRows:
        """Return the rows of a stream."""
        return self._streams.setdefault(spec.name, StreamRows(spec))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(map(len, self._tables.values()))

    @property
    def size_bytes(self) -> int:
        """The memory of the tables and streams."""
        tables = sum(table.size_bytes for table in self._tables.values())
        return tables + sum(stream.size_bytes for stream in self._streams.values()) + self.texts.size_bytes

    def close(self) -> None:
        """End the threads of `evaluation`, if it is set."""
        if self.evaluation is not None:
            self.evaluation.close()

    def clear(self, table: str) -> None:
        """Remove all rows of a table; the next delta does not list them as deleted."""
        self._tables[table] = TableRows(self._tables[table].spec, self.texts)

    def put_back(self, tables: Mapping[str, TableRows], transactions: int) -> None:
        """Replace tables by earlier copies, and reset the number of transactions."""
        self._tables |= tables
        self.transactions = transactions

    def run(
        self,
        program: Program | PlainProgram,
        events: pa.RecordBatch,
        bounds: npt.NDArray[np.int64] | None = None,
    ) -> pa.RecordBatch:
        """Run a transaction or a round for each event, in order; return one row of results for each event.

        Parameters
        ----------
        program : Program
            The program; its tables are in this set.
        events : pyarrow.RecordBatch
            The events, with exactly the columns of the program's event.
        bounds : ndarray, optional
            The position of the first event of each atomic batch of a workflow; the last element is the number
            of all events. A round runs for each batch. By default each event is a batch.
        """
        if isinstance(program, PlainProgram):
            return self._run_plain(program, events, bounds)
        run = self.begin(program, events, bounds)
        if self.evaluation is not None and bounds is None:
            self.evaluation.run(self, run)
        else:
            run.advance(0, run.rounds)
        return run.results()

    def begin(
        self, program: Program, events: pa.RecordBatch, bounds: npt.NDArray[np.int64] | None = None
    ) -> Run:
        """Return a run that has not started; `run` describes the parameters."""
        return Run(self, program, events, bounds)

    def _run_plain(
        self, program: PlainProgram, events: pa.RecordBatch, bounds: npt.NDArray[np.int64] | None
    ) -> pa.RecordBatch:
        """Run a procedure in Python over rows that are loaded on demand; write its changes back."""
        tables = {spec.name: self._tables[spec.name] for spec in program.tables}
        plain = PlainRounds(
            program.dependencies,
            {name: table.fetch for name, table in tables.items()},
            {name: table.scan for name, table in tables.items()},
        )
        if program.workflow:
            results = plain.run_workflow(program.workflow, events, bounds)
        else:
            results = plain.run(program.text, events, program.results)
        changes = {
            name: table.to_arrow({key: plain.tables[name].rows[key] for key in plain.tables[name].changed})
            for name, table in tables.items()
        }
        rows = plain_rows(program, results)
        # Arrow cannot hold some values, such as half of a surrogate pair: fail before any table changes.
        for name, table in tables.items():
            table.change(*changes[name], stored=True)
        self.transactions += events.num_rows if bounds is None else len(bounds) - 1
        return rows

    def event_arrays(self, program: Program, events: pa.RecordBatch) -> list[npt.NDArray[Any]]:
        """Convert events to the arrays that kernels take."""
        arrays: list[npt.NDArray[Any]] = []
        for column, values in zip(program.event, events.columns, strict=True):
            if not column.is_list:
                numbers, mask = numpy_column(column, values, self.texts)
                arrays += [numbers, mask] if column.nullable else [numbers]
                continue
            offsets = values.offsets.to_numpy().astype(np.int64)
            numbers, nulls = numpy_column(column, values.values, self.texts)
            mask = null_mask(values)
            arrays += [numbers, offsets, *([mask] if column.nullable else []), nulls]
        return [np.ascontiguousarray(array) for array in arrays]

    def make_room(self, program: Program, cause: int) -> None:
        """Grow the array that was too small for a kernel; `Output.need_room` explains `cause`."""
        if cause == -1:
            self.undo = _undo_log(2 * len(self.undo[0]))
        elif cause < 0:
            self._tables[program.tables[-2 - cause].name].double_deleted()
        elif cause >= len(program.tables):
            self._streams[program.streams[cause - len(program.tables)].name].double()
        else:
            self._tables[program.tables[cause].name].double_rows()

    # Versions

    def delta(self) -> PUnit:
        """Return the changes since the last call as a p-unit to store."""
        blocks: dict[str, pa.RecordBatch] = {}
        for table in self._tables.values():
            blocks |= {name: block for name, block in table.delta().items() if block.num_rows}
        unit = self._unit("delta", blocks)
        self.is_new = False
        self._forget_texts()
        return unit

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state in p-units of bounded size."""
        units = [
            self._unit("snapshot", blocks) for table in self._tables.values() for blocks in table.snapshot()
        ]
        # Copy now, because tables change while the units are written.
        return iter(units or [self._unit("snapshot", {})])

    def _unit(self, kind: str, blocks: dict[str, pa.RecordBatch]) -> PUnit:
        meta: dict[str, Any] = {"transactions": self.transactions, "rows": self.rows}
        if self.offset is not None:
            meta["offset"] = self.offset
        if self.program is not None:
            meta["program"] = self.program
        if self.forwarded:
            meta["forwarded"] = self.forwarded
        if self._indexes:
            meta["indexes"] = self._indexes
        return PUnit(kind, meta, blocks, packed=True)

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        """Insert rows with new keys into a table.

        Raises
        ------
        InvalidUsageError
            If a key exists already.
        """
        self._tables[table].upsert(rows, dirty=True, new=True)

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in order, to empty tables or to an older version."""
        self.is_new = False
        self.request_memory = None
        for unit in units:
            block_names = {f"{name}/{part}" for name in self._tables for part in ("upserts", "tombstones")}
            if strange := unit.blocks.keys() - block_names:
                raise CorruptDataError("a block belongs to no table", blocks=sorted(strange))
            for table in self._tables.values():
                table.apply(partial(_block, unit))
            self.transactions = unit.fields.count("transactions")
            if unit.fields.has("forwarded"):
                self.forwarded = unit.fields.count("forwarded")

    def forget_deleted(self) -> None:
        """Forget deleted keys and unused texts; the next delta does not have these keys."""
        for table in self._tables.values():
            table.forget_deleted()
        self._forget_texts()

    def _forget_texts(self) -> None:
        """Forget texts that no row has, if the number of texts has doubled since the last time."""
        if len(self.texts) <= self._most_texts:
            return
        used = [numbers for table in self._tables.values() for numbers in table.text_numbers()]
        new_numbers = self.texts.keep(used)
        for table in self._tables.values():
            table.renumber(new_numbers)
        self._most_texts = max(2 * len(self.texts), _MIN_TEXTS_TO_FORGET)


def plain_rows(program: PlainProgram, results: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Convert the results of a procedure that ran in Python to Arrow."""
    schema = result_schema(program)
    columns: list[Any] = list(zip(*results, strict=True)) or [[] for _ in schema]
    arrays = [from_python(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Run:
    """A run of a compiled program: its events, and their results.

    `advance` runs whole rounds. `advance_transaction` runs one transaction of a workflow: it takes the stream
    rows that earlier transactions emitted, and returns the rows for later transactions.

    Parameters
    ----------
    state : TableSet
        The tables over which the program runs.
    program, events, bounds
        See `TableSet.run`.
    """

    def __init__(
        self,
        state: TableSet,
        program: Program,
        events: pa.RecordBatch,
        bounds: npt.NDArray[np.int64] | None,
    ) -> None:
        self._state = state
        self.program = program
        self._event_is_round = bounds is None
        count = events.num_rows if bounds is None else int(bounds[-1])
        self.rounds = count if bounds is None else len(bounds) - 1
        stages = len(program.stages)
        self._bounds = np.arange(count + 1 if stages else 0) if bounds is None else bounds
        self._codes = np.zeros((self.rounds, stages) if stages else count, np.int64)
        self.events = state.event_arrays(program, events)
        self._results = [
            (np.zeros(count, result.dtype), np.ones(count, np.bool_)) for result in program.results
        ]
        self._texts = np.array([state.texts.number(text) for text in program.texts] or [0], np.int64)
        self._streams = [state.stream(spec) for spec in program.streams]
        self._steps = np.zeros(2 + 2 * len(self._streams), np.int64)
        self._steps[1] = stages
        self._lookups = _count_lookups(program, events)
        state.control[1] = self.events_ahead

    @property
    def events_ahead(self) -> int:
        """The prefetch distance in events; 0 if the indexes fit into the cache."""
        size_bytes = sum(self._state[spec.name].index_bytes for spec in self.program.tables)
        if not self._lookups or size_bytes < self._state.prefetch_index_bytes:
            return 0
        return max(round(_LOOKUPS_AHEAD / max(self._lookups, 1)), 1)

    def advance(self, begin: int, end: int) -> None:
        """Run the rounds from `begin` up to, but not including, `end`."""
        self._run(begin, end, {})
        self._state.transactions += end - begin

    def advance_transaction(
        self, at: int, transaction: int, stream_rows: Mapping[str, pa.RecordBatch]
    ) -> dict[str, pa.RecordBatch]:
        """Run one transaction of a round.

        Parameters
        ----------
        at : int
            The number of the round, from 0.
        transaction : int
            The number of the transaction, from 0, in the order of the program.
        stream_rows : mapping
            The rows of each stream that the transaction takes, by the name of the stream.
        """
        program = self.program
        members = program.transactions[transaction]
        self._steps[:2] = members.start, members.stop
        for place, spec in enumerate(program.streams, 2):
            self._steps[place] = stream_rows[spec.name].num_rows if spec.name in stream_rows else 0
        self._run(at, at + 1, stream_rows)
        self._state.transactions += members.start == 0
        later = set(program.takes[members.stop :])
        counts = self._steps[2 + len(self._streams) :]
        return {
            spec.name: stream.rows(int(count), self._state.texts)
            for spec, stream, count in zip(program.streams, self._streams, counts, strict=True)
            if count and spec.name in later
        }

    def _run(self, begin: int, end: int, stream_rows: Mapping[str, pa.RecordBatch]) -> None:
        program, state = self.program, self._state
        round_arrays = (self._bounds, self._steps) if program.stages else ()
        while True:
            for spec, stream in zip(program.streams, self._streams, strict=True):
                if spec.name in stream_rows:
                    stream.load(stream_rows[spec.name], state.texts)
            before = begin
            begin = program.kernel(begin, end, *round_arrays, *self.arguments(state.control, state.undo))
            if begin == end:
                return
            if not before <= begin < end:
                raise InternalError("a kernel returned an impossible position", program=program.name)
            state.make_room(program, int(state.control[0]))
            state.control[1] = self.events_ahead

    def arguments(
        self, control: npt.NDArray[np.int64], undo: tuple[npt.NDArray[Any], ...]
    ) -> tuple[npt.NDArray[Any], ...]:
        """Return the arrays that `Program.arguments` names, in the same order."""
        program, state = self.program, self._state
        tables = [array for spec in program.tables for array in state[spec.name].arrays]
        tables += [array for stream in self._streams for array in stream.arrays]
        if any(spec.indexes for spec in program.tables):
            tables += state.texts.bytes
        results = [array for pair in self._results for array in pair]
        return (self._codes, control, self._texts, *undo, *self.events, *results, *tables)

    @staticmethod
    def own_room(
        entries: int = _FIRST_UNDO,
    ) -> tuple[npt.NDArray[np.int64], tuple[npt.NDArray[Any], ...]]:
        """Return new working arrays for a thread: control numbers, and an undo log for `entries` writes."""
        return np.zeros(2, np.int64), _undo_log(entries)

    def results(self) -> pa.RecordBatch:
        """Return the results of each event, once all rounds have run."""
        program, codes, results = self.program, self._codes, self._results
        if program.stages and not self._event_is_round:
            codes = np.repeat(codes, np.diff(self._bounds), axis=0)
        why = rejections(program, codes)
        if codes.ndim == 1:
            results = [(values, mask | (codes > 0)) for values, mask in results]
        arrays = [
            arrow_column(column, values, mask, self._state.texts)
            for column, (values, mask) in zip(program.results, results, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*arrays, why], schema=result_schema(program))


def _block(unit: PUnit, name: str, schema: pa.Schema) -> pa.RecordBatch | None:
    return unit.block(name, schema) if name in unit.blocks else None


def _count_lookups(program: Program, events: pa.RecordBatch) -> float:
    """Return the average number of look-ups that an event determines; see `prefetching`."""
    if not events.num_rows:
        return 0
    elements = [len(events.column(name).flatten()) for name in program.lookups if name is not None]
    return sum(elements) / events.num_rows + len(program.lookups) - len(elements)


def _undo_log(entries: int) -> tuple[npt.NDArray[Any], ...]:
    return (
        np.zeros(entries, np.int32),
        np.zeros(entries, np.int64),
        np.zeros(entries, np.int64),
        np.zeros(entries, np.float64),
        np.zeros(entries, np.bool_),
    )
