"""The control tuples that flow with the p-units, and against them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.models.protocol.vector_clock import VectorClock

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

    The clock has for each stream ``s`` the offset before which it is not needed, for each source ``>s``,
    before which it need not send again, and ``checkpoint``, the first that is needed.
    """

    clock: VectorClock


Marker = CheckpointMarker | RetainMarker | ReleaseMarker
