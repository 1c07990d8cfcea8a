"""The window queue: of each key only the most recent window waits (UpStream §6.2, §7.2).

Panes of numbered keys are enqueued. A key travels through the Key Transition Graph (UpStream Fig. 10). It can
be in WAIT and in READY or IDLE at once, because newer windows arrive while one is processed::

    state  at       condition                                     next
    -----  -------  --------------------------------------------  ------------------------------------
    ENQ    enqueue  is_update: there is a new most recent window   WAIT, by the policy
    ENQ    enqueue  else                                           ENQ
    WAIT   enqueue  is_update                                      WAIT: the newer window overwrites
    WAIT   dequeue  it is the key's turn, and it is not under      READY: committed to the window it
                    processing                                     waits with
    READY  dequeue  is_avail: the window has more tuples           READY
    READY  dequeue  else, the window is complete                   DONE: the result is emitted
    READY  dequeue  else                                           IDLE (eager only)
    IDLE   enqueue  do_promote: a tuple of the committed window    READY, behind the others
    IDLE   enqueue  the watermark completes the window             READY, behind the others
    DONE   enqueue                                                 ENQ

*Lazy*: the most recent window is the newest complete one (MRU_L); what is committed to is never IDLE.
*Eager*: it is the one that started last (MRU_E), complete or not. In both, windows are never cut (a committed
one is handed over to its end) and never mixed (a result has the tuples of one window).

A window buffer has two sides in one list of zones (`penstock.operators.windows.update.zones`): its dequeue
side are the tuples of the committed window, from DF to WE, its enqueue side those from WS to ET. Tuples that
windows of both sides have are kept once. Departures from the source: a window is closed by its last pane, a
later pane of the key or the watermark, so keys that fall silent are closed too; a `win_spec` above 0 is the
distance to the window's end, as panes have numbers of any sign; a key that waits while it is under processing
keeps its place, and those behind it are served first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.wide import schema_like
from penstock.operators.queues.pages import PagedMemory
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.rates import mean_cost
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.update_stream.stream import Integers
from penstock.operators.windows.update import transitions
from penstock.operators.windows.update import zones as z
from penstock.operators.windows.update.buffer import OWN_COLUMNS, WindowBuffers
from penstock.operators.windows.update.results import (
    DeliverableWindows,
    EnqueuedPanes,
    KeyState,
    ServedWindows,
    WindowMode,
)
from penstock.operators.windows.update.scheduler import WindowScheduler

__all__ = ["EnqueuedPanes", "KeyState", "ServedWindows", "WindowMode", "WindowQueue"]

_BLOCK_ROWS = 8
_PAGE_BLOCKS = 64
_UNIT_ROWS = 1 << 20
"""How many tuples a unit of a snapshot has, but for the last key's."""


class WindowQueue:
    """One window queue; in Spark, the part of it that one bucket holds.

    Not thread-safe. Used by one task at a time: `enqueue`, then `dequeue` and `deliver` any number of times,
    then `account_staleness`, then `delta`. Time is an argument; nothing here reads a clock. A batch of
    entries gives what its entries give one at a time, with two exceptions that change the order of keys only:
    the interval of window updates that linecutting measures, and shares, of which a key's last one in a batch
    holds for its earlier entries of that batch, too.

    Parameters
    ----------
    mode : WindowMode
        LAZY or EAGER.
    size, slide : int
        Of the windows, in panes; ``1 <= slide <= size``.
    payload : pyarrow.Schema
        What a pane carries.
    policy : Policy
        Which waiting key is served next.
    cost_us : float, optional
        The time that serving one window takes, for linecutting; measured (`observe_cost`) by default.
    weighted : bool
        Whether some keys matter more than others to the scheduler, by the shares that `enqueue` is given.
    first_pane : int, optional
        Windows that start before it do not exist. By default a key's first pane lies in windows that started
        before it, which have no other panes then.
    block_rows, page_blocks : int
        Locations in a block (FLCZ), and blocks in a page of the paged memory.

    Raises
    ------
    InvalidUsageError
        If a number is out of its range, or the mode needs no queue.
    """

    def __init__(
        self,
        mode: WindowMode,
        size: int,
        slide: int,
        payload: pa.Schema,
        policy: Policy,
        *,
        cost_us: float | None = None,
        weighted: bool = False,
        first_pane: int | None = None,
        block_rows: int = _BLOCK_ROWS,
        page_blocks: int = _PAGE_BLOCKS,
    ) -> None:
        if mode is WindowMode.APPEND:
            raise InvalidUsageError("windows of append semantics need no window queue", mode=str(mode))
        if not 1 <= slide <= size:
            raise InvalidUsageError("the slide is not in 1 to the size", size_panes=size, slide_panes=slide)
        if cost_us is not None and cost_us <= 0:
            raise InvalidUsageError("the cost of a window is not positive", cost_us=cost_us)
        self.mode, self.policy = mode, policy
        self.size, self.slide = size, slide
        self.given_cost_us = cost_us
        self.measured_cost_us: float | None = None
        self.watermark: int = z.NEVER
        self._buffers = WindowBuffers(
            payload,
            size,
            slide,
            eager=mode is WindowMode.EAGER,
            before_first=z.NEVER if first_pane is None else -(-first_pane // slide) - 1,
            block_rows=block_rows,
            page_blocks=page_blocks,
        )
        self._queue = WindowScheduler(policy, weighted=weighted)
        self._birth_us: int | None = None
        self._settled_at: int | None = None
        self._served_at: int | None = None
        self._in_service = 0
        self._queue_meter, self._application_meter = StalenessMeter(), StalenessMeter()

    def __len__(self) -> int:
        """Return how many keys wait."""
        return len(self._queue)

    @property
    def keys(self) -> int:
        """How many keys were ever seen."""
        return int(self._buffers.registers[z.KEYS])

    @property
    def rows_held(self) -> int:
        """How many panes the window buffers hold."""
        return int(self._buffers.registers[z.ROWS_HELD])

    @property
    def memory(self) -> PagedMemory:
        """The paged memory, whose locations are blocks."""
        return self._buffers.memory

    @property
    def servable(self) -> int:
        """How many keys a `dequeue` without a limit would serve; while above 0, each call makes progress."""
        registers = self._buffers.registers
        return len(self) - int(registers[z.HELD]) + int(registers[z.READIES])

    @property
    def cost_us(self) -> float | None:
        """The cost of a window for linecutting, given or measured; None while unknown."""
        return self.measured_cost_us if self.given_cost_us is None else self.given_cost_us

    @property
    def served_at_us(self) -> int | None:
        """When a window was dequeued last, or the first one came to an empty queue, if that was later."""
        return self._served_at

    @property
    def size_bytes(self) -> int:
        """How much memory the state holds, roughly."""
        return self._queue.size_bytes + self._buffers.size_bytes

    def states(self, key: int) -> set[KeyState]:
        """Return the states that a key is in; DONE for one that was never seen."""
        if key >= len(self._buffers.key_rows):
            return {KeyState.DONE}
        key_row = self._buffers.key_rows[key]
        found = set()
        if key_row[z.CANDIDATE] != z.NEVER:
            found.add(KeyState.WAIT)
        if key_row[z.SERVICE] != transitions.FREE:
            found.add(KeyState.READY if key_row[z.SERVICE] == transitions.READY else KeyState.IDLE)
        return found or {KeyState.ENQ if key_row[z.ROWS] else KeyState.DONE}

    def enqueue(
        self,
        ids: Integers,
        panes: Integers,
        rows: pa.RecordBatch,
        now_us: int,
        *,
        watermark: int | None = None,
        shares: Integers | None = None,
    ) -> EnqueuedPanes:
        """Let entries in, in their order, then the watermark.

        Keys whose windows only the watermark completes arrive behind the entries, ordered by the ends of
        those windows and then by their numbers.

        Parameters
        ----------
        ids, panes : int64 arrays
            Key numbers, small ones of the caller's index, and panes. Of each key panes increase from entry to
            entry and from call to call, and none is before the watermark of an earlier call; others are late
            and dropped.
        rows : pyarrow.RecordBatch
            What the panes carry.
        watermark : int, optional
            All panes before it have arrived with these entries; it never goes back.
        shares : int64 array, optional
            Of a queue with weights, the shares of the entries' keys
            (`penstock.operators.scheduling.weights`); that of a key's last entry holds from now on.
        """
        known = self._totals()
        if len(ids):
            self._make_key_rows(int(ids.max()) + 1)
            if shares is not None:
                self._queue.weigh(ids, shares)
            if self._birth_us is None:
                self._birth_us = self._settled_at = now_us
        buffers, before = self._buffers, self.watermark
        locations = np.empty(len(ids), np.int64)
        events = np.empty((2 * len(ids), 2), np.int64)
        with buffers.state(ids) as state:
            transitions.enter(ids, panes, before, now_us, events, locations, state)
            buffers.put(locations, rows)
            self._arrive(events, now_us)
            if watermark is not None and watermark > before:
                self.watermark = watermark
                due = np.flatnonzero(buffers.due <= watermark)
                due = due[np.argsort(buffers.due[due], kind="stable")]
                events = np.empty((len(due), 2), np.int64)
                transitions.sweep(due, watermark, now_us, events, state)
                self._arrive(events, now_us)
        late, completed, disregarded = np.subtract(self._totals(), known).tolist()
        return EnqueuedPanes(len(ids), late, completed, disregarded)

    def dequeue(self, limit: int, now_us: int) -> ServedWindows:
        """Serve keys and return the whole windows that this completes: at most `limit`, one of each key.

        Lazy: the newest complete window of up to `limit` keys, in the policy's order. Eager: first committed
        windows that are complete, in the order of their keys' promotions; then up to `limit` keys, less the
        complete windows left, are committed to, and served at once if complete. Call it while `servable` > 0.
        """
        limit, buffers = max(limit, 0), self._buffers
        with buffers.state() as state:
            ids = transitions.serve_ready(limit, state)
            backlog = int(buffers.registers[z.READIES])
            chosen = self._queue.pop(max(limit - backlog, 0), buffers.key_rows[:, z.SERVICE])
            self._commit(chosen, now_us, state)
            if len(chosen):
                ids = np.concatenate([ids, transitions.serve_ready(limit - len(ids), state)])
            served = self._emit(ids, state)
        self._in_service += len(ids)
        if len(ids):
            self._served_at = now_us
        return served

    def deliver(self, served: DeliverableWindows, now_us: int) -> None:
        """Note that the results of `served` windows have reached the application."""
        ids, key_rows = served.ids, self._buffers.key_rows
        begin = np.maximum(served.booked_us, key_rows[ids, z.DELIVERED])
        self._application_meter.add(served.arrived_us, begin, now_us)
        key_rows[ids, z.DELIVERED] = now_us
        key_rows[ids, z.APPLICATION_BOOKED] = np.maximum(key_rows[ids, z.APPLICATION_BOOKED], now_us)
        key_rows[ids, z.IN_SERVICE] -= 1
        self._in_service -= len(ids)

    def observe_cost(self, elapsed_us: float, windows: int) -> None:
        """Note that serving `windows` windows took `elapsed_us`."""
        if windows > 0:
            self.measured_cost_us = mean_cost(self.measured_cost_us, elapsed_us, windows)

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Book the staleness up to now and return queue and application staleness since last time.

        Queue staleness runs from the first window end (lazy) or window starter (eager) since the key was
        dequeued; application staleness, in both, from the end of the oldest complete window that is newer
        than what was delivered (UpStream §6.1.2, §6.2.2).
        """
        begin = now_us if self._settled_at is None else self._settled_at
        key_rows = self._buffers.key_rows
        pending = (key_rows[:, z.PENDING] != z.NEVER) & (key_rows[:, z.IN_SERVICE] == 0)
        for meter, since, booked, ids in (
            (self._queue_meter, z.SINCE, z.QUEUE_BOOKED, self._waiting()),
            (self._application_meter, z.PENDING, z.APPLICATION_BOOKED, np.flatnonzero(pending)),
        ):
            meter.add(key_rows[ids, since], key_rows[ids, booked], now_us)
            key_rows[ids, booked] = np.maximum(key_rows[ids, booked], now_us)
        self._settled_at = None if self._settled_at is None else max(now_us, begin)
        key_time = float(max(now_us - begin, 0)) * self.keys
        self._buffers.compact()
        return self._queue_meter.take(key_time), self._application_meter.take(key_time)

    def close(self) -> None:
        """Do nothing: memory goes with the object."""

    def delta(self) -> PUnit:
        """Return what changed since the last call, to be stored: keys, and the panes that came to them."""
        key_rows = self._buffers.key_rows
        ids = np.flatnonzero(key_rows[:, z.DIRTY])
        unit = self._unit("delta", ids, fresh=True)
        key_rows[ids, z.DIRTY] = 0
        return unit

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state of this moment, in units of about `_UNIT_ROWS` tuples."""
        key_rows = self._buffers.key_rows
        ids = np.flatnonzero(key_rows[:, z.NEWEST] != z.NEVER)
        # A key counts as a tuple, so that a unit's keys have a bound, too.
        part = np.cumsum(key_rows[ids, z.ROWS] + 1) // _UNIT_ROWS
        cuts = np.flatnonzero(np.diff(part)) + 1
        # Made here and now, for the queue goes on changing while they are written.
        return iter([self._unit("snapshot", some, fresh=False) for some in np.split(ids, cuts)])

    def restore(self, units: Iterable[PUnit], *, keys: int = z.FOREVER) -> None:
        """Apply stored `units` in their order: to an empty queue, or to catch up.

        Parameters
        ----------
        units : iterable of PUnit
            What `delta` and `snapshot` gave.
        keys : int
            All key numbers are below it, so there is memory for as many.

        Raises
        ------
        InvalidUsageError
            If they are of a queue with other windows.
        CorruptDataError
            If what they hold does not add up.
        """
        fields = None
        for unit in units:
            fields = unit.fields
            self._apply(unit, keys)
        if fields is None:
            return
        buffers = self._buffers
        watermark = fields.number_or_none("watermark")
        self.watermark = z.NEVER if watermark is None else watermark
        self._birth_us = fields.number_or_none("birth_us")
        self._settled_at = fields.number_or_none("settled_at_us")
        self._served_at = fields.number_or_none("served_at_us")
        self.measured_cost_us = fields.real_or_none("cost_us")
        buffers.registers[z.KEYS] = fields.count("keys")
        self._queue.rebuild(self._waiting(), fields)
        buffers.account_restored(self._settled_at or 0)
        self._in_service = 0

    def _unit(self, kind: str, ids: Integers, *, fresh: bool) -> PUnit:
        key_rows, rows = self._stored(ids, fresh=fresh)
        arrays = [pa.array(values) for values in key_rows.values()]
        return PUnit(
            kind=kind,
            meta={
                **self._windows(),
                "keys": self.keys,
                "waiting": len(self),
                "watermark": None if self.watermark == z.NEVER else self.watermark,
                "birth_us": self._birth_us,
                "settled_at_us": self._settled_at,
                "served_at_us": self._served_at,
                "cost_us": self.measured_cost_us,
                **self._queue.meta,
            },
            blocks={"cells": pa.RecordBatch.from_arrays(arrays, list(key_rows)), "rows": rows},
        )

    def _windows(self) -> dict[str, Any]:
        return {"mode": str(self.mode), "size_panes": self.size, "slide_panes": self.slide}

    def _apply(self, unit: PUnit, keys: int) -> None:
        for name, value in self._windows().items():
            stored = unit.fields.text(name) if isinstance(value, str) else unit.fields.count(name)
            if stored != value:
                raise InvalidUsageError(
                    "the stored window queue has other windows",
                    what=name,
                    stored=stored,
                    configured=value,
                    hint="windows cannot change while their checkpoint lives",
                )
        columns, none = self._stored(np.zeros(0, np.int64))
        kinds = {name: pa.from_numpy_dtype(values.dtype) for name, values in columns.items()}
        block = unit.block("cells", pa.schema([pa.field(*one, nullable=False) for one in kinds.items()]))
        stored_rows = unit.blocks.get("rows", none).schema
        rows = unit.block("rows", schema_like(none.schema, stored_rows, fixed=OWN_COLUMNS))
        if not block.num_rows:
            return
        key_rows = {name: block.column(name).to_numpy() for name in block.schema.names}
        ids = unit.numbers_below("cells", "key", keys, ascend=True)
        unit.numbers_below("cells", "service", transitions.STATES)
        self._make_key_rows(int(ids[-1]) + 1)
        self._buffers.restore(ids, key_rows, rows, replace=unit.kind == "snapshot")
        self._queue.put_back(ids, key_rows)

    def _stored(self, ids: Integers, *, fresh: bool = False) -> tuple[dict[str, Any], pa.RecordBatch]:
        """Return the key rows of keys as columns, and their tuples; see `WindowBuffers.store`."""
        stored, rows = self._buffers.store(ids, fresh=fresh)
        return {"key": ids, **stored, **self._queue.store(ids)}, rows

    def _totals(self) -> Integers:
        return self._buffers.registers[[z.LATE, z.COMPLETED, z.DISREGARDED]]

    def _make_key_rows(self, keys: int) -> None:
        if self._buffers.make_key_rows(keys):
            self._queue.reserve(len(self._buffers.key_rows))

    def _arrive(self, events: Integers, now_us: int) -> None:
        """Let the key scheduler know which keys wait, or go on waiting with a newer window."""
        registers = self._buffers.registers
        ids, resident = events[: registers[z.EVENTS]].T
        registers[z.EVENTS] = 0
        if len(ids) and not len(self):
            self._served_at = now_us
        under_way = self._buffers.key_rows[:, z.IN_SERVICE] if self._in_service else np.zeros(0, np.int64)
        birth = now_us if self._birth_us is None else self._birth_us
        self._queue.arrive(ids, resident, now_us, birth, self.cost_us, under_way)

    def _commit(self, ids: Integers, now_us: int, state: z.State) -> None:
        """Commit to keys that left the queue of waiting keys."""
        key_rows = self._buffers.key_rows
        self._queue_meter.add(key_rows[ids, z.SINCE], key_rows[ids, z.QUEUE_BOOKED], now_us)
        transitions.commit(ids, now_us, state)

    def _emit(self, ids: Integers, state: z.State) -> ServedWindows:
        """Return the committed windows of keys, and end their processing."""
        start = self._buffers.key_rows[ids, z.COMMITTED] * self.slide
        locations, bounds = self._buffers.find(ids, start, start + self.size)
        rows, panes = self._buffers.take(locations), self._buffers.panes(locations)
        waited = self._buffers.key_rows[ids, z.WAITED]
        pending, booked = np.empty_like(ids), np.empty_like(ids)
        transitions.finish(ids, pending, booked, state)
        return ServedWindows(ids, start, rows, panes, bounds, pending, booked, waited)

    def _waiting(self) -> Integers:
        return np.flatnonzero(self._buffers.key_rows[:, z.CANDIDATE] != z.NEVER)
