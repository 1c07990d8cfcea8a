"""The times that a simulation of partitions assumes, and the times that it measures."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Costs", "Measurements"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Times in microseconds. By default, Fig. 6.1's single-partition transactions take 0.16 to 0.46 ms.

    Attributes
    ----------
    begin_us, query_us : float
        The time of a transaction apart from its queries, and of a query.
    remote_us, local_us : float
        The time of a message to another node, and to another partition of the node.
    prepare_us : float
        The time that a partition takes to prepare to commit.
    examine_us : dict
        The time that the scheduler takes to examine a candidate, by the scheduler's mode.
    track_us, validate_us : float
        With ``occ``, the time to note a query, and to compare one speculative transaction.
    """

    begin_us: float = 150.0
    query_us: float = 5.0
    remote_us: float = 210.0
    local_us: float = 20.0
    prepare_us: float = 20.0
    examine_us: dict[str, float] = field(default_factory=lambda: {"tables": 2.0, "rows": 4.0, "occ": 1.0})
    track_us: float = 2.0
    validate_us: float = 10.0


@dataclass(slots=True)
class Measurements:
    """What happened, in virtual microseconds.

    Attributes
    ----------
    us, counted : float, int
        The time at which the clients had submitted everything, and the number of transactions that had ended
        by then.
    committed, speculated, restarted, rolled_back, prefetched : int
        Counts: transactions that ended; speculative transactions among them; distributed transactions that
        started again; speculative transactions that were undone; queries that ran before they were
        requested.
    single_us, distributed_us : list
        The latency of each transaction.
    run_us : list
        The time from the granting of each distributed transaction's locks until it ended.
    stalls_us : dict
        The time spent at each kind of stall point, at base and remote partitions; ``locks`` is the time of
        base partitions until all locks are granted.
    held_us : dict
        The time for which distributed transactions held base and remote partitions.
    first_us : list
        The time at which each distributed transaction executed its first remote query, and the time at which
        it had the result.
    yields : list
        For each choice, the number of candidates, and the number that did not conflict.
    compared : list
        The same numbers as in `yields`, for choices that have to compare accesses: choices at SP1 and SP2
        after the distributed transaction has executed a query there.
    """

    us: float = 0.0
    counted: int = 0
    committed: int = 0
    speculated: int = 0
    restarted: int = 0
    rolled_back: int = 0
    prefetched: int = 0
    single_us: list[float] = field(default_factory=list)
    distributed_us: list[float] = field(default_factory=list)
    run_us: list[float] = field(default_factory=list)
    stalls_us: dict[tuple[str, bool], float] = field(default_factory=dict)
    held_us: dict[bool, float] = field(default_factory=dict)
    first_us: list[tuple[float, float]] = field(default_factory=list)
    yields: list[tuple[int, int]] = field(default_factory=list)
    compared: list[tuple[int, int]] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Transactions per second."""
        return self.counted / self.us * 1e6
