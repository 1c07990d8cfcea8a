"""What becomes of tuples in a queue."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.update_stream.stream import Integers

__all__ = ["Enqueued", "Served"]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of the tuples of one `UpdateQueue.enqueue`.

    Attributes
    ----------
    rows_in : int
        All tuples, conflated ones included.
    conflated : int
        Tuples superseded by a newer one of their key before they were served.
    late : int
        Tuples dropped because a newer one of their key had been emitted.
    duplicates : int
        Of a union: tuples dropped because another one of their key and time was kept.
    """

    rows_in: int = 0
    conflated: int = 0
    late: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """Tuples that left the queue, in the order in which they are served.

    Attributes
    ----------
    rows : pyarrow.RecordBatch
        The tuples, with the columns of the stream.
    ids : int64 array
        The numbers of their keys.
    staleness_us : int64 array
        The queue staleness of each key when it was dequeued.
    arrived_us : int64 array
        When the oldest pending update of each key arrived.
    booked_us : int64 array
        Up to when the application staleness of each key was booked at its dequeue.
    """

    rows: pa.RecordBatch
    ids: Integers
    arrived_us: Integers
    staleness_us: Integers
    booked_us: Integers
