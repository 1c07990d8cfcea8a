"""Queries of a distributed transaction that run before the transaction requests them (H-Store §6.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.speculating.rules import UNKNOWN_KEY, ConflictRules, Step

__all__ = ["TrackingTable", "find_prefetchable"]


def find_prefetchable(rules: ConflictRules, estimate: Sequence[Step], base: int) -> list[int]:
    """Return the positions of queries in an estimated path that can run before the transaction (§6.4.1).

    A query can run early if it only reads a row at a remote partition, the event determines the row's key,
    and the query conflicts with no earlier query that cannot run before the transaction.

    Departure from H-Store: queries that write are not prefetched, because a procedure computes the values
    that it writes; no transaction waits for them.
    """
    found, late = [], list[Step]()
    for place, step in enumerate(estimate):
        remote = step.partition >= 0 and step.partition != base
        can = remote and step.key != UNKNOWN_KEY and not rules.changes(step)
        if can and not rules.conflict(rules.summarize([step], "rows"), rules.summarize(late, "rows")):
            found.append(place)
        else:
            late.append(step)
    return found


@dataclass
class TrackingTable:
    """Matches the queries that a transaction invokes with queries that ran before it (§6.4.2).

    Parameters
    ----------
    rules : ConflictRules
        The rules.
    steps : iterable of Step
        The queries that run before the transaction, in the order of its estimated path.
    """

    rules: ConflictRules
    steps: Iterable[Step]
    _waiting: dict[Step, list[int]] = field(default_factory=dict)
    _arrived: set[int] = field(default_factory=set)
    _changes: list[Step] = field(default_factory=list)
    out_of_order: bool = False

    def __post_init__(self) -> None:
        """Note all entries."""
        self.steps = list(self.steps)
        for place, step in enumerate(self.steps):
            self._waiting.setdefault(step, []).append(place)

    def arrive(self, step: Step) -> None:
        """Note that a query's result has arrived; of several equal queries, the first without a result."""
        places = [place for place, one in enumerate(self.steps) if one == step and place not in self._arrived]
        if places:
            self._arrived.add(places[0])

    def invoke(self, step: Step) -> int | None:
        """Return the position of the entry that matches an invoked query, or None, and mark it as used.

        A query matches an entry with the same statement, parameters and partition; equal entries are matched
        in order. If the transaction has already changed something that the query read, the query's result is
        out of date, and the transaction must start again (`out_of_order`).
        """
        if self.rules.changes(step):
            self._changes.append(step)
        places = self._waiting.get(step)
        if not places:
            return None
        if self.rules.conflict(
            self.rules.summarize([step], "rows"), self.rules.summarize(self._changes, "rows")
        ):
            self.out_of_order = True
        return places.pop(0)

    def has_arrived(self, place: int) -> bool:
        """Return whether the result of an entry has arrived."""
        return place in self._arrived
