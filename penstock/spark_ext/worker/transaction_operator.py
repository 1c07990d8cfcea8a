"""Transactions as the operator of a bucket's task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._clock import Clock, monotonic_s
from penstock.errors import InvalidUsageError
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.update_stream.cast import cast_to_schema
from penstock.operators.update_stream.stream import concat
from penstock.procedures.analysis.columns import ResultRows
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.engine import REJECTED, TableSet, event_schema
from penstock.procedures.hidden_tables import HIDDEN_TABLES
from penstock.procedures.partitions.bucket_forwarding import ARRIVAL, Forwarding
from penstock.procedures.requests.programs import RequestPrograms
from penstock.procedures.requests.run import answer_requests
from penstock.procedures.schema import TableSpec
from penstock.procedures.workflows.batches import cut_batches, held_events, hold_events
from penstock.spark_ext.border.initial_rows import InitialRows
from penstock.spark_ext.border.packing import side_of
from penstock.spark_ext.border.transaction_packing import place_rows, sort_rows
from penstock.spark_ext.forwarding.exports import export_events, export_rows
from penstock.spark_ext.sources.transaction_scan import PieceReader
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare
from penstock.spark_ext.worker.requests import REQUEST_SIDE, Answers, sort_requests

__all__ = ["TransactionOperator"]

HAS_INITIAL_ROWS = "initial"
"""The key of the fact that a start has initial rows for tables."""


@dataclass(frozen=True)
class TransactionOperator:
    """Transactions as an `Operator`.

    Parameters
    ----------
    program : Program or PlainProgram
        The program to run for each row.
    tables : tuple of TableSpec
        The tables of the database.
    needed : tuple of str
        The input columns.
    keep : tuple of str
        The columns to emit with the results.
    time : str, optional
        The column that orders transactions of a micro-batch.
    identity : str
        The digest of the program with which the checkpoint began.
    initial : InitialRows, optional
        The initial rows of tables.
    reader : PieceReader, optional
        Reads the rows, if the parcels only name locations in a p-stream.
    requests : RequestPrograms, optional
        The procedures that requests may call. Requests run before the events of their micro-batch.
    answers : Answers, optional
        Publishes the answers to requests.
    batch : str or int, optional
        The column or size of atomic batches; see `penstock.transactions`.
    order : str
        The order of transactions.
    forwarding : Forwarding, optional
        Splits transactions if some need several buckets. The results then include exports to the coordinator
        (`penstock.spark_ext.forwarding.exports`).
    """

    program: Program | PlainProgram
    tables: tuple[TableSpec, ...]
    needed: tuple[str, ...]
    keep: tuple[str, ...]
    time: str | None
    identity: str
    initial: InitialRows | None = None
    reader: PieceReader | None = None
    requests: RequestPrograms | None = None
    answers: Answers | None = None
    batch: str | int | None = None
    order: str = ARRIVAL
    forwarding: Forwarding | None = None

    def specification(self) -> dict[str, Any]:
        """Return the fixed settings; see `Operator.specification`."""
        return {
            "program": self.identity,
            "tables": [spec.to_json() for spec in self.tables],
            "time": self.time,
            # Requests are one more source, and Spark refuses a changed number of sources without giving a
            # reason.
            **({"requests": True} if self.requests is not None else {}),
            **({"batch": self.batch} if self.batch is not None else {}),
            **({"order": self.order} if self.order != ARRIVAL else {}),
        }

    @property
    def digest(self) -> str:
        """The digest of the program."""
        return self.program.digest

    @property
    def origin(self) -> dict[str, Any]:
        """Return whether this start has initial rows; empty buckets load them only if the first start did."""
        return {HAS_INITIAL_ROWS: self.initial is not None}

    @property
    def follows_clock(self) -> bool:
        """See `Operator.follows_clock`: procedures have no clock."""
        return False

    def new_state(self) -> TableSet:
        """Return empty tables."""
        return TableSet((*self.tables, *HIDDEN_TABLES))

    def run(
        self, state: TableSet, parcels: Iterable[Parcel], share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Run requests, then a transaction for each row, by time and arrival; see `Operator.run`."""
        held: list[pa.RecordBatch] = []
        asked: list[pa.RecordBatch] = []
        for parcel in parcels:
            if parcel.batch is not None:
                (asked if side_of(parcel.batch) == REQUEST_SIDE else held).append(parcel.batch)
        metrics = BatchMetrics()
        batches: list[pa.RecordBatch] = []
        if self.initial is not None and state.is_new and share.description().get(HAS_INITIAL_ROWS):
            for table, rows in self.initial.read_bucket(share.bucket):
                state.load(table, rows)
        self._check_program(share)
        state.program = self.program.digest
        begin = monotonic_s()
        answers = None
        if asked and self.requests is not None:
            answers = answer_requests(state, sort_requests(asked), self.requests, share.bucket)
            metrics.requests = answers.num_rows
        schema = event_schema(self.program.event)
        waiting = None if self.batch is None else held_events(state)
        before = 0 if waiting is None else waiting.num_rows
        for arrived in self._ordered(held):
            if self.forwarding is not None:
                batches += self._run_split(state, share, arrived, self.forwarding, metrics)
                continue
            rows, bounds, waiting = self._complete(arrived, waiting)
            if not rows.num_rows:
                continue
            first = state.transactions
            results = state.run(self.program, cast_to_schema(rows.select(schema.names), schema), bounds)
            numbers = np.arange(first, state.transactions)
            if bounds is not None:
                numbers = np.repeat(numbers, np.diff(bounds))
            batches.append(self._results(share, numbers, rows, results, metrics))
        if held and self.batch is not None:
            hold_events(state, waiting)
        metrics.held = 0 if waiting is None else waiting.num_rows
        metrics.rows_in = metrics.rows_out + metrics.forwarded + metrics.held - before
        metrics.rejected = metrics.rows_out - metrics.committed
        metrics.keys = state.rows
        if held or asked:
            metrics.duration_ms["run"] = 1000 * (monotonic_s() - begin)
        if answers is not None and self.answers is not None:
            begin = monotonic_s()
            self.answers.publish(answers, share.query_id, share.batch_id, share.bucket)
            metrics.duration_ms["answer"] = 1000 * (monotonic_s() - begin)
        return batches, metrics

    def _check_program(self, share: TaskShare) -> None:
        """Check that no other program has run this micro-batch.

        Readers may already have seen the results of that program.
        """
        for facts in share.other_attempts():
            if facts.get("program", self.program.digest) != self.program.digest:
                raise InvalidUsageError(
                    "a micro-batch that was not finished was begun with another program",
                    bucket=share.bucket,
                    batch=share.batch_id,
                    was=facts["program"],
                    now=self.program.digest,
                    hint="run the query with the program as it was until its input is read; then change it",
                )

    def _ordered(self, parcels: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.reader is None:
            if parcels:
                yield sort_rows(parcels, len(self.needed), with_places=self.forwarding is not None)
        elif self.time is None:
            yield from self.reader.rows(parcels)
        elif parcels:
            held, position = [], 0
            for rows in self.reader.rows(parcels):
                held.append(place_rows(rows, self.needed, self.time, position))
                position += rows.num_rows
            yield sort_rows(held, len(self.needed))

    def _complete(
        self, arrived: pa.RecordBatch, waiting: pa.RecordBatch | None
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64] | None, pa.RecordBatch | None]:
        """Return the rows of complete batches, the starts of these batches, and the remaining rows."""
        if self.batch is None:
            return arrived, None, None
        rows = arrived if waiting is None else concat([cast_to_schema(waiting, arrived.schema), arrived])
        bounds, count = cut_batches(rows, self.batch)
        return rows.slice(0, count), bounds, rows.slice(count)

    def _run_split(
        self,
        state: TableSet,
        share: TaskShare,
        rows: pa.RecordBatch,
        forwarding: Forwarding,
        metrics: BatchMetrics,
    ) -> list[pa.RecordBatch]:
        """Run the transactions that need no other bucket; return their results, and export the others."""
        events = cast_to_schema(rows.select(forwarding.event.names), forwarding.event)
        split, first = forwarding.split(events, share.bucket), state.transactions
        own = pa.array(split.own)
        results = state.run(self.program, events.take(own))
        batches = [self._results(share, first + split.own_numbers, rows.take(own), results, metrics)]
        state.transactions = first + len(split.own) + len(split.forwarded)
        state.forwarded += len(split.forwarded)
        metrics.forwarded += len(split.forwarded)
        if len(split.needed):
            passed, numbers = rows.take(pa.array(split.forwarded)), first + split.forwarded_numbers
            batches.append(export_events(passed, len(self.needed), share.bucket, numbers))
            needed = events.take(pa.array(split.needed))
            batches += export_rows(forwarding.rows(state, needed, share.bucket))
        return batches

    def _results(
        self,
        share: TaskShare,
        numbers: npt.NDArray[np.int64],
        rows: pa.RecordBatch,
        results: pa.RecordBatch,
        metrics: BatchMetrics,
    ) -> pa.RecordBatch:
        """Return the results of transactions with these numbers, and count their outcomes."""
        metrics.rows_out += results.num_rows
        metrics.count_outcomes(results.column(results.schema.get_field_index(REJECTED)))
        return ResultRows(self.keep, self.order).fill(
            pa.array(np.full(results.num_rows, share.bucket, np.int32)),
            pa.array(numbers.astype(np.int64)),
            rows,
            results,
            batch=share.batch_id,
            forwarded=False,
        )
