"""Check time columns, and convert durations to steps: the units in which a time column counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.units import parse_duration_us

__all__ = ["check_times", "steps_of"]

_STEPS_A_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def check_times(key: Sequence[str], time: pa.Field[Any], arrival: str | None) -> None:
    """Check the time columns of an update stream.

    Raises
    ------
    InvalidUsageError
        If a time column is part of the key, or the type of the time is unsuitable.
    """
    for name in (time.name, arrival):
        if name in key:
            raise InvalidUsageError(
                "a time column cannot be part of the update key",
                column=name,
                hint="every tuple would be its own key",
            )
    kind = time.type
    if not (
        pa.types.is_signed_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or kind in (pa.float32(), pa.float64())
    ):
        raise InvalidUsageError(
            "a column of this type cannot be the time",
            column=time.name,
            type=kind,
            hint="use an integer, float, date or timestamp; cast text first",
        )


def steps_of(option: str, duration: str | timedelta, kind: pa.DataType, unit: str | None) -> int:
    """Convert a duration to a number of steps of a time column.

    Parameters
    ----------
    option : str
        The option's name, for errors.
    duration : str or timedelta
        Such as ``"10 s"``.
    kind : pyarrow.DataType
        The type of the time column: a timestamp, a date, or an integer in `unit`.
    unit : str or None
        The unit of an integer time: ``s``, ``ms``, ``us`` or ``ns``.

    Raises
    ------
    InvalidUsageError
        If the unit is missing or does not fit the type, or the duration is not a whole number of steps.
    """
    microseconds = parse_duration_us(duration)
    step: str | None = "day"
    if pa.types.is_date32(kind):
        number, rest = divmod(microseconds, 86_400_000_000)
    else:
        unit_of_type = kind.unit if pa.types.is_timestamp(kind) else None
        if unit_of_type is None and not pa.types.is_integer(kind):
            raise InvalidUsageError(
                "the time column has an unsupported type",
                option=option,
                type=kind,
                hint="use a timestamp, a date or an integer; cast others first",
            )
        if unit_of_type is not None and unit not in (None, unit_of_type):
            raise InvalidUsageError("the unit differs from the unit of the time column", unit=unit, type=kind)
        step = unit_of_type or unit
        if step not in _STEPS_A_SECOND:
            raise InvalidUsageError(
                "an integer time column has an unknown unit",
                unit=repr(step),
                hint="pass unit='s', 'ms', 'us' or 'ns'",
            )
        number, rest = divmod(microseconds * _STEPS_A_SECOND[step], 1_000_000)
    if rest:
        raise InvalidUsageError(
            "a duration is not a multiple of the time column's unit",
            option=option,
            got=str(duration),
            step=step,
        )
    return number
