"""The interface of a scheduler: waiting keys in their service order (UpStream §5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.stream import Integers

if TYPE_CHECKING:
    from penstock.checkpointing.fields import Fields

__all__ = ["FIRST_CUT_RANK", "Scheduler"]

FIRST_CUT_RANK = -(1 << 62)
"""Keys that go to the front get ranks from this number on, so they precede all other keys."""


class Scheduler(ABC):
    """The waiting keys of a queue, by number, in the order in which they are served.

    A queue calls `reserve` before it uses a new key number. Only one task at a time may use it, because it is
    not thread-safe.

    Parameters
    ----------
    policy : Policy
        The policy that chooses the next key.
    """

    columns: ClassVar[Mapping[str, pa.DataType]]
    """The names and types of the values that `store` returns for each waiting key."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of waiting keys."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Memory of the scheduler's arrays in bytes."""

    @abstractmethod
    def reserve(self, keys: int) -> None:
        """Grow the arrays for key numbers below `keys`."""

    @abstractmethod
    def arrive(
        self,
        ids: Integers,
        resident: Any,
        interval_us: Any,
        cost_us: float,
        in_service: int = 0,
        shares: Integers | None = None,
        arrived_us: Integers | None = None,
    ) -> None:
        """Add the arriving keys, one after the other.

        Parameters
        ----------
        ids : int64 array
            Distinct key numbers.
        resident : bool array
            Whether the key already waits.
        interval_us : float64 array
            ``1 / u_k``, the mean time between updates of the key. Only linecutting and freshest read it.
        cost_us : float
            ``c``, the time that serving one tuple takes. Only linecutting reads it.
        in_service : int
            The `load` of the tuples that are dequeued but not delivered. Only linecutting reads it.
        shares : int64 array, optional
            The share of each key from now on (`penstock.operators.scheduling.weights`). A scheduler with
            weights requires shares; other schedulers ignore them.
        arrived_us : int64 array, optional
            Arrival time of each update, ignored for keys that already wait. Only freshest reads it, and
            requires it.
        """

    @abstractmethod
    def load(self, in_service: Integers) -> int:
        """Return the load of the tuples in service. `in_service` has their number for each key."""

    @abstractmethod
    def pop(self, limit: int, held: Integers | None = None, *, now_us: int = 0) -> Integers:
        """Remove and return up to `limit` keys from the head.

        Parameters
        ----------
        held : int64 array, optional
            Indexed by key number; nonzero for keys to skip. Skipped keys keep their places.
        now_us : int
            The current time, in the same unit and counted from the same origin as ``arrived_us``. Only
            freshest reads it.
        """

    @property
    @abstractmethod
    def meta(self) -> dict[str, float]:
        """The state that is stored once for all keys."""

    @abstractmethod
    def store(self, ids: Integers) -> dict[str, Any]:
        """Return the state of waiting keys that is stored for each key, with the names in `columns`."""

    @abstractmethod
    def put_back(self, ids: Integers, columns: Mapping[str, Any]) -> None:
        """Restore the state of waiting keys from the output of `store`. `rebuild` must follow."""

    @abstractmethod
    def rebuild(self, ids: Integers, fields: Fields) -> None:
        """Make `ids` the waiting keys, in the order of their restored state.

        Parameters
        ----------
        fields : Fields
            The stored `meta`.

        Raises
        ------
        CorruptDataError
            If a field of `meta` is missing or malformed.
        """

    @abstractmethod
    def subset(self, numbers: Integers, waits: Any) -> Scheduler:
        """Return a scheduler of the keys with these distinct numbers, which become 0, 1, 2, ...

        Parameters
        ----------
        waits : bool array
            Whether each of these keys waits.
        """
