"""What goes in and out of a window queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from penstock.operators.update_stream.choices import WindowMode
from penstock.operators.update_stream.stream import Integers

__all__ = ["DeliverableWindows", "EnqueuedPanes", "KeyState", "ServedWindows", "WindowMode"]


class KeyState(StrEnum):
    """A state of the Key Transition Graph, which `penstock.operators.windows.update.queue` draws."""

    ENQ = "enq"
    WAIT = "wait"
    READY = "ready"
    IDLE = "idle"
    DONE = "done"


class DeliverableWindows(Protocol):
    """Served windows whose results can be delivered."""

    @property
    def ids(self) -> Integers:
        """The key of each window."""

    @property
    def arrived_us(self) -> Integers:
        """Since when a complete window of each key is pending."""

    @property
    def booked_us(self) -> Integers:
        """Up to when that is booked."""


@dataclass(frozen=True, slots=True)
class EnqueuedPanes:
    """What became of one `WindowQueue.enqueue`.

    Attributes
    ----------
    rows_in : int
        All entries.
    late : int
        Entries dropped because they came after the watermark or a newer pane of their key.
    completed : int
        Windows that became complete.
    disregarded : int
        Complete windows that will not be emitted, as a newer one is; some of them may have become complete
        before. At any time, all completed are the emitted, the disregarded, and those that wait or are
        committed to.
    """

    rows_in: int = 0
    late: int = 0
    completed: int = 0
    disregarded: int = 0


@dataclass(frozen=True, slots=True)
class ServedWindows:
    """Whole windows that left the queue, in the order in which they are served.

    Attributes
    ----------
    ids : int64 array
        The numbers of their keys.
    start_pane : int64 array
        The first pane of each window, whether or not the key has a tuple there.
    rows : pyarrow.RecordBatch
        The payload of the panes of all windows, in the order of windows and panes.
    panes : int64 array
        The pane of each row.
    bounds : int64 array
        Window i has the rows from ``bounds[i]`` to ``bounds[i + 1]``, exclusive; at least one.
    arrived_us : int64 array
        When the oldest complete window of each key was completed that had not been emitted.
    booked_us : int64 array
        Up to when the application staleness of each key is booked.
    staleness_us : int64 array
        The queue staleness of each key when its window was committed to.
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
        """Return the number of windows."""
        return len(self.ids)
