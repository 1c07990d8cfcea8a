"""How far a replica is behind the log of its database."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Lag"]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a replica is behind the log.

    Attributes
    ----------
    calls : int
        The calls that are in the log and have not run in the replica.
    seconds : float
        The age of the oldest of these calls; 0.0 if there are none.
    """

    calls: int
    seconds: float
