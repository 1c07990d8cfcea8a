"""A window queue whose tuples are served one at a time, as in the paper (UpStream §6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock._kernels import kernel
from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.stream import Integers
from penstock.windows.update import transitions, zones
from penstock.windows.update.queue import WindowQueue
from penstock.windows.update.results import ServedWindows
from penstock.windows.update.transitions import IDLE, _end, _first_needed, _pop_ready
from penstock.windows.update.zones import (
    BLOCK_ROWS,
    CLOSED,
    COMMITTED,
    DF,
    DQ,
    FIRST,
    FOREVER,
    MARK,
    NEVER,
    NEXT,
    NONE,
    NQ,
    PANE,
    READY_HEAD,
    SERVICE,
    State,
    free_head,
)

__all__ = ["MarkedTuple", "TupleWindowQueue"]


@dataclass(frozen=True, slots=True)
class MarkedTuple:
    """One tuple on its way to the operator, marked as Table 1 of the source says.

    Attributes
    ----------
    key : int
        The number of its key.
    pane : int or None
        Its pane; None where a window closes without another tuple.
    win_spec : int
        Above 0: open a window that ends so many panes later, exclusive. 0: open none, though one starts here.
        -1: within a window.
    row : pyarrow.RecordBatch or None
        Its payload.
    start_pane : int
        Where the committed window starts.
    closes : bool
        Whether the result of the window is to be emitted with it. Then it is to be delivered, too.
    ids, arrived_us, booked_us, staleness_us : int64 arrays
        As in `ServedWindows`; empty unless it closes the window.
    """

    key: int
    pane: int | None
    win_spec: int
    row: pa.RecordBatch | None
    start_pane: int
    closes: bool
    ids: Integers
    arrived_us: Integers
    booked_us: Integers
    staleness_us: Integers


@kernel
def _successor(location: int, state: State) -> int:
    """Return the location of the key's next tuple; NONE after the last tuple."""
    _, _, registers, blocks, _, _ = state
    rows = registers[BLOCK_ROWS]
    block = location // rows
    if location + 1 < block * rows + blocks[block, NQ]:
        return location + 1
    block = blocks[block, NEXT]
    return block * rows + blocks[block, DQ] if block >= 0 else NONE


@kernel
def _free_served(k: int, state: State) -> None:
    """Free the key's tuples that were served and that no later window needs."""
    key_rows, _, _, _, slots, _ = state
    dequeue_side = slots[key_rows[k, DF], PANE] if key_rows[k, DF] >= 0 else FOREVER
    free_head(k, min(dequeue_side, _first_needed(k, state)), state)


@kernel
def hand_over(out: Integers, state: State) -> bool:
    """Hand over the next tuple of the key at the head of upq; return whether there was one.

    Parameters
    ----------
    out : int64 array of 5
        Gets the key, the tuple's location (NONE where a window closes without one), its pane, its `win_spec`,
        and whether the result of its window is complete with it.
    """
    key_rows, _, registers, _, slots, _ = state
    while registers[READY_HEAD] >= 0:
        k = registers[READY_HEAD]
        complete = key_rows[k, COMMITTED] <= key_rows[k, CLOSED]
        out[0] = k
        if key_rows[k, DF] >= 0:  # isAvail: the committed window has a tuple that was not served
            at, end = key_rows[k, DF], _end(key_rows[k, COMMITTED], state)
            out[1] = at
            out[2] = slots[at, PANE]
            out[3] = end - slots[at, PANE] if key_rows[k, FIRST] else slots[at, MARK]
            key_rows[k, FIRST] = 0
            following = _successor(at, state)
            if following >= 0 and slots[following, PANE] >= end:
                following = NONE
            key_rows[k, DF] = following
            out[4] = 1 if complete and following < 0 else 0
            if out[4]:
                _pop_ready(NONE, state)
            else:
                _free_served(k, state)
            return True
        _pop_ready(NONE, state)
        if complete:
            out[1], out[2], out[3], out[4] = NONE, NEVER, -1, 1
            return True
        key_rows[k, SERVICE] = IDLE
    return False


class TupleWindowQueue(WindowQueue):
    """A window queue whose tuples are taken one at a time (`take`). It cannot be stored."""

    def dequeue(self, limit: int, now_us: int) -> ServedWindows:
        """Refuse: the tuples of this queue are taken one at a time."""
        raise InvalidUsageError("the tuples of this queue are taken one at a time", hint="call take()")

    def _unit(self, kind: str, ids: Integers, *, fresh: bool) -> PUnit:
        raise InvalidUsageError("a queue whose tuples are taken one at a time cannot be stored")

    def take(self, now_us: int) -> MarkedTuple | None:
        """Hand over the next tuple, or None if no key is READY and none can be committed to.

        The key that is served goes on until its window has no more; then the next of those under processing,
        and only when there is none, the head of the waiting keys (UpStream §6.2).
        """
        out = np.empty(5, np.int64)
        buffers = self.buffers
        with buffers.state() as state:
            if not hand_over(out, state):
                chosen = self.scheduler.pop(1, buffers.key_rows[:, zones.SERVICE], now_us)
                if not len(chosen):
                    return None
                self._commit(chosen, now_us, state)
                hand_over(out, state)
            key, location, pane, mark, closes = out.tolist()
            start = int(buffers.key_rows[key, zones.COMMITTED]) * self.slide
            row = None if location < 0 else buffers.take(np.array([location]))
            ids = np.array([key] if closes else [], np.int64)
            waited = buffers.key_rows[ids, zones.WAITED]
            pending, booked = np.empty_like(ids), np.empty_like(ids)
            transitions.finish(ids, pending, booked, state)
        self._in_service += closes
        self._served_at = now_us
        return MarkedTuple(
            key, None if row is None else pane, mark, row, start, bool(closes), ids, pending, booked, waited
        )

    def waiting_window(self, key: int) -> int | None:
        """Return the first pane of the window that a key waits with (WS); None if it does not wait."""
        key_rows = self.buffers.key_rows
        known = key < len(key_rows) and key_rows[key, zones.CANDIDATE] != zones.NEVER
        return int(key_rows[key, zones.CANDIDATE]) * self.slide if known else None

    def stale_since(self, key: int) -> tuple[int | None, int | None]:
        """Return since when a key waits, and when its oldest complete window not emitted was completed."""
        if key >= len(self.buffers.key_rows):
            return None, None
        since, pending = self.buffers.key_rows[key, [zones.SINCE, zones.PENDING]].tolist()
        return None if since == zones.NEVER else since, None if pending == zones.NEVER else pending
