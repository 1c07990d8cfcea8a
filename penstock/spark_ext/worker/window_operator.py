"""Windows as operators of bucket tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock._clock import Clock, monotonic_s
from penstock.operators.freshness.control import ContractControl
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.serve import Query, serve
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.choices import WindowMode
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.border.packing import side_of
from penstock.spark_ext.border.window_packing import PLACE, WHOLE_GROUP, WHOLE_ROWS, facts_of
from penstock.spark_ext.sources.task_rows import LateStream, add_reasons
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare
from penstock.spark_ext.worker.queue_operator import describe, follows_clock, share
from penstock.units import NEVER
from penstock.windows.append.panes import Panes
from penstock.windows.groups import GroupCodec
from penstock.windows.layout import WindowLayout
from penstock.windows.panes import new_panes
from penstock.windows.sessions.panes import SessionPanes
from penstock.windows.update.group_lives import SilentGroups
from penstock.windows.update.windows import UpdateWindows, WindowArrivals

if TYPE_CHECKING:
    from penstock.windows.emitters import WindowEmitter

__all__ = ["SILENT", "ParcelInputs", "WindowOperator"]

SILENT = f"{RESERVED_PREFIX}silent"
"""The column of windows that marks rows of silent groups."""

_IsLate = Callable[[pa.RecordBatch], "pa.Array[Any]"]
"""Marks the late rows among whole rows. Rows without a time may have any mark except null."""


@dataclass
class ParcelInputs:
    """Collects the entries of parcels by the operator's inputs.

    Parameters
    ----------
    sides : int
        The number of inputs.
    """

    sides: int

    def __post_init__(self) -> None:
        self.dropped = 0
        self.newest: list[int | None] = [None] * self.sides
        self.whole: list[pa.RecordBatch] = []
        """The whole rows, with their panes or times in `PLACE`."""
        self._arriving: list[list[tuple[int, pa.RecordBatch]]] = [[] for _ in range(self.sides)]

    def add(self, parcels: Iterable[Parcel]) -> ParcelInputs:
        """Add parcels, in any order."""
        for parcel in parcels:
            self.dropped += parcel.dropped
            if parcel.batch is None:
                continue
            if side_of(parcel.batch) == WHOLE_ROWS:
                self.whole.append(parcel.batch)
                continue
            theirs, part = facts_of(parcel.batch)
            before = self.newest[parcel.side]
            self.newest[parcel.side] = theirs if before is None else max(before, theirs)
            self._arriving[parcel.side].append((part, parcel.batch))
        return self

    def sort_arrivals(self, side: int) -> list[pa.RecordBatch]:
        """Return the entries of an input, in order of arrival."""
        # Parcels come in any order, but rows must be in order of arrival.
        return [batch for _, batch in sorted(self._arriving[side], key=lambda one: one[0])]

    def watermark(self, side: int, delay: int) -> int | None:
        """Return the watermark of an input, in panes; None if its parcels have no newest pane."""
        newest = self.newest[side]
        return None if newest is None else newest - delay


@dataclass(frozen=True)
class WindowOperator:
    """Windows as an `Operator`.

    Parameters
    ----------
    layout : WindowLayout
        The layout of the windows.
    delay : int
        The delay of the watermark behind the newest pane, in panes.
    settings : dict
        The settings that are fixed for the life of a checkpoint, as JSON values.
    options : WindowOptions
        The windows to emit, and when; the budget is for all buckets together.
    weights : str or KeyWeights, optional
        See `UpdateWindows`.
    closing : WindowEmitter, optional
        Processes windows before they are emitted, in append mode.
    late : LateStream, optional
        Writes the dropped rows into a p-stream.
    steps : int
        The length of one unit of pane numbers, in units of the time column.
    ttl : int, optional
        See `UpdateWindows`.
    """

    layout: WindowLayout
    delay: int
    settings: dict[str, Any]
    options: WindowOptions = field(default_factory=WindowOptions)
    weights: str | KeyWeights | None = None
    closing: WindowEmitter | None = None
    late: LateStream | None = None
    steps: int = 1
    ttl: int | None = None

    def specification(self) -> dict[str, Any]:
        """Return the fixed settings; see `Operator.specification`."""
        options = self.options
        if not options.by_key:
            return {"mode": str(options.mode)} | self.settings
        # A column of weights is also an aggregate. It is checked first as a weight, so that an error names
        # the weight.
        return {
            "mode": str(options.mode),
            "policy": str(options.order),
            "budget": options.limits.setting,
            # 1 stands for weights by key, which may change. It cannot be mistaken for a column, because no
            # column's name is a number.
            "weight": 1 if isinstance(self.weights, KeyWeights) else self.weights,
            "on_silent": options.on_silent,
        } | self.settings

    @property
    def follows_clock(self) -> bool:
        """See `Operator.follows_clock`."""
        return follows_clock(self.options.order, self.options.limits)

    def new_state(self) -> Panes | UpdateWindows:
        """Return the state of a bucket without entries."""
        options = self.options
        if not options.by_key:
            return new_panes(self.layout)
        return UpdateWindows(self.layout, WindowMode(options.mode), options.order, self.weights, ttl=self.ttl)

    def run(
        self, state: Panes | UpdateWindows, parcels: Iterable[Parcel], task_share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Add entries and close windows; see `Operator.run`."""
        started = clock()
        gathered = ParcelInputs(1).add(parcels)
        entering = WindowArrivals(gathered.sort_arrivals(0), gathered.watermark(0, self.delay))
        before = state.watermark
        sessions = state if isinstance(state, SessionPanes) else None
        dropped = [] if sessions else self._dropped_rows(gathered.whole, _older_than(state.oldest), before)
        if isinstance(state, UpdateWindows):
            output = self._serve(state, entering, gathered.dropped, task_share, clock)
        else:
            output = self._close(state, entering, gathered.dropped, started, clock)
        if sessions is not None:
            late = _late_in(sessions, GroupCodec(list(self.layout.groups)))
            dropped = self._dropped_rows(gathered.whole, late, before)
        if self.late is not None and dropped:
            begin = monotonic_s()
            self.late.write(dropped, task_share)
            output[1].duration_ms["late"] = 1000 * (monotonic_s() - begin)
        return output

    def _dropped_rows(
        self, whole: list[pa.RecordBatch], is_late: _IsLate, watermark: int | None
    ) -> list[pa.RecordBatch]:
        """Return the rows that are late, or have no time, with reasons."""
        found = []
        for batch in whole:
            rows = batch.filter(pc.or_(is_late(batch), batch.column(PLACE).is_null()))
            if not rows.num_rows:
                continue
            missing = rows.column(PLACE).is_null()
            reasons = pc.if_else(missing, "the time is null", "late")
            passed = None if watermark is None else watermark * self.steps
            missed = pc.if_else(missing, None, pa.scalar(passed, pa.int64()))
            internal = [name for name in rows.schema.names if name.startswith(RESERVED_PREFIX)]
            found.append(add_reasons(rows.drop_columns(internal), reasons, missed))
        return found

    def _close(
        self, state: Panes, entering: WindowArrivals, dropped: int, started: int, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        result = state.run(entering.entries, entering.watermark, self.closing)
        metrics = BatchMetrics(
            rows_in=result.rows_in + dropped,
            late=result.late,
            dropped=dropped,
            emitted=result.closed,
            rows_out=sum(batch.num_rows for batch in result.windows),
            keys=result.groups,
        )
        metrics.duration_ms = {"assemble": (clock() - started) / 1000}
        return result.windows, metrics

    def _serve(
        self,
        state: UpdateWindows,
        entering: WindowArrivals,
        dropped: int,
        task_share: TaskShare,
        clock: Clock,
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        state.weights = self.weights
        cost_us = self.options.cost_us
        state.given_cost_us = None if cost_us is None else cost_us * task_share.buckets_per_task
        query = Query(None, self.layout.window, ())
        contract = self.options.contract
        batches, metrics = serve(
            state,
            entering,
            query=query,
            budget=share(self.options.limits, task_share)
            if contract is None
            else ContractControl(contract, state, place=describe(task_share)),
            clock=clock,
            buckets_per_task=task_share.buckets_per_task,
        )
        metrics.dropped = dropped
        metrics.rows_in += dropped
        if self.ttl is not None:
            silent = state.expire()
            metrics.expired, metrics.keys = len(silent), state.keys
            if self.options.on_silent is not None:
                batches = self._with_silent(batches, silent)
                metrics.rows_out += len(silent)
        return batches, metrics

    def _with_silent(self, batches: list[pa.RecordBatch], silent: SilentGroups) -> list[pa.RecordBatch]:
        """Return the marked windows, followed by a row with the last window of each group that left."""
        marked = [_mark(windows, silent=False) for windows in batches]
        if len(silent):
            slide = self.layout.spec.slide
            columns = [*silent.groups, pa.array(silent.newest // slide * slide)]
            lacking = list(self.layout.window)[len(columns) :]
            columns += [pa.nulls(len(silent), field.type) for field in lacking]
            rows = pa.RecordBatch.from_arrays(columns, schema=self.layout.window)
            marked.append(_mark(rows, silent=True))
        return marked


def _mark(rows: pa.RecordBatch, *, silent: bool) -> pa.RecordBatch:
    return rows.append_column(SILENT, pa.array(np.full(rows.num_rows, silent)))


def _older_than(oldest: int | None) -> _IsLate:
    """Return a function that marks the rows before `oldest`, a pane or a time."""
    return lambda rows: pc.less(rows.column(PLACE), NEVER if oldest is None else oldest).fill_null(True)


def _late_in(state: SessionPanes, codec: GroupCodec) -> _IsLate:
    """Return a function that marks the rows in late sessions."""

    def mark(rows: pa.RecordBatch) -> pa.Array[Any]:
        late = state.late_sessions
        if late is None:
            return pa.array(np.zeros(rows.num_rows, np.bool_))
        groups = [rows.column(f"{WHOLE_GROUP}{number}") for number in range(len(codec.fields))]
        return pa.array(late.mark_rows(codec, groups, rows.column(PLACE).fill_null(0).to_numpy()))

    return mark
