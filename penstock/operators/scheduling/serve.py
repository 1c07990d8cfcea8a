"""Run one micro-batch of an update queue: enqueue arrivals, then serve within the budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from penstock._clock import Clock
from penstock._failpoints import failpoint
from penstock.errors import InvalidUsageError, PenstockError, users_code_error
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.update_stream.cast import cast_to_schema, fits
from penstock.operators.update_stream.operator_options import STALENESS_COLUMN, Apply
from penstock.operators.update_stream.options import Budget
from penstock.operators.update_stream.stream import SOURCE_COLUMN, Integers
from penstock.state_store.keys.key_words import KeyCodec, Keys

__all__ = ["STALENESS_COLUMN", "Apply", "Budget", "BudgetControl", "Query", "serve"]

A_contra = TypeVar("A_contra", contravariant=True)

_CHUNK_ROWS = 65_536
_CHUNKS_PER_BUDGET = 8
_MAX_CHUNK_GROWTH = 4


class BudgetControl(Protocol):
    """Chooses the budget of a micro-batch, and adapts to its measurements."""

    def plan(self, started_us: int) -> Budget:
        """Return the budget. The arrivals are already in the queue."""

    def account_batch(self, finished_us: int, serving_us: int, metrics: BatchMetrics) -> None:
        """Record the served tuples. `metrics` is complete, except for the metrics of state."""


class ServedQueue(Protocol[A_contra]):
    """The queue interface that `serve` needs; `A` is the type of arrivals."""

    measured_cost_us: float | None

    def __len__(self) -> int:
        """Return the number of waiting tuples, or of keys whose windows wait."""

    @property
    def servable(self) -> int:
        """Number of keys that an unlimited dequeue would serve."""

    @property
    def keys(self) -> int:
        """Number of keys ever seen."""

    @property
    def cost_us(self) -> float | None:
        """The cost of a tuple for linecutting; None while unknown."""

    @property
    def served_at_us(self) -> int | None:
        """The time of the last dequeue or, if later, of the first arrival after the queue was empty."""

    def numbers_of(self, keys: Keys) -> Integers:
        """Return the number of each key, -1 for unknown keys."""

    def enqueue(self, arrivals: A_contra, now_us: int) -> Enqueued:
        """Enqueue arrivals."""

    def dequeue(self, limit: int, now_us: int) -> Served:
        """Serve up to `limit` keys."""

    def deliver(self, served: Served, now_us: int) -> None:
        """Record that results have reached the application."""

    def observe_cost(self, elapsed_us: float, tuples: int, ids: Integers | None = None) -> None:
        """Record the time that serving tuples took; `ids` are the keys of the tuples, if given."""

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Return queue and application staleness since the last call."""


@dataclass(frozen=True)
class Query:
    """The processing of served tuples before they are emitted.

    Parameters
    ----------
    apply : callable, optional
        The query; by default tuples are emitted as they are.
    output : pyarrow.Schema
        Output schema. The result of `apply` must have these columns, by name.
    key : tuple of str
        The update key's columns, which the results must have (UpStream §3.2).
    staleness_column : bool
        Whether to add `STALENESS_COLUMN` (before `apply`).
    """

    apply: Apply | None
    output: pa.Schema
    key: tuple[str, ...]
    staleness_column: bool = False
    _codec: KeyCodec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that the results have the key."""
        missing = [name for name in self.key if name not in self.output.names]
        if missing:
            raise InvalidUsageError(
                "the output schema drops key columns", missing=missing, hint="keep the update key"
            )
        codec = KeyCodec([self.output.field(name) for name in self.key])
        object.__setattr__(self, "_codec", codec)

    def run(self, queue: ServedQueue[Any], served: Served) -> list[pa.RecordBatch]:
        """Return the rows to emit for `served`.

        Raises
        ------
        InvalidUsageError
            If `apply` raises an error, or its result is not a table, has wrong columns or types, or has keys
            that `served` does not have.
        """
        rows = served.rows
        if SOURCE_COLUMN in rows.schema.names:
            rows = rows.drop_columns([SOURCE_COLUMN])
        if self.staleness_column:
            staleness = pa.array(served.staleness_us / 1000.0)
            rows = rows.append_column(STALENESS_COLUMN, staleness)
        if self.apply is None:
            return [rows]
        try:
            result = self.apply(pa.Table.from_batches([rows]))
        except PenstockError:
            raise
        except Exception as error:
            raise users_code_error("apply raised an error", error, rows=rows.num_rows) from error
        return self._check_result(result, queue, served)

    def _wrong_types(self, got: dict[str, pa.DataType]) -> InvalidUsageError:
        return InvalidUsageError(
            "apply returned columns of other types than the output schema's",
            returned={name: str(kind) for name, kind in got.items()},
            expected={field.name: str(field.type) for field in self.output},
        )

    def _check_result(self, result: Any, queue: ServedQueue[Any], served: Served) -> list[pa.RecordBatch]:
        if isinstance(result, pa.RecordBatch):
            result = pa.Table.from_batches([result])
        if not isinstance(result, pa.Table):
            raise InvalidUsageError("apply did not return a pyarrow table", returned=type(result).__name__)
        missing = [name for name in self.output.names if name not in result.column_names]
        if missing:
            raise InvalidUsageError(
                "apply dropped key columns"
                if set(missing) & set(self.key)
                else "apply returned a table without columns of the output schema",
                missing=missing,
                returned=result.column_names,
                expected=self.output.names,
            )
        extra = [name for name in result.column_names if name not in self.output.names]
        if extra:
            raise InvalidUsageError(
                "apply returned columns that the output schema does not have",
                columns=extra,
                expected=self.output.names,
                hint="name them in output_schema or drop them",
            )
        if len(result.column_names) > len(self.output.names):
            raise InvalidUsageError("apply returned columns whose names repeat", returned=result.column_names)
        got = {field.name: result.schema.field(field.name).type for field in self.output}
        if not all(fits(got[field.name], field.type) for field in self.output):
            raise self._wrong_types(got)
        try:
            chosen = result.select(self.output.names).to_batches()
            table = pa.Table.from_batches([cast_to_schema(part, self.output) for part in chosen], self.output)
        # A value does not fit although the types do, or a null is forbidden.
        except ValueError as error:
            raise self._wrong_types(got) from error
        # A text column of more than 2 GiB does not fit into one batch.
        batches = [batch for batch in table.combine_chunks().to_batches() if batch.num_rows]
        for batch in batches:
            columns = [batch.column(name) for name in self.key]
            if any(column.null_count for column in columns):
                raise InvalidUsageError("apply returned rows with a null key", key=list(self.key))
            if not np.isin(queue.numbers_of(self._codec.encode(columns)), served.ids).all():
                raise InvalidUsageError(
                    "apply changed the update key of rows",
                    key=list(self.key),
                    hint="results keep the key of the tuple that they come from",
                )
        return batches


def serve(
    queue: ServedQueue[A_contra],
    arrivals: A_contra | None,
    *,
    query: Query,
    budget: Budget | BudgetControl,
    clock: Clock,
    buckets_per_task: int = 1,
    chunk_rows: int = _CHUNK_ROWS,
) -> tuple[list[pa.RecordBatch], BatchMetrics]:
    """Run one micro-batch on `queue`: enqueue, serve within the budget, account for the batch.

    Parameters
    ----------
    budget : Budget or BudgetControl
        The limits. With a `BudgetControl`, all results count as delivered at the end, when the micro-batch
        returns them.
    buckets_per_task : int
        Number of queues that share one processor. The scheduler's cost of a tuple is the time of `query`
        multiplied by this number.
    chunk_rows : int
        Maximum number of tuples that are served at once.

    Returns
    -------
    batches : list of pyarrow.RecordBatch
        The rows to emit, in the order in which keys were served.
    metrics : BatchMetrics
        The metrics so far; the caller adds state and dropped rows.
    """
    started = clock()
    waited = len(queue) > 0
    served_at = queue.served_at_us
    metrics = BatchMetrics()
    if arrivals is not None:
        entered = queue.enqueue(arrivals, started)
        metrics.rows_in = entered.rows_in
        metrics.conflated = entered.conflated
        metrics.late = entered.late
        metrics.duplicates = entered.duplicates
    enqueued = clock()
    failpoint("operator.after_enqueue")
    control = None if isinstance(budget, Budget) else budget
    if not isinstance(budget, Budget):
        budget = budget.plan(started)
    batches = []
    undelivered = []
    chunk = 0
    # Without a query, a time budget limits the queue's own work.
    timed = query.apply is not None or budget.duration_us is not None
    while queue.servable and (budget.rows is None or metrics.budget_used_rows < budget.rows):
        begin = clock()
        most = chunk_rows if budget.rows is None else min(chunk_rows, budget.rows - metrics.budget_used_rows)
        chunk = _next_chunk(queue, budget, most, begin - enqueued, chunk, buckets_per_task)
        if chunk <= 0:
            break
        waiting = len(queue)
        served = queue.dequeue(chunk, begin)
        # A window queue may choose windows that are not complete yet.
        used = max(len(served.ids), waiting - len(queue))
        metrics.budget_used_rows += used
        results = query.run(queue, served)
        end = clock()
        if timed:
            queue.observe_cost((end - begin) * buckets_per_task, used, served.ids)
        if control is None:
            queue.deliver(served, end)
        else:
            undelivered.append(served)
        metrics.emitted += len(served.ids)
        metrics.rows_out += sum(rows.num_rows for rows in results)
        batches += results
    finished = clock()
    for served in undelivered:
        queue.deliver(served, finished)
    failpoint("operator.after_apply")
    if not timed and waited and served_at is not None:
        # Without a query and a time budget, the cost of the served tuples is the time between two services.
        queue.observe_cost(finished - served_at, metrics.emitted)
    metrics.queue_staleness, metrics.application_staleness = queue.account_staleness(finished)
    metrics.waiting_keys = queue.servable
    metrics.keys = queue.keys
    metrics.cost_us = queue.cost_us
    metrics.budget_used_ms = (finished - enqueued) / 1000
    metrics.duration_ms = {
        "enqueue": (enqueued - started) / 1000,
        "serve": (finished - enqueued) / 1000,
    }
    if control is not None:
        control.account_batch(finished, finished - enqueued, metrics)
    return batches, metrics


def _next_chunk(
    queue: ServedQueue[A_contra],
    budget: Budget,
    most: int,
    elapsed_us: int,
    previous: int,
    buckets_per_task: int,
) -> int:
    """Return the number of tuples to serve next, up to `most`; 0 if the budget is used up."""
    if budget.duration_us is None:
        return most
    left = budget.duration_us - elapsed_us
    if left <= 0:
        return 0 if previous else 1
    measured = queue.measured_cost_us
    if measured is None:
        return 1
    share = min(left, budget.duration_us // _CHUNKS_PER_BUDGET)
    chunk = max(int(share * buckets_per_task / measured), 1)
    return min(chunk, most, previous * _MAX_CHUNK_GROWTH if previous else chunk)
