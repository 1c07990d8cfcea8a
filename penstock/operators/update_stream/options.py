"""Checks of single options (budgets, weights, durations, columns, choices), without any kernel."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.choices import Semantics
from penstock.units import COST_BY_KEY, parse_duration_us

if TYPE_CHECKING:
    from penstock.operators.update_stream.operator_options import WindowOptions

__all__ = [
    "Budget",
    "budget_of",
    "check_by_key",
    "check_column",
    "check_cost",
    "check_weight",
    "column_names",
    "cost_of",
    "parse_choice",
    "parse_ms",
    "session_gap",
    "weight_of",
]

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Budget:
    """The serving limit of one micro-batch. If there is no limit, all waiting tuples are served.

    Parameters
    ----------
    rows : int, optional
        The maximum number of tuples.
    duration_us : int, optional
        After this time no further chunk of tuples is started. At least one tuple is always served.
    """

    rows: int | None = None
    duration_us: int | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "duration_us"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidUsageError("the budget is negative", **{name: value})

    @property
    def setting(self) -> str:
        """``some`` or ``none``, which is fixed for the life of a checkpoint.

        A budget needs timeouts, with which Spark's own state has a different schema.
        """
        return "none" if self == Budget() else "some"


def budget_of(budget: int | str | None, *, timed: bool) -> Budget:
    """Convert a user's `budget` to limits.

    Parameters
    ----------
    timed : bool
        Whether the operator does work of its own, so that its time can be limited.

    Raises
    ------
    InvalidUsageError
        If the budget is not positive, is neither a number nor a text, or is a duration although `timed` is
        false.
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
                "the budget is not positive", budget=budget, hint="pass None to serve all waiting rows"
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


def check_cost(cost: str | None, policy: str, semantics: str, apply: object) -> None:
    """Check the cost of a tuple of a queue with these options.

    Raises
    ------
    InvalidUsageError
        If the cost is neither a duration nor measured by key; or if it is measured by key, although `apply`
        is missing, the policy is not freshest, or the semantics are not update.
    """
    if cost != COST_BY_KEY:
        cost_of(cost)
    elif apply is None:
        raise InvalidUsageError("costs by key are times of apply=, which is missing", cost=COST_BY_KEY)
    elif policy != Policy.FRESHEST or semantics != Semantics.UPDATE:
        raise InvalidUsageError(
            "costs by key need policy='freshest' and update semantics",
            cost=COST_BY_KEY, policy=policy, semantics=semantics,
        )  # fmt: skip


def cost_of(cost: str | None) -> int | None:
    """Convert a given cost of a tuple to microseconds.

    Raises
    ------
    InvalidUsageError
        If the cost is not a duration, or is zero.
    """
    return None if cost is None else _positive("cost", cost)


def weight_of(weight: object) -> tuple[str | None, Mapping[Any, Any] | None]:
    """Return the weight column and the weights by key; at least one of them is None.

    Raises
    ------
    InvalidUsageError
        If the weight is neither a column nor a mapping.
    """
    if weight is None or isinstance(weight, str):
        return weight, None
    if isinstance(weight, Mapping):
        return None, weight
    raise InvalidUsageError(
        "the weight is neither a column nor a mapping", weight=repr(weight), hint="pass weight='column'"
    )


def column_names(option: str, given: object) -> tuple[str, ...]:
    """Return the names of the columns that an option gives: one name, or several names.

    Raises
    ------
    InvalidUsageError
        If a column is not given by its name, such as a ``Column`` of Spark.
    """
    columns: tuple[object, ...] = (given,)
    if not isinstance(given, str) and isinstance(given, Iterable):
        with contextlib.suppress(TypeError):  # a Column of Spark has an iterator that only raises
            columns = tuple(given)
    names = tuple(name for name in columns if isinstance(name, str))
    if len(names) < len(columns):
        wrong = next(column for column in columns if not isinstance(column, str))
        name = str(wrong).removeprefix("Column<'").removesuffix("'>")
        raise InvalidUsageError(
            "columns are given by name",
            hint=f"write the name as text, such as {option}={name if name.isidentifier() else 'symbol'!r}",
            option=option,
            got=repr(wrong),
        )
    return names


def check_column(option: str, name: object, names: Sequence[str]) -> None:
    """Check that the column that an option names exists.

    Raises
    ------
    InvalidUsageError
        If the column does not exist, or is not given by its name.
    """
    column_names(option, name)
    if name not in names:
        raise InvalidUsageError(
            "there is no such column",
            hint=did_you_mean(str(name), names),
            option=option,
            column=name,
            columns=list(names),
        )


def check_weight(column: pa.Field[Any]) -> None:
    """Check that a column can be a weight.

    Raises
    ------
    InvalidUsageError
        If the column is not numeric.
    """
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise InvalidUsageError(
            "a column of this type cannot be the weight",
            column=column.name,
            type=kind,
            hint="use an integer, float or decimal",
        )


def check_by_key(key: Sequence[str], weights: Mapping[Any, Any]) -> None:
    """Check a mapping from key values to weights. The types of the key values are not checked.

    Raises
    ------
    InvalidUsageError
        If the key does not have exactly one column, or a weight is not a positive, finite number.
    """
    if len(key) != 1:
        raise InvalidUsageError(
            "weights by key value are for a key of one column",
            key=list(key),
            hint="name a column that holds the weight",
        )
    for weight in weights.values():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 < weight < math.inf:
            raise InvalidUsageError(
                "a weight is not a positive, finite number", weight=repr(weight), option="weight"
            )


def parse_choice(option: str, got: str, kind: type[E]) -> E:
    """Return the member of an enumeration that an option names.

    Raises
    ------
    InvalidUsageError
        If no member has that name.
    """
    try:
        return kind(got)
    except ValueError:
        known = [str(member) for member in kind]
        near = difflib.get_close_matches(str(got).lower(), known, n=1)
        raise InvalidUsageError(
            "an option has an unknown value",
            option=option,
            got=got,
            known=known,
            hint=f"did you mean {near[0]!r}?" if near else None,
        ) from None


def parse_ms(option: str, duration: str | timedelta, *, least: int = 1) -> int:
    """Convert a duration to whole milliseconds.

    Parameters
    ----------
    option : str
        The option's name, for errors.
    duration : str or timedelta
        The duration, such as ``"10 s"``.
    least : int
        The shortest duration allowed.

    Raises
    ------
    InvalidUsageError
        If the duration is too short or not a whole number of milliseconds.
    """
    us = parse_duration_us(duration)
    if us <= 0 < least:
        raise InvalidUsageError("a duration is not positive", option=option, got=str(duration))
    if us % 1000 or us < 1000 * least:
        raise InvalidUsageError(
            "a duration is not a whole number of milliseconds", option=option, got=str(duration)
        )
    return us // 1000


def session_gap(
    session: str | timedelta | None,
    size: str | timedelta | None,
    slide: str | timedelta | None,
    options: WindowOptions,
) -> int | None:
    """Return the gap of session windows in milliseconds; None for windows with a size.

    Raises
    ------
    InvalidUsageError
        If neither or both of session and size are given, or if a slide or a mode does not fit sessions.
    """
    if session is None:
        if size is None:
            raise InvalidUsageError(
                "windows have neither a size nor a session",
                hint="pass size='60 s', or session='10 minutes' for session windows",
            )
        return None
    if size is not None or slide is not None:
        raise InvalidUsageError(
            "session windows have no size and no slide",
            session=str(session),
            hint="a session ends when no event follows within its gap; leave out size and slide",
        )
    if options.by_key:
        raise InvalidUsageError(
            "session windows are only in append mode",
            mode=str(options.mode),
            hint="use mode='append', which emits each session once",
        )
    return parse_ms("session", session)


def _positive(option: str, text: str) -> int:
    duration_us = parse_duration_us(text)
    if duration_us <= 0:
        raise InvalidUsageError("a duration is not positive", option=option, got=text)
    return duration_us
