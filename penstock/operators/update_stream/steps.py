"""Convert durations to steps of a time column."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.units import parse_duration_us

__all__ = ["steps_of"]

_STEPS_A_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


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
        ``s``, ``ms``, ``us`` or ``ns``, for integers.

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
            raise InvalidUsageError("the unit differs from that of the time column", unit=unit, type=kind)
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
