"""Update queues as operators of bucket tasks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock._clock import Clock, monotonic_s
from penstock.operators.freshness.control import ContractControl
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.adaptive_queue import AdaptiveQueue
from penstock.operators.queues.expiry import Lives
from penstock.operators.queues.silence import with_silent_rows
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.arrivals import Arrivals, conflate
from penstock.operators.update_stream.choices import Semantics
from penstock.operators.update_stream.dropped import order_ties
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border.packing import DROPPED, newest_of, side_of
from penstock.spark_ext.sources.task_rows import LateStream
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare
from penstock.state_store.tables.working_copy import WorkingCopy, table_maker

__all__ = ["QueueOperator", "describe", "follows_clock", "local_directory", "share"]

_HELD_BYTES = 256 << 20
_LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""The variable in which Spark names its local directories to Python workers."""


@dataclass(frozen=True)
class QueueOperator:
    """An update queue as an `Operator`.

    Parameters
    ----------
    stream, query
        See `UpdateQueue` and `serve`.
    options : QueueOptions
        The options. The budget is for all buckets together. `working_copy` is not in the specification,
        because stored files do not depend on it.
    columns : tuple of str
        Names and Spark types of the input's columns, for the check at a restart.
    weights : KeyWeights, optional
        See `UpdateQueue`.
    lives : Lives
        How long keys without updates stay in the state.
    silent : pyarrow.Schema, optional
        The output's columns, if the output has rows of keys that went silent.
    late : LateStream, optional
        Writes the dropped rows into a p-stream.
    """

    stream: UpdateStream
    options: QueueOptions
    query: Query
    columns: tuple[str, ...]
    weights: KeyWeights | None = None
    lives: Lives = field(default_factory=Lives)
    silent: pa.Schema | None = None
    late: LateStream | None = None

    def specification(self) -> dict[str, Any]:
        """Return the fixed settings; see `Operator.specification`."""
        semantics = self.options.semantics
        return {
            "key": list(self.stream.key),
            "time": self.stream.time,
            "arrival": self.stream.arrival,
            "policy": str(self.options.policy),
            "schema": list(self.columns),
            # 1 stands for weights by key, which may change. It cannot be mistaken for a column, because no
            # column's name is a number.
            "weight": self.stream.weight if self.weights is None else 1,
            "semantics": None if semantics == Semantics.UPDATE else str(semantics),
            "budget": self.options.limits.setting,
            "on_silent": self.options.on_silent,
            # With a time to live, a key's record remembers that the key is deleted.
            "remembers_deletes": True if self.stream.deleted else None,
            # Records of keys hold the numbers of their classes.
            "classes": None if self.stream.classes is None else list(self.stream.classes.names),
            # Records of keys hold their costs.
            "cost": self.options.cost if self.stream.costs_by_key else None,
        }

    @property
    def may_add(self) -> Mapping[str, Collection[str]]:
        """See `GrowingOperator.may_add`."""
        # Without descriptions of columns, no column may be added.
        named = zip(self.columns, self.stream.schema.names, strict=bool(self.columns))
        return {"schema": [text for text, name in named if name in self.stream.may_add]}

    @property
    def follows_clock(self) -> bool:
        """See `Operator.follows_clock`."""
        return follows_clock(Policy(self.options.policy), self.options.limits)

    def new_state(self) -> KeyedQueue:
        """Return an empty queue."""
        policy, semantics = Policy(self.options.policy), Semantics(self.options.semantics)
        table = table_maker(WorkingCopy(self.options.working_copy), local_directory())
        if semantics is Semantics.UPDATE:
            return UpdateQueue(self.stream, policy, weights=self.weights, table=table)
        return AdaptiveQueue(self.stream, policy, semantics, weights=self.weights, table=table)

    def run(
        self, state: KeyedQueue, parcels: Iterable[Parcel], task_share: TaskShare, clock: Clock
    ) -> tuple[list[pa.RecordBatch], BatchMetrics]:
        """Enqueue and serve; see `Operator.run`."""
        # The cost includes the wait while other buckets are served.
        cost_us = self.options.cost_us
        state.given_cost_us = None if cost_us is None else cost_us * task_share.buckets_per_task
        state.weights = self.weights
        state.dropped = None if self.late is None else []
        arrivals, dropped, newest, unusable = self._arrivals(parcels)
        budget = self._control(state, arrivals, task_share) or share(self.options.limits, task_share)
        switches = 0
        if isinstance(state, AdaptiveQueue):
            if isinstance(budget, Budget):
                state.capacity = self._capacity(state, budget, task_share)
            else:
                state.capacity, state.patience = budget.capacity, budget.patience
            switches = state.switches
        batches, metrics = serve(
            state,
            arrivals,
            query=self.query,
            budget=budget,
            clock=clock,
            buckets_per_task=task_share.buckets_per_task,
        )
        if isinstance(state, AdaptiveQueue):
            metrics.append_buckets = int(state.appending)
            metrics.switches = state.switches - switches
        if isinstance(state, UpdateQueue) and self.lives.end:
            batches = self._expire(state, newest, batches, metrics)
        metrics.dropped = dropped
        metrics.rows_in += dropped
        if self.late is not None:
            begin = monotonic_s()
            self.late.write([*unusable, *self.late.form.fill_all(state.dropped or ())], task_share)
            metrics.duration_ms["late"] = 1000 * (monotonic_s() - begin)
        return batches, metrics

    def _control(
        self, state: KeyedQueue, arrivals: Arrivals | None, task_share: TaskShare
    ) -> ContractControl | None:
        """Return the control of the budget under a freshness contract."""
        if self.options.contract is None:
            return None
        known = None if arrivals is None else arrivals.first_arrival_us
        since_us = None if known is None or not len(known) else int(known.min())
        return ContractControl(self.options.contract, state, since_us=since_us, place=describe(task_share))

    def _expire(
        self, state: UpdateQueue, newest: int | None, batches: list[pa.RecordBatch], metrics: BatchMetrics
    ) -> list[pa.RecordBatch]:
        """Remove silent keys; return all rows to emit."""
        expired = state.expire(newest, self.lives)
        metrics.expired, metrics.keys = len(expired), state.keys
        if self.silent is None:
            return batches
        silent = with_silent_rows(batches, expired, self.silent, self.stream)
        metrics.rows_out = sum(rows.num_rows for rows in silent)
        return silent

    def _capacity(self, state: KeyedQueue, budget: Budget, task_share: TaskShare) -> float | None:
        """Return the average number of a bucket's tuples that a trigger can serve; None if unbounded."""
        rows = self.options.limits.rows
        if rows is not None:
            return rows / task_share.buckets
        if budget.duration_us is None or state.measured_cost_us is None:
            return None
        return budget.duration_us * task_share.buckets_per_task / state.measured_cost_us

    def _arrivals(
        self, parcels: Iterable[Parcel]
    ) -> tuple[Arrivals | None, int, int | None, list[pa.RecordBatch]]:
        """Return the arrivals, the number of dropped rows, the newest time, and the dropped rows to store.

        The arrivals are conflated if they need much memory. The last result has rows that were dropped before
        the shuffle, in their final form. Parcels may come in any order, because rows carry their positions.
        """
        dropped = size_bytes = 0
        newest: int | None = None
        held: list[Arrivals] = []
        unusable: list[pa.RecordBatch] = []
        conflates = self.options.semantics == Semantics.UPDATE and self.late is None
        for parcel in parcels:
            dropped += parcel.dropped
            if parcel.batch is None:
                continue
            if side_of(parcel.batch) == DROPPED:
                unusable.append(parcel.batch)
                continue
            if (told := newest_of(parcel.batch)) is not None:
                newest = told if newest is None else max(newest, told)
                continue
            held.append(Arrivals.from_batch(parcel.batch, self.stream.schema))
            size_bytes += parcel.batch.nbytes
            if size_bytes > _HELD_BYTES and conflates:
                held, size_bytes = [conflate(self.stream, Arrivals.concat(held))], 0
        arrivals = Arrivals.concat(held) if held else None
        if arrivals is not None and self.late is not None and self.stream.source:
            arrivals = order_ties(self.stream, arrivals)
        return arrivals, dropped, newest, unusable


def local_directory() -> Path | None:
    """Return Spark's local directory for a worker's files, which Spark removes with the application."""
    directories = os.environ.get(_LOCAL_DIRECTORIES, "")
    return Path(directories.split(",")[0]) if directories else None


def describe(task_share: TaskShare) -> str:
    """Name a bucket in the log."""
    return f"query={task_share.query_id} batch={task_share.batch_id} bucket={task_share.bucket} "


def follows_clock(policy: Policy, budget: Budget) -> bool:
    """Return whether the tuples that a micro-batch serves depend on the clock."""
    return budget.duration_us is not None or (policy.uses_rates and budget.rows is not None)


def share(budget: Budget, task_share: TaskShare) -> Budget:
    """Return a bucket's share of a budget.

    Shares of rows add up to the budget. If the rows cannot be divided evenly, some buckets get one more row,
    and these buckets change with each batch. Buckets that are served one after the other divide a
    time budget.
    """
    rows, duration = budget.rows, budget.duration_us
    if rows is not None:
        rows = (rows + (task_share.bucket + task_share.batch_id) % task_share.buckets) // task_share.buckets
    if duration is not None:
        duration = max(duration * min(task_share.served_at_once, task_share.buckets) // task_share.buckets, 1)
    return Budget(rows, duration)
