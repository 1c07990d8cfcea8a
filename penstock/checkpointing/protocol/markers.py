"""The control tuples that flow with the p-units, and against them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpointing.protocol.vector_clock import VectorClock

__all__ = ["CheckpointMarker", "Marker", "ReleaseMarker", "RetainMarker"]


@dataclass(frozen=True, slots=True)
class CheckpointMarker:
    """Downstream: take a snapshot for this checkpoint."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class RetainMarker:
    """Downstream, up to the first stream that may be retained: make the p-unit that follows durable."""


@dataclass(frozen=True, slots=True)
class ReleaseMarker:
    """Upstream: nothing before this clock is needed by any recovery any more.

    The clock has the components that `lineage` names, and ``checkpoint``: the first one that is needed.
    """

    clock: VectorClock


Marker = CheckpointMarker | RetainMarker | ReleaseMarker
