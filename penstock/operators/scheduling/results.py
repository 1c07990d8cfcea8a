"""The results of queue operations."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.update_stream.stream import Integers

__all__ = ["Enqueued", "Served"]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The result of one `UpdateQueue.enqueue`.

    Attributes
    ----------
    rows_in : int
        The number of all arriving tuples, including conflated tuples.
    conflated : int
        Tuples replaced by a newer tuple of their key before they were served.
    late : int
        Tuples dropped because a newer tuple of their key had been emitted.
    duplicates : int
        For a union: tuples dropped because another tuple with the same key and time was kept.
    """

    rows_in: int = 0
    conflated: int = 0
    late: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """Tuples that left the queue, in service order.

    Attributes
    ----------
    rows : pyarrow.RecordBatch
        The tuples, with the columns of the stream.
    ids : int64 array
        The key number of each tuple.
    staleness_us : int64 array
        The queue staleness of each key when the key was dequeued.
    arrived_us : int64 array
        The arrival time of each key's oldest pending update.
    booked_us : int64 array
        The time up to which application staleness had been counted when the key was dequeued.
    """

    rows: pa.RecordBatch
    ids: Integers
    arrived_us: Integers
    staleness_us: Integers
    booked_us: Integers
