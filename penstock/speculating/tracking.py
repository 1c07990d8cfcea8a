"""Prefetch queries of a distributed transaction, before the transaction requests them (H-Store §6.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.speculating.rules import UNKNOWN_KEY, ConflictRules, Step

__all__ = ["TrackingTable", "find_prefetchable"]


def find_prefetchable(rules: ConflictRules, estimate: Sequence[Step], base: int) -> list[int]:
    """Return the positions of queries in an estimated path that can run before the transaction (§6.4.1).

    A query can run before the transaction if three conditions hold: it only reads a row at a remote
    partition, the event determines the row's key, and the query conflicts with no earlier query that must
    wait for the transaction.

    Departure from H-Store: queries that write are not prefetched, because the procedure must first compute
    the values. No transaction waits for a write.
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
    """Matches the queries that a transaction invokes with prefetched queries (§6.4.2).

    Parameters
    ----------
    rules : ConflictRules
        The rules for conflicts.
    steps : iterable of Step
        The prefetched queries, in the order of the estimated path.

    Attributes
    ----------
    out_of_order : bool
        Whether the transaction has used a prefetched result that one of its own changes made obsolete.
    """

    rules: ConflictRules
    steps: Iterable[Step]
    _waiting: dict[Step, list[int]] = field(default_factory=dict)
    _arrived: set[int] = field(default_factory=set)
    _changes: list[Step] = field(default_factory=list)
    out_of_order: bool = False

    def __post_init__(self) -> None:
        """Record the positions of the prefetched queries."""
        self.steps = list(self.steps)
        for place, step in enumerate(self.steps):
            self._waiting.setdefault(step, []).append(place)

    def arrive(self, step: Step) -> None:
        """Record that the result of a query has arrived; equal queries get their results in order."""
        places = [place for place, one in enumerate(self.steps) if one == step and place not in self._arrived]
        if places:
            self._arrived.add(places[0])

    def invoke(self, step: Step) -> int | None:
        """Return the position of the prefetched query that matches an invoked query; None if none matches.

        Two queries match if they have the same statement, key and partition. Each prefetched query matches
        once, and equal queries match in order. If the transaction has already changed a row that the
        prefetched query read, the result is obsolete, and the transaction must start again (`out_of_order`).
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
        """Return whether the result of the prefetched query at a position has arrived."""
        return place in self._arrived
