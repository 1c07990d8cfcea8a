"""Goals of compression: the cost to minimise."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from penstock.errors import InvalidUsageError

__all__ = ["GOALS", "Goal", "goal_of"]


@dataclass(frozen=True, slots=True)
class Goal:
    """The cost that a chooser minimises, in nanoseconds per value.

    Parameters
    ----------
    write_mb_s : float
        Write bandwidth in 10**6 bytes per second. 0 minimises only bytes; infinity minimises only time.
    decode_weight : float
        The weight of decoding time relative to encoding time.

    Raises
    ------
    InvalidUsageError
        If a number is negative or NaN.
    """

    write_mb_s: float
    decode_weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (self.write_mb_s >= 0 and 0 <= self.decode_weight < math.inf):
            raise InvalidUsageError(
                "a goal's numbers cannot be negative",
                write_mb_s=self.write_mb_s,
                decode_weight=self.decode_weight,
            )


GOALS = {"fast": Goal(140.0), "balanced": Goal(40.0), "small": Goal(1.0)}
"""The named goals."""

_BANDWIDTH = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*MB/s\s*", re.IGNORECASE)


def goal_of(goal: str | Goal) -> Goal:
    """Return a goal by its name, or by the bandwidth at which blocks can be written.

    Raises
    ------
    InvalidUsageError
        If `goal` is neither a name nor a bandwidth.

    Examples
    --------
    >>> goal_of("500 MB/s")
    Goal(write_mb_s=500.0, decode_weight=1.0)
    """
    if isinstance(goal, Goal):
        return goal
    if goal in GOALS:
        return GOALS[goal]
    if bandwidth := _BANDWIDTH.fullmatch(str(goal)):
        return Goal(float(bandwidth["number"]))
    raise InvalidUsageError(
        "there is no such goal", goal=goal, known=", ".join(GOALS), hint="or a bandwidth, such as 500 MB/s"
    )
