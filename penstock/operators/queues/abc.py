"""The interface of a queue of keyed tuples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.freshness.controller import ControllerState
from penstock.operators.queues.accounts import KeyAccounts
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.rates import mean_cost
from penstock.operators.scheduling.results import Enqueued, Served
from penstock.operators.scheduling.staleness import Staleness
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.dropped import DroppedTuples
from penstock.operators.update_stream.stream import Integers, UpdateStream
from penstock.state_store.keys.key_words import Keys

__all__ = ["KeyedQueue"]


class KeyedQueue(ABC):
    """A queue of keyed tuples. In Spark, each instance is one bucket of the whole queue.

    A queue is not thread-safe. One task at a time calls `enqueue`, then `dequeue` and `deliver` any number of
    times, then `account_staleness`, then `delta`. The task delivers all dequeued tuples before `delta`.

    Parameters
    ----------
    stream : UpdateStream
        The schema, the key and the time of the tuples.
    policy : Policy
        The policy that chooses the next key.
    accounts : KeyAccounts
        The records of the keys.
    cost_us : float, optional
        The time to serve one tuple, for linecutting; by default it is measured by `observe_cost`.
    weights : KeyWeights, optional
        Weights of keys, if the stream has no weight column (`UpdateStream.weight`).
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
        self.urgent_us: tuple[int, ...] = ()
        """For each promise of a contract, the staleness from which a key goes first; see `list_urgent`."""
        self.dropped: list[DroppedTuples] | None = None
        """A list that the owner may set, to collect late tuples and duplicates.

        With a list, arrivals must not be conflated.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of waiting tuples."""

    @property
    def servable(self) -> int:
        """Number of tuples that an unlimited `dequeue` would serve: all waiting tuples."""
        return len(self)

    @property
    def waiting_by_promise(self) -> list[int]:
        """Number of tuples that wait, by class of key if a contract has classes."""
        return [len(self)]

    @property
    def controller(self) -> ControllerState | None:
        """The state of the freshness controller; None before the first micro-batch under a contract."""
        return self.accounts.controller

    @controller.setter
    def controller(self, state: ControllerState | None) -> None:
        self.accounts.controller = state

    @property
    def staleness_by_class(self) -> list[Staleness]:
        """Application staleness by class of key in the last `account_staleness`; empty without classes."""
        return self.accounts.by_class

    @property
    def keys(self) -> int:
        """Number of keys ever seen."""
        return self.accounts.records.keys

    @property
    def accounted_until_us(self) -> int | None:
        """Time up to which staleness is counted; None before the first arrival."""
        return self.accounts.accounted_until_us

    @property
    def served_at_us(self) -> int | None:
        """The time of the last dequeue or, if later, of the first arrival after the queue was empty."""
        return self.accounts.served_at_us

    @property
    def cost_us(self) -> float | None:
        """The cost of a tuple for linecutting, given or measured; None while unknown."""
        return self.measured_cost_us if self.given_cost_us is None else self.given_cost_us

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""

    def numbers_of(self, keys: Keys) -> Integers:
        """Return the number of each key; -1 for a key without a number in memory."""
        return self.accounts.records.find(keys)

    @abstractmethod
    def enqueue(self, arrivals: Arrivals, now_us: int) -> Enqueued:
        """Enqueue arrivals."""

    @abstractmethod
    def dequeue(self, limit: int, now_us: int) -> Served:
        """Remove up to `limit` tuples."""

    @abstractmethod
    def deliver(self, served: Served, now_us: int) -> None:
        """Record that the results of dequeued tuples have reached the application."""

    def observe_cost(self, elapsed_us: float, tuples: int, ids: Integers | None = None) -> None:
        """Record that serving `tuples` tuples took `elapsed_us`; `ids` are the served keys, if known."""
        if self.stream.costs_by_key and ids is not None:
            self.accounts.observe_costs(ids, elapsed_us, self.measured_cost_us)
        if tuples > 0:
            self.measured_cost_us = mean_cost(self.measured_cost_us, elapsed_us, tuples)

    @abstractmethod
    def account_staleness(self, now_us: int) -> tuple[Staleness, Staleness]:
        """Count the staleness up to now; return queue and application staleness since the last call.

        In a stream with an arrival column, the arrival time of a tuple may be before the previous call. Then
        the next call counts the tuple's whole staleness, so the sum over all calls is exact.
        """

    def close(self) -> None:
        """Release resources outside of memory."""
        self.accounts.records.close()

    @abstractmethod
    def delta(self) -> PUnit:
        """Return the changes since the last call, to be stored."""

    @abstractmethod
    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size.

        The state is copied now, because the queue changes while the units are written.
        """

    @abstractmethod
    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply stored `units` in order, to an empty queue or to an older version."""
