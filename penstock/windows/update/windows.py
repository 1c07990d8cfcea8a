"""Windows with update semantics in one bucket: only each group's most recent window waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpointing import PUnit
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.operators.aggregates.moments import upgrade_entries
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.scheduling.weights import KeyWeights, shares_of
from penstock.operators.update_stream.stream import Integers
from penstock.state_store.keys.key_words import Keys
from penstock.windows.append.deleting_panes import skip_deleted
from penstock.windows.append.sliding import slide
from penstock.windows.layout import DeletingLayout, FinalPanes, WindowLayout
from penstock.windows.panes import new_panes
from penstock.windows.update.queue import WindowQueue
from penstock.windows.update.results import WindowMode

__all__ = ["UpdateWindows", "WindowArrivals"]

_UNIT_KEYS = 1 << 20
_NUMBER = "__penstock_number"


@dataclass(frozen=True, slots=True)
class WindowArrivals:
    """The input of windows in one micro-batch.

    Attributes
    ----------
    entries : list of pyarrow.RecordBatch
        Batches with the schema `WindowLayout.entry` or `RowLayout.arriving`, in order of arrival.
    watermark : int or None
        All panes before it have arrived. For windows of rows: all rows up to it have arrived.
    """

    entries: list[pa.RecordBatch]
    watermark: int | None


class UpdateWindows:
    """Windows with update semantics: each group's most recent window is served (UpStream §6).

    Entries wait in `Panes` until the watermark makes their pane final. Then they enter a `WindowQueue` in
    pane order. Not thread-safe; `serve` uses it, in one task at a time.

    Parameters
    ----------
    layout : WindowLayout
        The layout of the windows.
    mode : WindowMode
        LAZY or EAGER.
    policy : Policy
        The policy that chooses the next group.
    weights : str or KeyWeights, optional
        Weights of groups: a column of the layout, whose value in the newest pane is used, or weights by group
        value.
    """

    def __init__(
        self,
        layout: WindowLayout,
        mode: WindowMode,
        policy: Policy,
        weights: str | KeyWeights | None = None,
    ) -> None:
        self.weights = weights
        self._layout = layout
        self._panes = new_panes(layout, finalizes=True)
        self._queue = WindowQueue(
            mode, layout.spec.size, layout.spec.slide, layout.values, policy,
            weighted=weights is not None, first_pane=layout.first_pane,
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
    def keys(self) -> int:
        """Number of groups ever seen."""
        return self._panes.groups

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
        """Return the columns of groups by their numbers."""
        return self._panes.groups_of(ids)

    def enqueue(self, arrivals: WindowArrivals, now_us: int) -> Enqueued:
        """Enqueue entries. `Enqueued.conflated` counts the windows that a newer one replaced.

        Raises
        ------
        InvalidUsageError
            If the weight of an entry is not a positive, finite number. In this case no entry is enqueued. A
            weight applies when its pane is final, but the check is on arrival, before the entry is in the
            state.
        """
        if isinstance(self.weights, str):
            arriving = self._layout.arriving_column(self.weights)
            for batch in arrivals.entries:
                _numbers(batch.column(arriving))
        settled, rows_in, late = self._panes.finalize_panes(arrivals.entries, arrivals.watermark)
        entered = self._queue.enqueue(
            settled.ids, settled.panes, settled.rows, now_us,
            watermark=self._panes.border, shares=self._shares(settled),
        )  # fmt: skip
        return Enqueued(rows_in, conflated=entered.disregarded, late=late)

    def _shares(self, settled: FinalPanes) -> Integers | None:
        if self.weights is None:
            return None
        if isinstance(self.weights, KeyWeights):
            return self.weights.shares_by_value(self._panes.groups_of(settled.ids)[0])
        return shares_of(_numbers(settled.rows.column(self.weights)))

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

    def observe_cost(self, elapsed_us: float, tuples: int) -> None:
        """Record the time that serving windows took."""
        self._queue.observe_cost(elapsed_us, tuples)

    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Return queue and application staleness since the last call."""
        return self._queue.account_staleness(now_us)

    def close(self) -> None:
        """Do nothing: there is only memory."""

    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""
        panes, queue = self._panes.delta(), self._queue.delta()
        groups = self._groups(self._stored, self._panes.groups)
        self._stored = self._panes.groups
        blocks = {"groups": groups, **panes.blocks, **queue.blocks}
        meta = {"rows": self.keys, "waiting": len(self), "panes": panes.meta, "queue": queue.meta}
        return PUnit("delta", meta, blocks)

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in units of bounded size."""
        count = self._panes.groups
        units = [
            PUnit("snapshot", {"rows": count}, {"groups": self._groups(at, min(at + _UNIT_KEYS, count))})
            for at in range(0, count, _UNIT_KEYS)
        ]
        for name, part in (("panes", self._panes), ("queue", self._queue)):
            units += [
                PUnit("snapshot", {"rows": count, name: unit.meta}, unit.blocks) for unit in part.snapshot()
            ]
        return iter(units)

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply units in order."""
        for unit in units:
            if "groups" in unit.blocks:
                number = pa.field(_NUMBER, pa.int64(), nullable=False)
                groups = unit.block("groups", pa.schema([*self._layout.groups, number]))
                numbers = self._panes.number(groups.columns[:-1], groups.num_rows)
                if not np.array_equal(numbers, groups.column(_NUMBER).to_numpy()):
                    raise CorruptDataError("the numbers of groups have changed", block="groups")
            if unit.fields.has("panes"):
                self._panes.restore([PUnit(unit.kind, unit.fields.plain("panes"), unit.blocks)])
            if unit.fields.has("queue"):
                blocks = dict(unit.blocks)
                if "rows" in blocks:
                    blocks["rows"] = upgrade_entries(blocks["rows"], self._layout.partials)
                stored = PUnit(unit.kind, unit.fields.plain("queue"), blocks)
                self._queue.restore([stored], keys=self._panes.groups)
        self._stored = self._panes.groups

    def _groups(self, first: int, last: int) -> pa.RecordBatch:
        """Return groups in the order of their numbers, with the numbers in the last column."""
        ids = np.arange(first, last)
        names = [*self._layout.groups.names, _NUMBER]
        return pa.RecordBatch.from_arrays([*self._panes.groups_of(ids), pa.array(ids)], names)


def _numbers(weights: pa.Array[Any]) -> npt.NDArray[np.float64]:
    """Convert weights to numbers; refuse invalid ones."""
    numbers: npt.NDArray[np.float64] = pc.cast(weights, pa.float64(), safe=False).to_numpy(
        zero_copy_only=False
    )
    wrong = int(np.count_nonzero(~((numbers > 0) & np.isfinite(numbers))))
    if wrong:
        raise InvalidUsageError(
            "the weight of tuples is not positive and finite",
            tuples=wrong,
            hint="filter such tuples out first, or give them a weight; the checkpoint goes on with that",
        )
    return numbers
