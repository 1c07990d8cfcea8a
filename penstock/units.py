"""Durations such as ``800ms`` in whole microseconds, numbers of rows, addresses, and special values."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

from penstock.errors import InvalidUsageError

__all__ = [
    "COST_BY_KEY",
    "FOREVER",
    "NEVER",
    "duration_text",
    "parse_address",
    "parse_duration_us",
    "parse_rows",
    "window_rows",
]

NEVER: Final = -(1 << 63)
"""The time, pane or window of an event that never happened; it sorts before all other values."""

FOREVER: Final = (1 << 63) - 1
"""The largest 64-bit integer, a time after all other times."""

COST_BY_KEY: Final = "by key"
"""The cost of a tuple of a queue that measures the cost of each key."""

_UNITS_US = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
}
_PLURALS = {f"{unit}s": us for unit, us in _UNITS_US.items() if len(unit) > 2}
_FACTORS = _UNITS_US | _PLURALS

_DURATION = re.compile(r"\s*(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))\s*(?P<unit>[a-z]*)\s*")
_ROWS = re.compile(r"\s*(?P<number>[0-9]+)\s*rows?\s*")
_EXAMPLES = "'800ms', '2s', '1.5 s' or '5 minutes'"
_MAX_ROWS = 2**40
_PORT = re.compile(r"[0-9]{1,5}")


def duration_text(ms: int) -> str:
    """Return a duration in milliseconds as text.

    Examples
    --------
    >>> duration_text(60_000), duration_text(1_500)
    ('60 s', '1500 ms')
    """
    return f"{ms // 1000} s" if ms % 1000 == 0 else f"{ms} ms"


def parse_duration_us(duration: str | timedelta) -> int:
    """Return a duration in microseconds.

    Parameters
    ----------
    duration : str or datetime.timedelta
        A number and a unit: ``us``, ``ms``, ``s``, ``min``, ``h``, ``d``, or their English names, singular
        or plural, in any case. White space around and between number and unit is ignored.

    Returns
    -------
    int
        Microseconds, zero or more.

    Raises
    ------
    InvalidUsageError
        If the text is not a number and a known unit, is negative, is not a whole number of
        microseconds, or does not fit 64 bits.

    Examples
    --------
    >>> parse_duration_us("800ms")
    800000
    >>> parse_duration_us("1.5 s")
    1500000
    >>> parse_duration_us(timedelta(minutes=5))
    300000000
    """
    if isinstance(duration, timedelta):
        if duration < timedelta():
            raise InvalidUsageError(f"the duration {duration} is negative")
        return duration // timedelta(microseconds=1)
    if not isinstance(duration, str):
        raise InvalidUsageError(
            f"{duration!r} is not a duration", hint=f"write a number and a unit, such as {_EXAMPLES}"
        )
    if parse_rows(duration) is not None:
        raise InvalidUsageError(
            f"{duration!r} is no duration but a number of rows",
            hint="only the size and the slide of windows may be in rows",
        )
    match = _DURATION.fullmatch(duration.lower())
    if match is None:
        raise InvalidUsageError(
            f"{duration!r} is not a duration", hint=f"write a number and a unit, such as {_EXAMPLES}"
        )
    number, unit = Decimal(match["number"]), match["unit"]
    if not unit:
        raise InvalidUsageError(
            f"the duration {duration!r} has no unit",
            hint=f"write a number and a unit, such as {_EXAMPLES}",
        )
    if unit not in _FACTORS:
        raise InvalidUsageError(
            f"the duration {duration!r} has the unknown unit {unit!r}",
            hint=f"the units are {', '.join(_UNITS_US)}",
        )
    if number < 0:
        raise InvalidUsageError(f"the duration {duration!r} is negative")
    us = number * _FACTORS[unit]
    if us != us.to_integral_value():
        raise InvalidUsageError(
            f"the duration {duration!r} is not a whole number of microseconds",
            hint="a microsecond is the shortest duration",
        )
    if us > FOREVER:
        raise InvalidUsageError(f"the duration {duration!r} is longer than 64 bits of microseconds hold")
    return int(us)


def parse_rows(text: object) -> int | None:
    """Parse a number of rows, such as ``100 rows``; return None for any other text.

    Examples
    --------
    >>> parse_rows("100 rows")
    100
    >>> parse_rows("100 s")
    """
    match = _ROWS.fullmatch(text.lower()) if isinstance(text, str) else None
    return None if match is None else int(match["number"])


def window_rows(size: object, slide: object | None) -> tuple[int, int] | None:
    """Return size and slide of windows in rows; None for windows of time.

    Raises
    ------
    InvalidUsageError
        If only one of the two is a number of rows, or if a number is out of range.
    """
    size_rows = parse_rows(size)
    slide_rows = size_rows if slide is None else parse_rows(slide)
    if size_rows is None and slide_rows is None:
        return None
    if size_rows is None or slide_rows is None:
        raise InvalidUsageError(
            "one of size and slide counts rows, the other is a duration", size=str(size), slide=str(slide)
        )
    if not 1 <= slide_rows <= size_rows:
        raise InvalidUsageError(
            "the slide of windows is not from 1 row to their size", size_rows=size_rows, slide_rows=slide_rows
        )
    if size_rows > _MAX_ROWS:
        raise InvalidUsageError("the windows are too large", size_rows=size_rows, most=_MAX_ROWS)
    return size_rows, slide_rows


def parse_address(address: str | int) -> tuple[str, int]:
    """Return the host and port of ``HOST:PORT``; a port alone is a port of 127.0.0.1.

    An IPv6 address is in brackets, such as ``[::1]:9464``. Port 0 takes a free port.

    Raises
    ------
    InvalidUsageError
        If the text is not an address.
    """
    host, _, port = str(address).rpartition(":")
    if isinstance(address, bool) or not _PORT.fullmatch(port) or int(port) > 65535:
        raise InvalidUsageError(
            f"{address!r} is not an address", hint="write a port, such as 9464, or HOST:PORT"
        )
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare and bare == host:
        raise InvalidUsageError(f"{address!r} is not an address", hint="write [HOST]:PORT for IPv6")
    return bare or "127.0.0.1", int(port)
