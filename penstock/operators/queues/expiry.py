"""Keys that leave the state of an update queue after a time without updates.

The current time is the newest time of all tuples of the query so far. A *horizon* is this time less a time to
live, and never moves back. An idle key (one that does not wait) leaves at the end of the first micro-batch in
which its newest emitted tuple is at or before the horizon. A later tuple of a key without a record is also
late if it is at or before the horizon, because a newer tuple of the key may have been served. So a key never
goes back in time, and results do not depend on how the input is divided into micro-batches.

Nothing is stored when a key leaves: a reader ignores stored records at or before the stored horizon, except
the records of waiting keys.

Most keys are far from the horizon. A *pass* over all keys finds *candidates*: the keys that may leave before
the horizon has moved by a 16th of the time to live. Until the horizon has moved that far, a micro-batch looks
only at the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.queues.accounts import NOWHERE
from penstock.operators.update_stream.stream import Integers
from penstock.units import FOREVER, NEVER

if TYPE_CHECKING:
    from penstock.checkpointing.fields import Fields
    from penstock.operators.queues.key_records import KeyRecords

__all__ = ["PASSES_PER_LIFE", "Expired", "KeyExpiry", "Lives"]

PASSES_PER_LIFE = 16
"""How often, in a time to live, all keys are searched for those that may expire next."""


@dataclass(frozen=True, slots=True)
class Lives:
    """The times to live of keys after their last update, in units of the time column.

    Parameters
    ----------
    key, deleted : int or None
        The time to live of a key, and of a deleted key. None means that keys never leave.
    """

    key: int | None = None
    deleted: int | None = None

    @property
    def end(self) -> bool:
        """Return whether any key can ever leave."""
        return self.key is not None or self.deleted is not None


@dataclass(frozen=True, slots=True)
class Expired:
    """Keys that left the state, the longest-silent key first.

    Attributes
    ----------
    keys : list of pyarrow.Array
        The key columns.
    times : int64 array
        The time of each key's newest emitted tuple.
    deleted : bool array
        Whether this tuple deleted the key.
    """

    keys: list[pa.Array[Any]]
    times: Integers
    deleted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.times)


class KeyExpiry:
    """Finds the keys of one queue that leave. One task at a time uses it.

    Attributes
    ----------
    horizon, deleted_horizon : int
        The horizons for keys, and for deleted keys; initially `NEVER`.
    expired : int
        The number of keys that left so far.
    """

    def __init__(self) -> None:
        self.horizon = self.deleted_horizon = NEVER
        self.expired = 0
        self._limits = (NEVER, NEVER)
        """Limits like `horizon` and `deleted_horizon`: all idle keys up to these times are candidates."""
        self.candidates = np.zeros(0, np.int64)

    @property
    def meta(self) -> dict[str, int]:
        """The state that is stored once for all keys; empty as long as no key can have left."""
        if self.horizon == self.deleted_horizon == NEVER:
            return {}
        return {"horizon": self.horizon, "deleted_horizon": self.deleted_horizon, "expired": self.expired}

    def restore(self, fields: Fields) -> None:
        """Restore `meta`; the next `find` passes over all keys."""
        if fields.has("horizon"):
            self.horizon, self.deleted_horizon = fields.number("horizon"), fields.number("deleted_horizon")
            self.expired = fields.count("expired")
        self._limits, self.candidates = (NEVER, NEVER), self.candidates[:0]

    def advance(self, newest: int, lives: Lives) -> None:
        """Move the horizons according to the newest time of the stream."""
        if lives.key is not None:
            self.horizon = max(self.horizon, newest - min(lives.key, newest - NEVER))
        if lives.deleted is not None:
            self.deleted_horizon = max(self.deleted_horizon, newest - min(lives.deleted, newest - NEVER))

    @property
    def last_horizon(self) -> int:
        """The later horizon.

        If a key has no record, its last tuple may have had a time up to this horizon.
        """
        return max(self.horizon, self.deleted_horizon)

    def find_late(
        self, emitted: Integers, resident: npt.NDArray[np.bool_], times: Integers
    ) -> npt.NDArray[np.bool_]:
        """Mark arrivals that may be late: the key has no record, and may have left after a newer tuple."""
        # Before any key can leave, the horizon is `NEVER`, the least integer, which is also a valid time.
        late = times <= self.last_horizon if self.last_horizon != NEVER else np.zeros(len(times), np.bool_)
        return (emitted == NEVER) & ~resident & late

    def watch(self, records: KeyRecords, ids: Integers) -> None:
        """Add keys that have become idle to the candidates, if they may leave before the next pass."""
        if self._limits != (NEVER, NEVER):
            near = ids[records["emitted"][ids] <= _of_each(records, ids, *self._limits)]
            if len(near):
                self.candidates = np.union1d(self.candidates, near)

    def find(self, records: KeyRecords, lives: Lives | None = None) -> Integers:
        """Return the idle keys whose newest tuple is at or before the key's horizon, in no particular order.

        Parameters
        ----------
        lives : Lives, optional
            The times to live, which determine how far a pass looks ahead. By default a pass does not look
            ahead.
        """
        if self.horizon == self.deleted_horizon == NEVER:
            return self.candidates[:0]
        if self.horizon > self._limits[0] or self.deleted_horizon > self._limits[1]:
            self._pass(records, lives or Lives())
        ids = self.candidates
        gone = (records["location"][ids] == NOWHERE) & (records["gone"][ids] == 0)
        gone &= records["emitted"][ids] <= _of_each(records, ids, self.horizon, self.deleted_horizon)
        self.candidates = ids[~gone]
        return ids[gone]

    def renumber(self, kept: Integers) -> None:
        """Renumber the candidates as `KeyRecords.keep` does; `kept` ascends and includes all candidates."""
        self.candidates = np.searchsorted(kept, self.candidates)

    def _pass(self, records: KeyRecords, lives: Lives) -> None:
        self._limits = _ahead(self.horizon, lives.key), _ahead(self.deleted_horizon, lives.deleted)
        records.fetch_older(*self._limits)
        ids = np.arange(len(records))
        near = records["emitted"][ids] <= _of_each(records, ids, *self._limits)
        self.candidates = np.flatnonzero(near & (records["gone"][ids] == 0))


def _ahead(horizon: int, life: int | None) -> int:
    if horizon == NEVER or life is None:
        return horizon
    return min(horizon + life // PASSES_PER_LIFE, FOREVER)


def _of_each(records: KeyRecords, ids: Integers, key: int, deleted: int) -> Any:
    """Return the limit of each key."""
    if key == deleted or not records.has("deleted"):
        return key
    return np.where(records["deleted"][ids] != 0, deleted, key)
