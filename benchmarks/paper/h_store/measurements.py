"""The times that a simulation of partitions assumes, and its measurements."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Costs", "Measurements"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Assumed times in microseconds.

    With the defaults, the single-partition transactions of H-Store's Fig. 6.1 take 0.16 to 0.46 ms.

    Attributes
    ----------
    begin_us, query_us : float
        The time of a transaction without its queries, and the time of a query.
    remote_us, local_us : float
        The time of a message to another node, and the time of a message to another partition of the node.
    prepare_us : float
        The time that a partition takes to prepare to commit.
    examine_us : dict
        For each mode of the scheduler, the time to examine a candidate.
    track_us, validate_us : float
        With ``occ``, the time to record a query, and the time to compare one speculative transaction with the
        distributed transaction.
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
    """The measurements of a simulation. Times are virtual microseconds.

    Attributes
    ----------
    us, counted : float, int
        The time at which the clients had submitted all transactions, and the number of transactions that had
        ended until this time.
    committed, speculated, restarted, rolled_back, prefetched : int
        Five counts: transactions that ended; speculative transactions among the transactions that ended;
        distributed transactions that started again; speculative transactions that were undone; queries that
        ran before they were requested.
    single_us, distributed_us : list
        The latencies of single-partition and of distributed transactions.
    run_us : list
        For each distributed transaction, the time from the moment when it held all partitions to its end.
    stalls_us : dict
        The idle time at each kind of stall point, with the keys ``(point, is_base)``. The point ``locks`` is
        the time until the base knows that all partitions are held.
    held_us : dict
        The time for which distributed transactions held partitions, with the key ``is_base``.
    first_us : list
        For each distributed transaction, the times from its start to its first remote query, and to the
        result of this query.
    yields : list
        For each choice of a speculative transaction, the number of candidates, and the number of candidates
        that did not conflict.
    compared : list
        The same numbers as `yields`, but only for choices that have to compare accesses: choices at SP1 and
        SP2 after the distributed transaction has executed a query in the partition.
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
