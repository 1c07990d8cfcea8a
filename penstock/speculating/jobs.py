"""The transactions and partitions of a simulated cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.speculating.rules import Step
from penstock.speculating.scheduler import Speculated, Stall, Transaction
from penstock.speculating.tracking import TrackingTable

__all__ = ["Job", "Partition"]


@dataclass(eq=False, slots=True)
class Job:
    """A transaction that a client waits for."""

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
    beside: dict[int, list[tuple[Speculated, Job]]] = field(default_factory=dict)
    granted_us: dict[int, float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Partition:
    """A partition of a simulated cluster."""

    number: int
    queue: deque[Job] = field(default_factory=deque)
    holder: Job | None = None
    is_running: bool = False
    waiting: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    idle_since_us: float = 0.0
