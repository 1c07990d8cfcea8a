"""A discrete-event server: one queue, one server, a fixed cost per tuple."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.operators.scheduling.results import Served
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.simulation.traces import UNIT_US, Trace
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import Integers, UpdateStream

__all__ = ["Outcome", "Queue", "simulate", "update_stream"]


class Queue(Protocol):
    """The queue interface of the server: an update queue or an append queue."""

    def __len__(self) -> int:
        """Return the number of waiting entries."""

    def enqueue(self, arrivals: Arrivals, now_us: int) -> Any:
        """Enqueue arrivals."""

    def dequeue(self, limit: int, now_us: int) -> Served:
        """Remove up to `limit` tuples."""

    def deliver(self, served: Served, now_us: int) -> None:
        """Record that results have reached the application."""

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Return queue and application staleness since the last call."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measurements of one simulated run.

    Attributes
    ----------
    queue, application : Staleness
        The queue and application staleness that the queue's own meters measured.
    delivered : int
        Number of delivered results.
    wait_us : float
        The mean queue staleness of tuples when they were dequeued.
    """

    queue: Staleness
    application: Staleness
    delivered: int
    wait_us: float

    @property
    def queue_updates(self) -> float:
        """Average queue staleness in numbers of updates, one per unit of time."""
        return self.queue.average_ms * 1000 / UNIT_US

    @property
    def application_updates(self) -> float:
        """Average application staleness in numbers of updates."""
        return self.application.average_ms * 1000 / UNIT_US


def update_stream() -> UpdateStream:
    """Return a stream without an arrival column: tuples arrive when they are enqueued."""
    return UpdateStream(pa.schema([("key", pa.int64()), ("time", pa.int64())]), ("key",), "time")


def simulate(
    queue: Queue,
    stream: UpdateStream,
    trace: Trace,
    cost_us: int,
    *,
    watch: Callable[[], None] = lambda: None,
    served: Callable[[int], None] = lambda count: None,
    deliveries: int | None = None,
) -> Outcome:
    """Let one server work on `queue` while `trace` arrives.

    A free server takes the tuple at the head, if any, and delivers its result after `cost_us`. At equal times
    the server takes a tuple before an arrival enters. If `stream` has an arrival column, all arrivals during
    a service enter the queue together; for schedulers that ignore time (FIFO, IN-PLACE), this makes no
    difference. Otherwise each arrival enters at its own time.

    Parameters
    ----------
    watch : callable
        Called after every change of the queue's content.
    served : callable
        Called after every service with the number of served tuples; for queues that measure costs.
    deliveries : int, optional
        The number of results after which the run stops.
    """
    times = trace.times_us
    arriving, free, count, waits = 0, 0, 0, 0
    while deliveries is None or count < deliveries:
        if not len(queue):
            if arriving == len(times):
                break
            free = max(free, int(times[arriving]))
            until = int(np.searchsorted(times, times[arriving], side="right"))
            _enter(queue, stream, trace, arriving, until)
            arriving = until
            watch()
            continue
        served_tuples = queue.dequeue(1, free)
        waits += int(served_tuples.staleness_us[0])
        count += 1
        watch()
        free += cost_us
        until = int(np.searchsorted(times, free, side="left"))
        if until > arriving:
            _enter(queue, stream, trace, arriving, until)
            arriving = until
            watch()
        queue.deliver(served_tuples, free)
        served(1)
        if free >= trace.end_us:
            break
    waiting, application = queue.account_staleness(max(free, trace.end_us) if deliveries is None else free)
    return Outcome(waiting, application, count, waits / max(count, 1))


def _enter(queue: Queue, stream: UpdateStream, trace: Trace, begin: int, end: int) -> None:
    if stream.arrival:
        queue.enqueue(_arrivals(stream, trace, begin, end), int(trace.times_us[end - 1]))
        return
    for row in range(begin, end):
        queue.enqueue(_arrivals(stream, trace, row, row + 1), int(trace.times_us[row]))


def _arrivals(stream: UpdateStream, trace: Trace, begin: int, end: int) -> Arrivals:
    times: Integers = trace.times_us[begin:end]
    columns = [pa.array(trace.keys[begin:end]), pa.array(np.arange(begin, end))]
    if stream.arrival:
        columns.append(pa.array(times).view(pa.timestamp("us")))
    return Arrivals.from_rows(stream, pa.RecordBatch.from_arrays(columns, schema=stream.schema), begin)
