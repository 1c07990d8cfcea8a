"""The results of window queue operations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from penstock.operators.update_stream.choices import WindowMode
from penstock.operators.update_stream.stream import Integers

__all__ = ["DeliverableWindows", "EnqueuedPanes", "KeyState", "ServedWindows", "WindowMode"]


class KeyState(StrEnum):
    """A state of the Key Transition Graph, drawn in `penstock.windows.update.queue`."""

    ENQ = "enq"
    WAIT = "wait"
    READY = "ready"
    IDLE = "idle"
    DONE = "done"


class DeliverableWindows(Protocol):
    """The parts of served windows that `deliver` needs."""

    @property
    def ids(self) -> Integers:
        """Key number of each window."""

    @property
    def arrived_us(self) -> Integers:
        """Completion time of the oldest pending window of each key."""

    @property
    def booked_us(self) -> Integers:
        """Time up to which application staleness is counted."""


@dataclass(frozen=True, slots=True)
class EnqueuedPanes:
    """The result of one `WindowQueue.enqueue`.

    Attributes
    ----------
    rows_in : int
        The number of all entries.
    late : int
        Entries dropped because the watermark has passed their pane, or because their key already has this
        pane or a newer pane.
    completed : int
        The number of windows that became complete.
    disregarded : int
        Complete windows that a newer window replaced, so that they are not emitted. Some of them became
        complete in earlier calls. At any time, every completed window is emitted, disregarded, waiting or
        committed.
    """

    rows_in: int = 0
    late: int = 0
    completed: int = 0
    disregarded: int = 0


@dataclass(frozen=True, slots=True)
class ServedWindows:
    """Complete windows that left the queue, in service order.

    Attributes
    ----------
    ids : int64 array
        Key numbers.
    start_pane : int64 array
        First pane of each window, even if the key has no tuple in this pane.
    rows : pyarrow.RecordBatch
        Payload of the panes of all windows, ordered by window and pane.
    panes : int64 array
        The pane of each row.
    bounds : int64 array
        Window i has the rows ``[bounds[i], bounds[i + 1])``. Each window has at least one row.
    arrived_us : int64 array
        Completion time of the oldest pending window of each key.
    booked_us : int64 array
        Time up to which each key's application staleness is counted.
    staleness_us : int64 array
        Queue staleness of each key when its window was committed.
    """

    ids: Integers
    start_pane: Integers
    rows: pa.RecordBatch
    panes: Integers
    bounds: Integers
    arrived_us: Integers
    booked_us: Integers
    staleness_us: Integers

    def __len__(self) -> int:
        return len(self.ids)
