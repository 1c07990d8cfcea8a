"""Windows with update semantics in one bucket: only each group's most recent window waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpointing import MAX_UNIT_ROWS, PUnit
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.aggregates.moments import upgrade_partials
from penstock.operators.freshness.controller import ControllerState
from penstock.operators.key_blocks import KEY_BLOCK
from penstock.operators.queues.key_records import ForgetRule
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.scheduling.weights import KeyWeights, shares_of
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_words import Keys
from penstock.units import NEVER
from penstock.windows.append.deleting_panes import skip_deleted
from penstock.windows.append.sliding import slide
from penstock.windows.layout import DeletingLayout, FinalPanes, WindowLayout
from penstock.windows.panes import new_panes
from penstock.windows.update.group_lives import GroupLives, SilentGroups
from penstock.windows.update.queue import WindowQueue
from penstock.windows.update.renumber import renumber_key_rows
from penstock.windows.update.results import WindowMode
from penstock.windows.update.scheduler import WindowScheduler
from penstock.windows.update.zones import NEWEST

__all__ = ["UpdateWindows", "WindowArrivals"]

_NUMBER = "__penstock_number"


@dataclass(frozen=True, slots=True)
class WindowArrivals:
    """The input of windows in one micro-batch.

    Attributes
    ----------
    entries : list of pyarrow.RecordBatch
        Batches with the schema `WindowLayout.pane_schema` or `RowLayout.arriving`, in order of arrival.
    watermark : int or None
        The watermark: all panes before it have arrived; for windows of rows, all rows up to it.
    """

    entries: list[pa.RecordBatch]
    watermark: int | None


class UpdateWindows:
    """Windows with update semantics: each group's most recent window is served (UpStream §6).

    Entries wait in `Panes` until the watermark makes their pane final. Then they enter a `WindowQueue` in
    pane order. One task at a time uses the windows, through `serve`.

    Parameters
    ----------
    layout : WindowLayout
        The layout of the windows.
    mode : WindowMode
        LAZY or EAGER.
    policy : Policy
        The policy that chooses the next group.
    weights : str or KeyWeights, optional
        Weights by group value, or the name of a column of the layout. With a column, the weight of a group is
        the value in its newest pane.
    ttl : int, optional
        How long a group lives without tuples, in panes; see `penstock.windows.update.group_lives`.
    forgetting : ForgetRule, optional
        The rule for forgetting the numbers of groups that left.
    """

    def __init__(
        self,
        layout: WindowLayout,
        mode: WindowMode,
        policy: Policy,
        weights: str | KeyWeights | None = None,
        *,
        ttl: int | None = None,
        forgetting: ForgetRule | None = None,
    ) -> None:
        self.weights = weights
        self.controller: ControllerState | None = None
        """The state of the freshness controller, if there is a contract."""
        self._layout, self._mode, self._policy = layout, mode, policy
        self._forgetting = forgetting or ForgetRule()
        self._lives = GroupLives(ttl)
        self._gone = np.zeros(0, np.int64)
        """Groups that left since the last `delta`."""
        self._names_groups = ttl is not None
        """True if units store the groups of their keys, because key numbers change when groups leave."""
        self._empty()

    def _empty(self) -> None:
        layout = self._layout
        self._panes = new_panes(layout, finalizes=True)
        self._queue = WindowQueue(
            self._mode, layout.spec.size, layout.spec.slide, layout.values, self._policy,
            weighted=self.weights is not None, first_pane=layout.first_pane,
        )  # fmt: skip
        self._stored = 0

    def __len__(self) -> int:
        """Return the number of waiting groups."""
        return len(self._queue)

    @property
    def servable(self) -> int:
        """Number of groups that an unlimited `dequeue` would serve."""
        return self._queue.servable

    @property
    def waiting_by_promise(self) -> list[int]:
        """Number of groups that wait; a contract of windows has one promise."""
        return [self.servable]

    @property
    def staleness_by_class(self) -> list[Staleness]:
        """An empty sequence: windows have no classes of keys."""
        return []

    @property
    def keys(self) -> int:
        """Number of groups ever seen that have not left."""
        if not self._names_groups:
            return self._panes.groups
        return int(np.count_nonzero(self._alive()))

    @property
    def given_cost_us(self) -> float | None:
        """The given cost of a window, for linecutting."""
        return self._queue.given_cost_us

    @given_cost_us.setter
    def given_cost_us(self, cost_us: float | None) -> None:
        self._queue.given_cost_us = cost_us

    @property
    def measured_cost_us(self) -> float | None:
        """The measured cost of a window."""
        return self._queue.measured_cost_us

    @measured_cost_us.setter
    def measured_cost_us(self, cost_us: float | None) -> None:
        self._queue.measured_cost_us = cost_us

    @property
    def cost_us(self) -> float | None:
        """The cost of a window, given or measured; None while unknown."""
        return self._queue.cost_us

    @property
    def served_at_us(self) -> int | None:
        """Time of the last dequeue or, if later, of the first arrival at the empty queue."""
        return self._queue.served_at_us

    @property
    def scheduler(self) -> WindowScheduler:
        """The scheduler of waiting groups."""
        return self._queue.scheduler

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return self._panes.size_bytes + self._queue.size_bytes

    @property
    def oldest(self) -> int | None:
        """See `Panes.oldest`."""
        return self._panes.oldest

    @property
    def watermark(self) -> int | None:
        """See `Panes.watermark`."""
        return self._panes.watermark

    def numbers_of(self, keys: Keys) -> Integers:
        """Return the number of each group; -1 for unknown groups."""
        return self._panes.numbers_of(keys)

    def groups_of(self, ids: Integers) -> list[pa.Array[Any]]:
        """Return the group columns of the groups with these numbers."""
        return self._panes.groups_of(ids)

    def enqueue(self, arrivals: WindowArrivals, now_us: int) -> Enqueued:
        """Enqueue entries. `Enqueued.conflated` counts the windows that were replaced by a newer window.

        Raises
        ------
        InvalidUsageError
            If the weight of an entry is not a positive, finite number. In this case no entry is enqueued. A
            weight applies when its pane is final, but this method checks it at once, before the entry is in
            the state.
        """
        if isinstance(self.weights, str):
            arriving = self._layout.arriving_column(self.weights)
            for batch in arrivals.entries:
                _numbers(batch.column(arriving))
        final, rows_in, late = self._panes.finalize_panes(arrivals.entries, arrivals.watermark)
        entered = self._queue.enqueue(
            final.ids, final.panes, final.rows, now_us,
            watermark=self._panes.border, shares=self._shares(final),
        )  # fmt: skip
        return Enqueued(rows_in, conflated=entered.disregarded, late=late)

    def _shares(self, final: FinalPanes) -> Integers | None:
        if self.weights is None:
            return None
        if isinstance(self.weights, KeyWeights):
            return self.weights.shares_by_value(self._panes.groups_of(final.ids)[0])
        return shares_of(_numbers(final.rows.column(self.weights)))

    def dequeue(self, limit: int, now_us: int) -> Served:
        """Serve up to `limit` groups. The rows have the schema `WindowLayout.window`."""
        served = self._queue.dequeue(limit, now_us)
        layout = self._layout
        low, high = served.bounds[:-1], served.bounds[1:]
        if isinstance(layout, DeletingLayout):
            low = skip_deleted(layout, served.rows, low, high)
        values = slide(layout.partials, layout.times, served.panes, served.rows, low, high, closing=True)
        made = layout.finish(values).columns
        columns = [*self._panes.groups_of(served.ids), pa.array(served.start_pane), *made]
        rows = pa.RecordBatch.from_arrays(columns, schema=layout.window)
        return Served(rows, served.ids, served.arrived_us, served.staleness_us, served.booked_us)

    def deliver(self, served: Served, now_us: int) -> None:
        """Record that results have reached the application."""
        self._queue.deliver(served, now_us)

    def observe_cost(self, elapsed_us: float, tuples: int, ids: Integers | None = None) -> None:
        """Record the time that serving windows took."""
        self._queue.observe_cost(elapsed_us, tuples)

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Return queue and application staleness since the last call."""
        return self._queue.account_staleness(now_us)

    def expire(self) -> SilentGroups:
        """Remove silent groups. Call it once in each micro-batch, after its windows are delivered."""
        self._lives.advance(self._panes.border)
        ids = self._find_gone()
        newest = self._queue.buffers.key_rows[ids, NEWEST]
        # Sort by hash: group numbers depend on what this working copy loaded, hashes do not.
        order = np.lexsort((self._panes.hashes_of(ids), newest))
        self._gone = ids[order]
        self._lives.expired += len(ids)
        return SilentGroups(self._panes.groups_of(self._gone), newest[order])

    def close(self) -> None:
        """Do nothing, because the state is only in memory."""

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""
        panes, queue = self._panes.delta(), self._queue.delta()
        ids = np.arange(self._stored, self._panes.groups)
        if self._names_groups:
            ids = queue.blocks[KEY_BLOCK].column("key").to_numpy()
        self._stored = self._panes.groups
        blocks = {"groups": self._groups(ids), **panes.blocks, **queue.blocks}
        left = len(self._gone)
        self._forget_gone()
        meta = {**self._meta, "waiting": len(self), "panes": panes.meta, "queue": queue.meta}
        if left:
            self._renumber_alive()
        return PUnit("delta", meta, blocks)

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size."""
        self._forget_gone()
        ids = np.flatnonzero(self._alive()) if self._names_groups else np.arange(self._panes.groups)
        meta = self._meta
        units = [
            PUnit("snapshot", meta, {"groups": self._groups(ids[at : at + MAX_UNIT_ROWS])})
            for at in range(0, len(ids), MAX_UNIT_ROWS)
        ]
        for name, part in (("panes", self._panes), ("queue", self._queue)):
            units += [PUnit("snapshot", {**meta, name: unit.meta}, unit.blocks) for unit in part.snapshot()]
        return iter(units)

    @property
    def _meta(self) -> dict[str, Any]:
        named = {"names_groups": True, **self._lives.meta} if self._names_groups else {}
        controller = {} if self.controller is None else {"controller": self.controller.to_json()}
        return {"rows": self.keys, **named, **controller}

    def _alive(self) -> npt.NDArray[np.bool_]:
        """Return a mask, by group number, of the groups that have not left."""
        alive = self._panes.live_groups()
        rows = self._queue.buffers.key_rows[: len(alive), NEWEST]
        alive[: len(rows)] |= rows != NEVER
        alive[self._gone] = False
        return alive

    def _find_gone(self) -> Integers:
        if self._lives.horizon == NEVER:
            return np.zeros(0, np.int64)
        held = np.zeros(max(len(self._queue.buffers.key_rows), self._panes.groups), np.bool_)
        held[: self._panes.groups] = self._panes.live_groups()
        return self._lives.find(self._queue.buffers, held)

    def _forget_gone(self) -> None:
        """Reset groups that have left to the state of new groups."""
        self._queue.buffers.forget(self._gone)
        self._queue.scheduler.forget(self._gone)
        self._gone = self._gone[:0]

    def _renumber_alive(self) -> None:
        """Renumber the groups that have not left, if many have left."""
        alive = self.keys
        if self._forgetting.should_forget(self._panes.groups - alive, alive):
            units, cost_us = list(self.snapshot()), self.given_cost_us
            self._empty()
            self.restore(units)
            self.given_cost_us = cost_us

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply p-units in order."""
        named_as: list[Integers] = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        for unit in units:
            named = unit.fields.has("names_groups")
            self._names_groups |= named
            if "groups" in unit.blocks:
                number = pa.field(_NUMBER, pa.int64(), nullable=False)
                groups = unit.block("groups", pa.schema([*self._layout.groups, number]))
                numbers = self._panes.number(groups.columns[:-1], groups.num_rows)
                stored = groups.column(_NUMBER).to_numpy()
                if named:
                    # A snapshot may have several units, but each delta has all groups that it needs.
                    before = named_as if unit.kind == "snapshot" else [stored[:0], numbers[:0]]
                    pairs = zip(before, (stored, numbers), strict=True)
                    named_as = [np.concatenate(pair) for pair in pairs]
                elif not np.array_equal(numbers, stored):
                    raise CorruptDataError("the numbers of groups have changed", block="groups")
            if unit.fields.has("panes"):
                self._panes.restore([PUnit(unit.kind, unit.fields.plain("panes"), unit.blocks)])
            if unit.fields.has("queue"):
                blocks = dict(unit.blocks)
                if "rows" in blocks:
                    blocks["rows"] = upgrade_partials(blocks["rows"], self._layout.partials)
                if named and KEY_BLOCK in blocks and "rows" in blocks:
                    blocks |= renumber_key_rows(unit, blocks["rows"], *named_as)
                stored = PUnit(unit.kind, unit.fields.plain("queue"), blocks)
                self._queue.restore([stored], keys=self._panes.groups)
            if unit.fields.has("controller"):
                self.controller = ControllerState.from_fields(unit.fields.fields("controller"))
            if named:
                self._lives.restore(unit.fields)
                self._gone = self._find_gone()
                self._forget_gone()
        self._lives.renumber()
        self._stored = self._panes.groups
        if self._names_groups:
            self._renumber_alive()

    def _groups(self, ids: Integers) -> pa.RecordBatch:
        """Return groups with their numbers in the last column."""
        names = [*self._layout.groups.names, _NUMBER]
        return pa.RecordBatch.from_arrays([*self._panes.groups_of(ids), pa.array(ids)], names)


def _numbers(weights: pa.Array[Any]) -> npt.NDArray[np.float64]:
    """Convert weights to numbers; refuse invalid weights."""
    numbers: npt.NDArray[np.float64] = pc.cast(weights, pa.float64(), safe=False).to_numpy(
        zero_copy_only=False
    )
    wrong = int(np.count_nonzero(~((numbers > 0) & np.isfinite(numbers))))
    if wrong:
        raise InvalidUsageError(
            "the weight of tuples is not positive and finite",
            tuples=wrong,
            hint="filter such tuples out first, or give them a weight; then the query continues",
        )
    return numbers
