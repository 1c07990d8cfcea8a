"""Arguments of operators, checked: budgets, durations, choices."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from penstock.errors import InvalidUsageError
from penstock.operators.serve import Budget
from penstock.units import parse_duration_us

__all__ = ["budget_of", "cost_of", "one_of", "weight_of"]

E = TypeVar("E", bound=StrEnum)


def budget_of(budget: int | str | None, *, timed: bool) -> Budget:
    """Return what a user's `budget` allows.

    Parameters
    ----------
    timed : bool
        Whether the operator itself does what takes the time.

    Raises
    ------
    InvalidUsageError
        If it is not positive, of another type, or a duration where there is nothing to measure.
    """
    if budget is None:
        return Budget()
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise InvalidUsageError(
            "the budget is neither rows nor a duration",
            budget=repr(budget),
            hint="pass a number of rows, a text such as '800ms', or None",
        )
    if isinstance(budget, int):
        if budget <= 0:
            raise InvalidUsageError(
                "the budget is not positive", budget=budget, hint="None serves all that waits"
            )
        return Budget(rows=budget)
    duration_us = _positive("budget", budget)
    if not timed:
        raise InvalidUsageError(
            "a budget of time needs apply=, whose time it measures",
            budget=budget,
            hint="pass a number of rows instead",
        )
    return Budget(duration_us=duration_us)


def cost_of(cost: str | None) -> int | None:
    """Return the cost of a tuple in microseconds, if it is given.

    Raises
    ------
    InvalidUsageError
        If it is no duration, or zero.
    """
    return None if cost is None else _positive("cost", cost)


def weight_of(weight: object) -> tuple[str | None, Mapping[Any, Any] | None]:
    """Return the column of weights, or the weights by key; none of them where none are given.

    Raises
    ------
    InvalidUsageError
        If it is something else.
    """
    if weight is None or isinstance(weight, str):
        return weight, None
    if isinstance(weight, Mapping):
        return None, weight
    raise InvalidUsageError(
        "the weight is neither a column nor a mapping", weight=repr(weight), hint="pass weight='column'"
    )


def one_of(option: str, got: str, kind: type[E]) -> E:
    """Return the member of an enumeration that an option names.

    Raises
    ------
    InvalidUsageError
        If there is none of that name.
    """
    try:
        return kind(got)
    except ValueError:
        raise InvalidUsageError(
            "there is no such option", option=option, got=got, known=[str(one) for one in kind]
        ) from None


def _positive(option: str, text: str) -> int:
    duration_us = parse_duration_us(text)
    if duration_us <= 0:
        raise InvalidUsageError("a duration is not positive", option=option, got=text)
    return duration_us
