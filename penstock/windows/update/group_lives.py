"""Groups that get no tuples for their time to live, and so leave the state of lazy and eager windows.

The watermark is the current time. A group leaves at the end of the first micro-batch in which two conditions
hold: its newest pane ended at least the time to live before the watermark, and none of its windows waits or
may still become complete. Later tuples of the group are in later panes. So if the group returns, its windows
are the same as if it had stayed, and no additional tuple is late.

Nothing is stored when a group leaves: a reader ignores stored idle groups whose newest pane is at or before
the stored *horizon*. As in queues (`penstock.operators.queues.expiry`), a pass over all groups finds the
candidates for the next 16th of the time to live.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.operators.queues.expiry import PASSES_PER_LIFE
from penstock.operators.update_stream.stream import Integers
from penstock.units import NEVER
from penstock.windows.update import zones

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.checkpointing.fields import Fields
    from penstock.windows.update.buffer import WindowBuffers

__all__ = ["GroupLives", "SilentGroups"]


@dataclass(frozen=True, slots=True)
class SilentGroups:
    """Groups that left, the longest-silent group first.

    Attributes
    ----------
    groups : list of pyarrow.Array
        The group columns.
    newest : int64 array
        The newest pane of each group.
    """

    groups: list[pa.Array[Any]]
    newest: Integers

    def __len__(self) -> int:
        return len(self.newest)


class GroupLives:
    """Finds the groups that leave. One task at a time uses it.

    Parameters
    ----------
    ttl : int, optional
        The time to live, in panes; by default for ever.

    Attributes
    ----------
    horizon : int
        Idle groups whose newest pane is at or before this pane have left.
    expired : int
        The number of groups that left so far.
    """

    def __init__(self, ttl: int | None = None) -> None:
        self.ttl = ttl
        self.horizon = NEVER
        self.expired = 0
        self._limit = NEVER
        """All groups whose newest pane is at or before this pane are candidates."""
        self._candidates = np.zeros(0, np.int64)

    @property
    def meta(self) -> dict[str, int]:
        """The state that is stored once for all groups; empty as long as no group can have left."""
        return {} if self.horizon == NEVER else {"horizon": self.horizon, "expired": self.expired}

    def restore(self, fields: Fields) -> None:
        """Restore `meta`."""
        if fields.has("horizon"):
            self.horizon, self.expired = fields.number("horizon"), fields.count("expired")
        self.renumber()

    def renumber(self) -> None:
        """Forget the candidates after groups got new numbers; the next `find` passes over all groups."""
        self._limit = NEVER

    def advance(self, border: int | None) -> None:
        """Move the horizon according to the watermark, which is given as a pane."""
        if self.ttl is not None and border is not None:
            self.horizon = max(self.horizon, border - self.ttl - 1)

    def find(self, buffers: WindowBuffers, held: npt.NDArray[np.bool_]) -> Integers:
        """Return the idle groups whose newest pane is at or before the horizon.

        Parameters
        ----------
        held : bool array
            Indexed by group number: whether the group has tuples whose pane the watermark has not passed.
        """
        if self.horizon == NEVER:
            return np.zeros(0, np.int64)
        newest = buffers.key_rows[:, zones.NEWEST]
        if self.horizon > self._limit:
            # New tuples are in panes that the watermark has just passed, so they are later than the limit.
            self._limit = self.horizon + (self.ttl or 0) // PASSES_PER_LIFE
            self._candidates = np.flatnonzero((newest <= self._limit) & (newest != NEVER))
        ids = self._candidates
        gone = (newest[ids] <= self.horizon) & buffers.is_idle(ids)
        gone &= ~held[ids]
        self._candidates = ids[~gone]
        return ids[gone]
