"""The transactions and partitions of a simulated cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.speculating.rules import Step
from penstock.speculating.scheduler import SpeculativeRun, Stall, Transaction
from penstock.speculating.tracking import TrackingTable

__all__ = ["Job", "Partition"]


@dataclass(eq=False, slots=True)
class Job:
    """A transaction that a client waits for.

    Attributes
    ----------
    transaction : Transaction
        The transaction.
    client : int
        The number of the client; below 0 for an additional client (see `Cluster.run`).
    submitted_us, started_us : float
        The times at which the client submitted the transaction, and at which its control code began.
    stalls : dict
        The stall of each partition that the transaction holds.
    at : int
        The number of steps that the transaction has executed.
    granted : int
        The number of partitions that have told the base that the transaction holds them.
    table : TrackingTable or None
        The prefetched queries.
    waits_for : set
        The prefetched queries whose results the transaction needs now.
    first_query_us : float
        The time from the start to the first remote query; -1 until a remote query has its result.
    restarts : int
        The number of times that the transaction has started again.
    fails : bool
        Whether the transaction aborts or starts again.
    beside : dict
        For each partition, the jobs that ran there while the partition waited for the transaction.
    granted_us : dict
        The time at which the transaction began to hold each partition.
    """

    transaction: Transaction
    client: int
    submitted_us: float
    stalls: dict[int, Stall] = field(default_factory=dict)
    at: int = 0
    granted: int = 0
    started_us: float = 0.0
    table: TrackingTable | None = None
    waits_for: set[Step] = field(default_factory=set)
    first_query_us: float = -1.0
    restarts: int = 0
    fails: bool = False
    beside: dict[int, list[tuple[SpeculativeRun, Job]]] = field(default_factory=dict)
    granted_us: dict[int, float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Partition:
    """A partition of a simulated cluster.

    Attributes
    ----------
    number : int
        The partition's number.
    queue : deque of Job
        The jobs that wait for the partition.
    holder : Job or None
        The distributed transaction that holds the partition.
    is_running : bool
        Whether the partition's thread is busy.
    waiting : list of tuple
        The actions that wait for the thread, each with its duration in microseconds.
    idle_since_us : float
        The time from which the next stall counts.
    """

    number: int
    queue: deque[Job] = field(default_factory=deque)
    holder: Job | None = None
    is_running: bool = False
    waiting: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    idle_since_us: float = 0.0
