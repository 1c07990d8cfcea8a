"""What compression minimises."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidUsageError

__all__ = ["GOALS", "Goal", "goal_of"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a chooser minimises, in nanoseconds a value.

    Parameters
    ----------
    write_mb_s : float
        Write bandwidth in 10**6 bytes a second. 0 minimises bytes alone, infinity time alone.
    decode_weight : float
        What a nanosecond of decoding counts beside one of encoding.
    """

    write_mb_s: float
    decode_weight: float = 1.0


GOALS = {"fast": Goal(140.0), "balanced": Goal(40.0), "small": Goal(1.0)}
"""The goals that have names."""


def goal_of(goal: str | Goal) -> Goal:
    """Return a goal by its name.

    Raises
    ------
    InvalidUsageError
        If there is none.
    """
    if isinstance(goal, Goal):
        return goal
    if goal not in GOALS:
        raise InvalidUsageError("there is no such goal", goal=goal, known=", ".join(GOALS))
    return GOALS[goal]
