"""The interface of a queue of keyed tuples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.queues.accounts import KeyAccounts
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.rates import mean_cost
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import Integers, UpdateStream
from penstock.state_store.keys.key_words import Keys

__all__ = ["KeyedQueue"]


class KeyedQueue(ABC):
    """A queue of keyed tuples; in Spark, the part of it that one bucket holds.

    Not thread-safe. Used by one task at a time: `enqueue`, then `dequeue` and `deliver` any number of times,
    then `account_staleness`, then `delta`. All that was dequeued is delivered before `delta`.

    Parameters
    ----------
    stream : UpdateStream
        Schema, key and time of the tuples.
    policy : Policy
        Which waiting key is served next.
    accounts : KeyAccounts
        The records of the keys.
    cost_us : float, optional
        The time that serving one tuple takes, for linecutting; measured (`observe_cost`) by default.
    weights : KeyWeights, optional
        How much each key matters, if no column of the stream says so (`UpdateStream.weight`).
    """

    def __init__(
        self,
        stream: UpdateStream,
        policy: Policy,
        accounts: KeyAccounts,
        cost_us: float | None,
        weights: KeyWeights | None,
    ) -> None:
        if cost_us is not None and cost_us <= 0:
            raise InvalidUsageError("the cost of a tuple is not positive", cost_us=cost_us)
        self.stream = stream
        self.policy = policy
        self.accounts = accounts
        self.given_cost_us = cost_us
        self.measured_cost_us: float | None = None
        self.weights = weights

    @abstractmethod
    def __len__(self) -> int:
        """Return how much waits."""

    @property
    def servable(self) -> int:
        """How much a `dequeue` without a limit would serve in the end: all that waits."""
        return len(self)

    @property
    def keys(self) -> int:
        """How many keys were ever seen."""
        return self.accounts.records.keys

    @property
    def settled_at_us(self) -> int | None:
        """Up to when staleness is booked; None before the first arrival."""
        return self.accounts.settled_at_us

    @property
    def served_at_us(self) -> int | None:
        """When a tuple was dequeued last, or the first one came to an empty queue, if that was later."""
        return self.accounts.served_at_us

    @property
    def cost_us(self) -> float | None:
        """The cost of a tuple for linecutting, given or measured; None while unknown."""
        return self.measured_cost_us if self.given_cost_us is None else self.given_cost_us

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Memory that the state holds, roughly."""

    def numbers_of(self, keys: Keys) -> Integers:
        """Return the number of each key that waits or was served; -1 for others that are not in memory."""
        return self.accounts.records.find(keys)

    @abstractmethod
    def enqueue(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        """Let `arrivals` in."""

    @abstractmethod
    def dequeue(self, limit: int, now_us: int) -> Served:
        """Remove up to `limit` tuples."""

    @abstractmethod
    def deliver(self, served: Served, now_us: int) -> None:
        """Note that the results of `served`, dequeued before, have reached the application."""

    def observe_cost(self, elapsed_us: float, tuples: int) -> None:
        """Note that serving `tuples` tuples took `elapsed_us`."""
        if tuples > 0:
            self.measured_cost_us = mean_cost(self.measured_cost_us, elapsed_us, tuples)

    @abstractmethod
    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Book the staleness up to now; return queue and application staleness since the last call.

        A retroactive arrival (of a stream with an arrival column) is booked whole, so the integral over all
        calls is exact even where it belongs in part to an earlier one.
        """

    def close(self) -> None:
        """Release what is not in memory."""
        self.accounts.records.close()

    @abstractmethod
    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""

    @abstractmethod
    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole state of this moment, in units of bounded size.

        What is in memory is copied now, because the queue changes while the units are written.
        """

    @abstractmethod
    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in their order: to an empty queue, or to catch up."""
