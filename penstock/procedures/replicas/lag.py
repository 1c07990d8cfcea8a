"""The lag of a replica behind the log of its database."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Lag"]


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a replica behind the log.

    Attributes
    ----------
    calls : int
        The number of calls in the log that have not run in the replica.
    seconds : float
        The age of the oldest of these calls in seconds; 0.0 if there are no such calls.
    """

    calls: int
    seconds: float
