"""Micro-batches of the real operator in several buckets, under a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock._clock import SimulatedClock
from penstock.errors import InvalidUsageError
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.freshness.control import ContractControl
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.adaptive_queue import AdaptiveQueue
from penstock.operators.scheduling.metrics import BatchMetrics
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import Integers, UpdateStream
from penstock.state_store.keys.key_words import buckets_of

__all__ = ["Engine", "MicroBatch", "run_micro_batches"]


@dataclass(frozen=True, slots=True)
class Engine:
    """The costs outside of the operator's own code.

    Attributes
    ----------
    fixed_us : int
        The time of a micro-batch without tuples. Half of this time passes before the operator runs.
    each_fixed_us : tuple of int
        The fixed times of the micro-batches of a test run. Simulated micro-batches take these times in turn,
        instead of `fixed_us`. If empty, all micro-batches take `fixed_us`.
    cost_us : float
        Time to process a tuple in the operator, on one core.
    sink_us : float
        Time to write a result, in one sink downstream of all cores.
    """

    fixed_us: int
    cost_us: float
    sink_us: float = 0.0
    each_fixed_us: tuple[int, ...] = ()

    def fixed_of(self, number: int) -> int:
        """Return the time of a micro-batch without tuples."""
        return self.each_fixed_us[number % len(self.each_fixed_us)] if self.each_fixed_us else self.fixed_us


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A finished micro-batch.

    Attributes
    ----------
    started_us, ended_us : int
        The time of the trigger, and the time at which the results are in the sink.
    metrics : BatchMetrics
        The metrics of all buckets.
    """

    started_us: int
    ended_us: int
    metrics: BatchMetrics


def run_micro_batches(
    queues: Sequence[KeyedQueue],
    rows: pa.RecordBatch,
    arrived_us: Integers,
    engine_at: Callable[[int], Engine],
    limits: Budget | FreshnessContract,
    *,
    end_us: int | None = None,
    place: str | None = None,
    paced: bool = False,
) -> Iterator[MicroBatch]:
    """Run micro-batches back to back while rows arrive, and yield each micro-batch.

    A micro-batch takes all rows that have arrived when it starts. A bucket runs if rows arrive or wait in it.

    Parameters
    ----------
    queues : sequence of KeyedQueue
        New queues of the same kind, one for each bucket. Each bucket has its own core.
    rows : pyarrow.RecordBatch
        All rows, in order of arrival.
    arrived_us : int64 array
        The arrival times of the rows.
    engine_at : callable
        Returns the `Engine` that applies at a given time.
    limits : Budget or FreshnessContract
        The budget of each bucket, or the contract that chooses it.
    end_us : int, optional
        The time after which no micro-batch starts; by default, micro-batches run until nothing waits.
    place : str, optional
        See `ContractControl`.
    paced : bool
        Whether the next micro-batch starts after the trigger interval that the contract chooses.
    """
    stream = queues[0].stream
    hashes = stream.keys(rows).hashes
    buckets = buckets_of(hashes, len(queues))
    position, now, number = 0, 0, 0
    while True:
        if not any(map(len, queues)):
            if position == len(arrived_us):
                return
            now = max(now, int(arrived_us[position]))
        if end_us is not None and now > end_us:
            return
        engine = engine_at(now)
        until = int(np.searchsorted(arrived_us, now, side="right"))
        fixed_us = engine.fixed_of(number)
        number += 1
        started, task_us = now, now + fixed_us // 2
        parts = []
        for bucket, queue in enumerate(queues):
            chosen = position + np.flatnonzero(buckets[position:until] == bucket)
            if not len(chosen) and not len(queue):
                continue
            clock = SimulatedClock(task_us)
            arrivals = None
            if len(chosen):
                arrivals = _arrivals(stream, rows.take(pa.array(chosen)), arrived_us[chosen], position)
            parts.append(_serve(queue, arrivals, engine, limits, clock, place))
            now = max(now, clock())
        position = until
        metrics = parts[0] if len(parts) == 1 else BatchMetrics.merge(parts)
        now += round(engine.sink_us * metrics.emitted) + fixed_us - fixed_us // 2
        yield MicroBatch(started, now, metrics)
        if paced:
            now = max(now, started + round(1000 * metrics.interval_ms))


def _arrivals(stream: UpdateStream, rows: pa.RecordBatch, arrived_us: Integers, first: int) -> Arrivals:
    if stream.arrival is None:
        raise InvalidUsageError("simulated rows have no arrival column", hint="pass arrival=")
    place = rows.schema.get_field_index(stream.arrival)
    kind = rows.schema.field(place).type
    arrived = pa.array(arrived_us).view(pa.timestamp("us")).cast(kind)
    return Arrivals.from_rows(stream, rows.set_column(place, rows.schema.field(place), arrived), first)


def _serve(
    queue: KeyedQueue,
    arrivals: Arrivals | None,
    engine: Engine,
    limits: Budget | FreshnessContract,
    clock: SimulatedClock,
    place: str | None,
) -> BatchMetrics:
    def process(tuples: pa.Table) -> pa.Table:
        clock.advance(round(engine.cost_us * tuples.num_rows))
        return tuples

    query = Query(process if engine.cost_us else None, queue.stream.schema, queue.stream.key)
    if isinstance(limits, Budget):
        return serve(queue, arrivals, query=query, budget=limits, clock=clock)[1]
    since = None if arrivals is None or arrivals.first_arrival_us is None else arrivals.first_arrival_us
    queue.given_cost_us = None
    control = ContractControl(
        limits, queue, since_us=None if since is None else int(since.min()), place=place
    )
    if isinstance(queue, AdaptiveQueue):
        queue.capacity, queue.patience = control.capacity, control.patience
    return serve(queue, arrivals, query=query, budget=control, clock=clock)[1]
