"""The window buffers of all keys of a window queue, and their memory (UpStream §7.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.aggregates.wide import cast_sums, narrow_words, schema_like
from penstock.operators.key_blocks import OWNER
from penstock.operators.queues.pages import PagedMemory
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers
from penstock.state_store.keys.key_index import grow
from penstock.state_store.tables.row_store import RowStore
from penstock.windows.update import transitions, zones

__all__ = ["OWN_COLUMNS", "WindowBuffers"]

_PANE = f"{RESERVED_PREFIX}pane"
_MARK = f"{RESERVED_PREFIX}mark"
OWN_COLUMNS = (OWNER, _PANE, _MARK)
"""The columns of stored tuples that are not in the payload."""
_STORED = {
    "newest": zones.NEWEST,
    "closed": zones.CLOSED,
    "candidate": zones.CANDIDATE,
    "committed": zones.COMMITTED,
    "service": zones.SERVICE,
    "ready_rank": zones.READY_RANK,
    "since_us": zones.SINCE,
    "pending_us": zones.PENDING,
    "next_pending_us": zones.NEXT_PENDING,
    "waited_us": zones.WAITED,
}
_NO_IDS = np.zeros(0, np.int64)


class WindowBuffers:
    """The key rows of a `WindowQueue`, their zones, and the payload of their tuples.

    `penstock.windows.update.zones` describes the arrays.

    Parameters
    ----------
    payload : pyarrow.Schema
        The payload columns of a tuple.
    size, slide : int
        Size and slide of the windows, in panes.
    eager : bool
        Whether the queue is in eager mode, where a window may be committed before it is complete.
    before_first : int
        The window before the first window that exists; NEVER if there is no first window.
    block_rows, page_blocks : int
        The number of locations in a block, and of blocks in a page.
    """

    def __init__(
        self,
        payload: pa.Schema,
        size: int,
        slide: int,
        *,
        eager: bool,
        before_first: int,
        block_rows: int,
        page_blocks: int,
    ) -> None:
        if block_rows < 1:
            raise InvalidUsageError("a block has at least one location", block_rows=block_rows)
        self.payload = payload
        ours = (pa.field(name, pa.int64(), nullable=False) for name in OWN_COLUMNS)
        self._stored = pa.schema([*ours, *payload])
        self.memory = PagedMemory(page_blocks)
        self._block_rows = block_rows
        self._new_key_row = np.zeros(zones.KEY_ROW_WIDTH, np.int64)
        self._new_key_row[[zones.HEAD, zones.ET, zones.DF]] = zones.NONE
        self._new_key_row[[zones.CANDIDATE, zones.COMMITTED, zones.NEWEST]] = zones.NEVER
        self._new_key_row[[zones.SINCE, zones.PENDING, zones.NEXT_PENDING]] = zones.NEVER
        self._new_key_row[zones.CLOSED] = before_first
        self._rows = RowStore(payload)
        self.key_rows = np.zeros((0, zones.KEY_ROW_WIDTH), np.int64)
        self.due = np.zeros(0, np.int64)
        self.registers = np.zeros(zones.REGISTERS, np.int64)
        self.registers[[zones.SIZE, zones.SLIDE, zones.BLOCK_ROWS]] = size, slide, block_rows
        self.registers[zones.EAGER] = eager
        self.registers[[zones.READY_HEAD, zones.READY_TAIL]] = zones.NONE
        self._blocks = np.zeros((0, 4), np.int64)
        self._slots = np.zeros((0, 4), np.int64)

    @property
    def size_bytes(self) -> int:
        """Memory of the buffers in bytes."""
        arrays = (self.key_rows, self.due, self._blocks, self._slots)
        return sum(array.nbytes for array in arrays) + self.memory.size_bytes + self._rows.size_bytes

    def make_key_rows(self, keys: int) -> bool:
        """Grow the arrays for key numbers below `keys`; return whether they grew."""
        size = len(self.key_rows)
        if keys <= size:
            return False
        self.key_rows = grow(self.key_rows, keys)
        self.key_rows[size:] = self._new_key_row
        self.due = grow(self.due, keys)
        self.due[size:] = zones.FOREVER
        return True

    def is_idle(self, ids: Integers) -> npt.NDArray[np.bool_]:
        """Mark the idle keys: no window waits, is being served, or may still become complete."""
        of = self.key_rows[ids]
        idle = (of[:, zones.NEWEST] != zones.NEVER) & (of[:, zones.CANDIDATE] == zones.NEVER)
        idle &= (of[:, zones.SERVICE] == transitions.FREE) & (of[:, zones.IN_SERVICE] == 0)
        last = of[:, zones.NEWEST] // self.registers[zones.SLIDE]
        marks: npt.NDArray[np.bool_] = idle & (of[:, zones.CLOSED] >= last) & (of[:, zones.ROWS] == 0)
        return marks

    def forget(self, ids: Integers) -> None:
        """Reset idle keys to the state of new keys."""
        self.key_rows[ids] = self._new_key_row
        self.due[ids] = zones.FOREVER
        self.registers[zones.KEYS] -= len(ids)

    @contextmanager
    def state(self, ids: Integers = _NO_IDS) -> Iterator[zones.State]:
        """Yield the arrays, with enough free blocks for one entry of each key in `ids`.

        When the context ends, release the unused blocks.
        """
        arrays = (self.key_rows, self.due, self.registers, self._blocks, self._slots)
        needed = zones.blocks_needed(ids, (*arrays, ids)) if len(ids) else 0
        new = self.memory.allocate(needed) if needed else _NO_IDS
        if self.memory.capacity > len(self._blocks):
            self._resize()
        # Make the stack large enough for all blocks, because all of them may become free.
        stack = np.empty(self.memory.locations_used, np.int64)
        stack[:needed] = new
        self.registers[zones.SPARE] = needed
        yield self.key_rows, self.due, self.registers, self._blocks, self._slots, stack
        spare = int(self.registers[zones.SPARE])
        if spare:
            self.memory.free(stack[:spare])
        self.registers[zones.SPARE] = 0

    def put(self, locations: Integers, rows: pa.RecordBatch) -> None:
        """Write the payload of entries to their locations, unless an entry has lost its location."""
        if not self.payload:
            return
        entries = np.flatnonzero(locations >= 0)
        entries = entries[self._slots[locations[entries], zones.ENTRY] == entries]
        payload = rows if len(entries) == rows.num_rows else rows.take(pa.array(entries))
        self._widen(schema_like(self.payload, payload.schema), locations[entries])
        self._rows.put(locations[entries], cast_sums(payload, self.payload))

    def _widen(self, payload: pa.Schema, new: Integers) -> None:
        """Widen a sum column to two words if wide sums arrive for it at the `new` locations."""
        if payload.equals(self.payload):
            return
        held = np.setdiff1d(self._all(np.arange(len(self.key_rows)), fresh=False)[0], new)
        before, self._rows = self._rows, RowStore(payload)
        self._rows.resize(self.memory.capacity * self._block_rows)
        self._rows.put(held, cast_sums(before.take(held), payload))
        self.payload = payload

    def take(self, locations: Integers) -> pa.RecordBatch:
        """Return the payload at `locations`."""
        return self._rows.take(locations)

    def panes(self, locations: Integers) -> Integers:
        """Return the panes at `locations`."""
        return self._slots[locations, zones.PANE]

    def find(
        self, ids: Integers, begins: Integers, ends: Integers, *, fresh: bool = False
    ) -> tuple[Integers, Integers]:
        """Return the locations of each key's panes in [begin, end), and the bounds of each key's locations.

        Parameters
        ----------
        fresh : bool
            Whether to return only panes that were not stored yet.
        """
        arrays = (self.key_rows, self.due, self.registers, self._blocks, self._slots, _NO_IDS)
        bounds = np.zeros(len(ids) + 1, np.int64)
        zones.count_slots(ids, begins, ends, fresh, bounds, arrays)
        locations = np.empty(bounds[-1], np.int64)
        zones.list_slots(ids, begins, ends, fresh, bounds, locations, arrays)
        return locations, bounds

    def compact(self) -> None:
        """Release unused memory."""
        if self.memory.shrink():
            self._resize()
        if self._rows.may_compact:
            self._rows.compact(self._all(np.arange(len(self.key_rows)), fresh=False)[0])

    def store(self, ids: Integers, *, fresh: bool) -> tuple[Mapping[str, Integers], pa.RecordBatch]:
        """Return the key rows and the tuples of the keys with these numbers.

        If `fresh`, return only new tuples and mark them as stored.
        """
        locations, bounds = self._all(ids, fresh=fresh)
        key_rows = {name: self.key_rows[ids, column] for name, column in _STORED.items()}
        payload = narrow_words(self._rows.take(locations))
        rows = pa.RecordBatch.from_arrays(
            [
                pa.array(np.repeat(np.arange(len(ids)), np.diff(bounds))),
                pa.array(self._slots[locations, zones.PANE]),
                pa.array(self._slots[locations, zones.MARK]),
                *payload.columns,
            ],
            schema=schema_like(self._stored, payload.schema),
        )
        if fresh:
            self._slots[locations, zones.FRESH] = 0
        return key_rows, rows

    def restore(
        self, ids: Integers, key_rows: Mapping[str, Integers], rows: pa.RecordBatch, *, replace: bool
    ) -> None:
        """Restore keys from the output of `store`: replace their whole state, or add new tuples."""
        for name, column in _STORED.items():
            self.key_rows[ids, column] = key_rows[name]
        places, panes, marks = (rows.column(name).to_numpy() for name in OWN_COLUMNS)
        later = (places[1:] > places[:-1]) | ((places[1:] == places[:-1]) & (panes[1:] > panes[:-1]))
        if len(places) and (places[0] < 0 or places[-1] >= len(ids) or not later.all()):
            raise CorruptDataError(
                "the tuples of windows are not in the order of keys and panes", block="rows"
            )
        owners = ids[places]
        locations = np.empty(len(owners), np.int64)
        with self.state() as state:
            transitions.put_back(ids, replace, state)
        with self.state(owners) as state:
            transitions.append_stored(owners, panes, marks, locations, state)
        if self.payload:
            self.put(locations, pa.RecordBatch.from_arrays(rows.columns[3:], self.payload.names))

    def account_restored(self, booked_us: int) -> None:
        """Compute, from the stored state, the part of the state that is not stored."""
        key_rows = self.key_rows
        key_rows[:, [zones.QUEUE_BOOKED, zones.APPLICATION_BOOKED, zones.DELIVERED]] = booked_us
        key_rows[:, [zones.IN_SERVICE, zones.DIRTY]] = 0
        key_rows[:, zones.DF] = zones.NONE
        waits = key_rows[:, zones.CANDIDATE] != zones.NEVER
        self.registers[zones.HELD] = np.count_nonzero(
            waits & (key_rows[:, zones.SERVICE] != transitions.FREE)
        )
        self.registers[[zones.READY_HEAD, zones.READY_TAIL]] = zones.NONE
        self.registers[[zones.READIES, zones.LAST_RANK]] = 0
        ready = np.flatnonzero(key_rows[:, zones.SERVICE] == transitions.READY)
        with self.state() as state:
            transitions.line_up(ready[np.argsort(key_rows[ready, zones.READY_RANK])], state)

    def _all(self, ids: Integers, *, fresh: bool) -> tuple[Integers, Integers]:
        begins, ends = np.full(len(ids), zones.NEVER), np.full(len(ids), zones.FOREVER)
        return self.find(ids, begins, ends, fresh=fresh)

    def _resize(self) -> None:
        blocks = self.memory.capacity
        count = min(blocks, len(self._blocks))
        for name, rows in (("_blocks", 1), ("_slots", self._block_rows)):
            fitted = np.zeros((blocks * rows, 4), np.int64)
            fitted[: count * rows] = getattr(self, name)[: count * rows]
            setattr(self, name, fitted)
        self._rows.resize(blocks * self._block_rows)
