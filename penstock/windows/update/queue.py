"""The window queue: only the most recent window of each key waits (UpStream §6.2, §7.2).

Entries are panes of numbered keys. A key has states of the Key Transition Graph (UpStream Fig. 10). A key can
be in WAIT and at the same time in READY or IDLE, because newer windows arrive while an older window is
processed::

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
    IDLE   enqueue  do_promote: a tuple of the committed window    READY, after the other READY keys
    IDLE   enqueue  the watermark completes the window             READY, after the other READY keys
    DONE   enqueue                                                 ENQ

*Lazy*: the most recent window is the newest complete window (MRU_L), and no key is IDLE. *Eager*: the most
recent window is the window that started last (MRU_E), complete or not. In both modes windows are never cut
(a committed window is served to its end) and never mixed (a result has the tuples of one window).

A window buffer has two sides in one list of zones (`penstock.windows.update.zones`): the dequeue side has the
tuples of the committed window, from DF to WE, and the enqueue side has the tuples from WS to ET. Tuples on
both sides are stored once. There are three departures from the paper. First, a window is closed by its last
pane, by a later pane of the key or by the watermark, so windows of silent keys also close. Second, a
`win_spec` above 0 is the distance to the window's end, because pane numbers may be negative. Third, if a key
waits while its committed window is being served, it keeps its place, and the keys after it are served first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.wide import schema_like
from penstock.operators.key_blocks import KEY_BLOCK
from penstock.operators.queues.pages import PagedMemory
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.rates import mean_cost
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.update_stream.stream import Integers
from penstock.windows.update import transitions, zones
from penstock.windows.update.buffer import OWN_COLUMNS, WindowBuffers
from penstock.windows.update.results import (
    DeliverableWindows,
    EnqueuedPanes,
    KeyState,
    ServedWindows,
    WindowMode,
)
from penstock.windows.update.scheduler import WindowScheduler

__all__ = ["EnqueuedPanes", "KeyState", "ServedWindows", "WindowMode", "WindowQueue"]

_BLOCK_ROWS = 8
_PAGE_BLOCKS = 64


class WindowQueue:
    """A window queue. In Spark, each instance is one bucket of the whole queue.

    A window queue is not thread-safe. One task at a time calls `enqueue`, then `dequeue` and `deliver` any
    number of times, then `account_staleness`, then `delta`. Time is an argument; nothing here reads a clock.
    Enqueuing a batch has the same effect as enqueuing its entries one at a time, except for the order of
    keys: linecutting measures the intervals between window updates differently, and a key's last share also
    applies to the key's earlier entries.

    Parameters
    ----------
    mode : WindowMode
        LAZY or EAGER.
    size, slide : int
        Size and slide of the windows, in panes; ``1 <= slide <= size``.
    payload : pyarrow.Schema
        The payload columns of a pane.
    policy : Policy
        The policy that chooses the next key.
    cost_us : float, optional
        The time to serve one window, for linecutting; by default it is measured by `observe_cost`.
    weighted : bool
        Whether the scheduler uses weights, given to `enqueue` as shares.
    first_pane : int, optional
        Windows that start before this pane do not exist. By default windows may start before the first pane
        of a key.
    block_rows, page_blocks : int
        Locations in a block (FLCZ), and blocks in a page of the paged memory.
    unit_rows : int
        Number of tuples in a p-unit of a snapshot. A p-unit ends with the key that reaches it.

    Raises
    ------
    InvalidUsageError
        If a number is out of range, or the mode needs no queue.
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
        unit_rows: int = 1 << 20,
    ) -> None:
        if mode is WindowMode.APPEND:
            raise InvalidUsageError("windows of append semantics need no window queue", mode=str(mode))
        if not 1 <= slide <= size:
            raise InvalidUsageError("the slide is not from 1 to the size", size_panes=size, slide_panes=slide)
        if cost_us is not None and cost_us <= 0:
            raise InvalidUsageError("the cost of a window is not positive", cost_us=cost_us)
        self.mode, self.policy = mode, policy
        self._unit_rows = unit_rows
        self.size, self.slide = size, slide
        self.given_cost_us = cost_us
        self.measured_cost_us: float | None = None
        self.watermark: int = zones.NEVER
        self.buffers = WindowBuffers(
            payload,
            size,
            slide,
            eager=mode is WindowMode.EAGER,
            before_first=zones.NEVER if first_pane is None else -(-first_pane // slide) - 1,
            block_rows=block_rows,
            page_blocks=page_blocks,
        )
        self.scheduler = WindowScheduler(policy, weighted=weighted)
        self._birth_us: int | None = None
        self._accounted_until_us: int | None = None
        self._served_at: int | None = None
        self._in_service = 0
        self.scheduler_meter, self._application_meter = StalenessMeter(), StalenessMeter()

    def __len__(self) -> int:
        """Return the number of waiting keys."""
        return len(self.scheduler)

    @property
    def keys(self) -> int:
        """Number of keys ever seen."""
        return int(self.buffers.registers[zones.KEYS])

    @property
    def rows_held(self) -> int:
        """Number of panes in the window buffers."""
        return int(self.buffers.registers[zones.ROWS_HELD])

    @property
    def memory(self) -> PagedMemory:
        """The paged memory, whose locations are blocks."""
        return self.buffers.memory

    @property
    def servable(self) -> int:
        """Number of keys that an unlimited `dequeue` would serve; above 0, `dequeue` makes progress."""
        registers = self.buffers.registers
        return len(self) - int(registers[zones.HELD]) + int(registers[zones.READIES])

    @property
    def cost_us(self) -> float | None:
        """The cost of a window for linecutting, given or measured; None while unknown."""
        return self.measured_cost_us if self.given_cost_us is None else self.given_cost_us

    @property
    def served_at_us(self) -> int | None:
        """Time of the last dequeue or, if later, of the first arrival at the empty queue."""
        return self._served_at

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return self.scheduler.size_bytes + self.buffers.size_bytes

    def states(self, key: int) -> set[KeyState]:
        """Return the states of a key; DONE for an unknown key."""
        if key >= len(self.buffers.key_rows):
            return {KeyState.DONE}
        key_row = self.buffers.key_rows[key]
        states = set()
        if key_row[zones.CANDIDATE] != zones.NEVER:
            states.add(KeyState.WAIT)
        if key_row[zones.SERVICE] != transitions.FREE:
            states.add(KeyState.READY if key_row[zones.SERVICE] == transitions.READY else KeyState.IDLE)
        return states or {KeyState.ENQ if key_row[zones.ROWS] else KeyState.DONE}

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
        """Enqueue entries in order, then advance the watermark.

        First the keys of the entries begin to wait. Then the keys whose windows only the watermark completes
        begin to wait, ordered by window end and then by key number.

        Parameters
        ----------
        ids, panes : int64 arrays
            Key numbers from the caller's index, and panes. The panes of each key increase within and across
            calls, and no pane is before the watermark of an earlier call. Entries that break this rule are
            late and dropped.
        rows : pyarrow.RecordBatch
            The payload of the panes.
        watermark : int, optional
            All panes before it have arrived, including these entries. The watermark never decreases.
        shares : int64 array, optional
            For a queue with weights, the shares of the entries' keys
            (`penstock.operators.scheduling.weights`). The share of a key's last entry applies from now on.
        """
        totals = self._totals()
        if len(ids):
            self._make_key_rows(int(ids.max()) + 1)
            if shares is not None:
                self.scheduler.weigh(ids, shares)
            if self._birth_us is None:
                self._birth_us = self._accounted_until_us = now_us
        buffers, before = self.buffers, self.watermark
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
        late, completed, disregarded = np.subtract(self._totals(), totals).tolist()
        return EnqueuedPanes(len(ids), late, completed, disregarded)

    def dequeue(self, limit: int, now_us: int) -> ServedWindows:
        """Serve keys and return up to `limit` complete windows, one per key.

        Lazy mode serves the newest complete window of up to `limit` keys, in policy order. Eager mode first
        serves committed windows that are complete, in the order in which their keys became READY. Then it
        commits to more windows, at most `limit` minus the number of unserved complete windows, and serves
        those that are complete. Call `dequeue` while `servable` > 0.
        """
        limit, buffers = max(limit, 0), self.buffers
        with buffers.state() as state:
            ids = transitions.serve_ready(limit, state)
            backlog = int(buffers.registers[zones.READIES])
            chosen = self.scheduler.pop(max(limit - backlog, 0), buffers.key_rows[:, zones.SERVICE], now_us)
            self._commit(chosen, now_us, state)
            if len(chosen):
                ids = np.concatenate([ids, transitions.serve_ready(limit - len(ids), state)])
            served = self._emit(ids, state)
        self._in_service += len(ids)
        if len(ids):
            self._served_at = now_us
        return served

    def deliver(self, served: DeliverableWindows, now_us: int) -> None:
        """Record that the results of served windows have reached the application."""
        ids, key_rows = served.ids, self.buffers.key_rows
        begin = np.maximum(served.booked_us, key_rows[ids, zones.DELIVERED])
        self._application_meter.add(served.arrived_us, begin, now_us)
        key_rows[ids, zones.DELIVERED] = now_us
        key_rows[ids, zones.APPLICATION_BOOKED] = np.maximum(key_rows[ids, zones.APPLICATION_BOOKED], now_us)
        key_rows[ids, zones.IN_SERVICE] -= 1
        self._in_service -= len(ids)

    def observe_cost(self, elapsed_us: float, windows: int) -> None:
        """Record that serving `windows` windows took `elapsed_us`."""
        if windows > 0:
            self.measured_cost_us = mean_cost(self.measured_cost_us, elapsed_us, windows)

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Count the staleness up to now; return queue and application staleness since the last call.

        Queue staleness of a key starts at the first window end (in lazy mode) or window start (in eager mode)
        since the key was dequeued. Application staleness starts at the end of the oldest complete window that
        is newer than the delivered window (UpStream §6.1.2, §6.2.2).
        """
        begin = now_us if self._accounted_until_us is None else self._accounted_until_us
        key_rows = self.buffers.key_rows
        pending = (key_rows[:, zones.PENDING] != zones.NEVER) & (key_rows[:, zones.IN_SERVICE] == 0)
        for meter, since, booked, ids in (
            (self.scheduler_meter, zones.SINCE, zones.QUEUE_BOOKED, self._waiting_keys()),
            (self._application_meter, zones.PENDING, zones.APPLICATION_BOOKED, np.flatnonzero(pending)),
        ):
            meter.add(key_rows[ids, since], key_rows[ids, booked], now_us)
            key_rows[ids, booked] = np.maximum(key_rows[ids, booked], now_us)
        self._accounted_until_us = None if self._accounted_until_us is None else max(now_us, begin)
        key_time = float(max(now_us - begin, 0)) * self.keys
        self.buffers.compact()
        return self.scheduler_meter.take(key_time), self._application_meter.take(key_time)

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored: keys and their new panes."""
        key_rows = self.buffers.key_rows
        ids = np.flatnonzero(key_rows[:, zones.DIRTY])
        unit = self._unit("delta", ids, fresh=True)
        key_rows[ids, zones.DIRTY] = 0
        return unit

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in units of about `unit_rows` tuples."""
        key_rows = self.buffers.key_rows
        ids = np.flatnonzero(key_rows[:, zones.NEWEST] != zones.NEVER)
        # A key is counted as a tuple, so that the number of keys in a unit is also bounded.
        part = np.cumsum(key_rows[ids, zones.ROWS] + 1) // self._unit_rows
        cuts = np.flatnonzero(np.diff(part)) + 1
        # Create the units now, because the queue changes while they are written.
        return iter([self._unit("snapshot", some, fresh=False) for some in np.split(ids, cuts)])

    def restore(self, units: Iterable[PUnit], *, keys: int = zones.FOREVER) -> None:
        """Apply stored `units` in order, to an empty queue or to an older version.

        Parameters
        ----------
        units : iterable of PUnit
            The units that `delta` and `snapshot` returned.
        keys : int
            Number of keys; all key numbers are below it.

        Raises
        ------
        InvalidUsageError
            If the units belong to a queue with different windows.
        CorruptDataError
            If the content of the units is inconsistent.
        """
        fields = None
        for unit in units:
            fields = unit.fields
            self._apply(unit, keys)
        if fields is None:
            return
        buffers = self.buffers
        watermark = fields.number_or_none("watermark")
        self.watermark = zones.NEVER if watermark is None else watermark
        self._birth_us = fields.number_or_none("birth_us")
        self._accounted_until_us = fields.number_or_none("settled_at_us")
        self._served_at = fields.number_or_none("served_at_us")
        self.measured_cost_us = fields.real_or_none("cost_us")
        buffers.registers[zones.KEYS] = fields.count("keys")
        self.scheduler.rebuild(self._waiting_keys(), fields)
        buffers.account_restored(self._accounted_until_us or 0)
        self._in_service = 0

    def _unit(self, kind: str, ids: Integers, *, fresh: bool) -> PUnit:
        key_rows, rows = self._store_keys(ids, fresh=fresh)
        arrays = [pa.array(values) for values in key_rows.values()]
        return PUnit(
            kind=kind,
            meta={
                **self._windows(),
                "keys": self.keys,
                "waiting": len(self),
                "watermark": None if self.watermark == zones.NEVER else self.watermark,
                "birth_us": self._birth_us,
                "settled_at_us": self._accounted_until_us,
                "served_at_us": self._served_at,
                "cost_us": self.measured_cost_us,
                **self.scheduler.meta,
            },
            blocks={KEY_BLOCK: pa.RecordBatch.from_arrays(arrays, list(key_rows)), "rows": rows},
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
                    hint="the windows are fixed for the life of a checkpoint",
                )
        columns, none = self._store_keys(np.zeros(0, np.int64))
        kinds = {name: pa.from_numpy_dtype(values.dtype) for name, values in columns.items()}
        block = unit.block(KEY_BLOCK, pa.schema([pa.field(*item, nullable=False) for item in kinds.items()]))
        stored_rows = unit.blocks.get("rows", none).schema
        rows = unit.block("rows", schema_like(none.schema, stored_rows, fixed=OWN_COLUMNS))
        if not block.num_rows:
            return
        key_rows = {name: block.column(name).to_numpy() for name in block.schema.names}
        ids = unit.numbers_below(KEY_BLOCK, "key", keys, ascend=True)
        unit.numbers_below(KEY_BLOCK, "service", transitions.STATES)
        self._make_key_rows(int(ids[-1]) + 1)
        self.buffers.restore(ids, key_rows, rows, replace=unit.kind == "snapshot")
        self.scheduler.put_back(ids, key_rows)

    def _store_keys(self, ids: Integers, *, fresh: bool = False) -> tuple[dict[str, Any], pa.RecordBatch]:
        """Return the key rows of keys as columns, and their tuples; see `WindowBuffers.store`."""
        stored, rows = self.buffers.store(ids, fresh=fresh)
        return {"key": ids, **stored, **self.scheduler.store(ids)}, rows

    def _totals(self) -> Integers:
        return self.buffers.registers[[zones.LATE, zones.COMPLETED, zones.DISREGARDED]]

    def _make_key_rows(self, keys: int) -> None:
        if self.buffers.make_key_rows(keys):
            self.scheduler.reserve(len(self.buffers.key_rows))

    def _arrive(self, events: Integers, now_us: int) -> None:
        """Tell the scheduler which keys begin to wait, or continue to wait with a newer window."""
        registers = self.buffers.registers
        ids, resident = events[: registers[zones.EVENTS]].T
        registers[zones.EVENTS] = 0
        if len(ids) and not len(self):
            self._served_at = now_us
        under_way = self.buffers.key_rows[:, zones.IN_SERVICE] if self._in_service else np.zeros(0, np.int64)
        birth = now_us if self._birth_us is None else self._birth_us
        self.scheduler.arrive(ids, resident, now_us, birth, self.cost_us, under_way)

    def _commit(self, ids: Integers, now_us: int, state: zones.State) -> None:
        """Commit each key that left the scheduler to the window with which it waited."""
        key_rows = self.buffers.key_rows
        self.scheduler_meter.add(key_rows[ids, zones.SINCE], key_rows[ids, zones.QUEUE_BOOKED], now_us)
        transitions.commit(ids, now_us, state)

    def _emit(self, ids: Integers, state: zones.State) -> ServedWindows:
        """Return the committed windows of keys and end their processing."""
        start = self.buffers.key_rows[ids, zones.COMMITTED] * self.slide
        locations, bounds = self.buffers.find(ids, start, start + self.size)
        rows, panes = self.buffers.take(locations), self.buffers.panes(locations)
        waited = self.buffers.key_rows[ids, zones.WAITED]
        pending, booked = np.empty_like(ids), np.empty_like(ids)
        transitions.finish(ids, pending, booked, state)
        return ServedWindows(ids, start, rows, panes, bounds, pending, booked, waited)

    def _waiting_keys(self) -> Integers:
        return np.flatnonzero(self.buffers.key_rows[:, zones.CANDIDATE] != zones.NEVER)
