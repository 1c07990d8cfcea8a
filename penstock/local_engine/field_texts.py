"""Convert the texts of fields to values as Spark's readers of CSV and JSON do.

Arrow parses texts in the usual form. Python parses all other texts, each distinct text once.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["JSON_DECIMAL", "WIDE_DECIMAL", "is_zone", "parse_texts", "round_decimals", "to_instants"]

_NUMBER: Final = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_FEW_DIGITS: Final = r"([0-9]{1,38}\.?[0-9]{0,38}|\.[0-9]{1,38})"
_DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = rf"{_DAY}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?"
_BARE: Final = (
    r"^[\x00-\x20]*[+-]?[0-9]{4,6}(-[0-9]{1,2}(-[0-9]{1,2}([ T][0-9]{1,2}"
    r"(:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]*)?)?)?)?)?)?[\x00-\x20]*$"
)
"""A time without a zone, in any of its forms."""
_ZONED: Final = r"(Z|[+-](0[0-9]|1[0-7]):?[0-9]{2})$"
_DECIMAL_TEXT: Final = re.compile(f"[+-]?{_NUMBER}", re.ASCII)
_DOUBLE_TEXT: Final = re.compile(f"([+-]?{_NUMBER})[dDfF]?", re.ASCII)
_HEX_TEXT: Final = re.compile(r"([+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+)[dDfF]?", re.ASCII)
_INTEGER_TEXT: Final = re.compile("[+-]?[0-9]+", re.ASCII)
_DATE_TEXT: Final = re.compile(
    r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL
)
_TIME_TEXT: Final = re.compile(
    r"([+-]?[0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?(\D.*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_OFFSET_TEXT: Final = re.compile(
    r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?", re.ASCII
)
_SPECIAL: Final = {name: float(name) for name in ("NaN", "Inf", "-Inf", "Infinity", "+Infinity", "-Infinity")}
_BLANKS: Final = "".join(map(chr, range(33)))
"""The characters that Java trims."""
_DIGITS: Final = 38
_CONTEXT: Final = Context(prec=4 * _DIGITS)
_DAY_US: Final = 86_400_000_000
_CYCLE_DAYS: Final = 146_097
"""The number of days in 400 years, after which the calendar repeats."""
_LATE_US: Final = (date(2038, 1, 1).toordinal() - 719_163) * _DAY_US
"""From this time on, Arrow ignores the days on which a zone changes its clocks."""
_FAR_US: Final = (date(9600, 1, 1).toordinal() - 719_163) * _DAY_US
"""Python has no year above 9999, so times from this time on are converted some cycles earlier."""
_MAX_OFFSET_S: Final = 18 * 3600
_SHORT_ZONES: Final = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Java's short names of zones (``ZoneId.SHORT_IDS``) that are not in the time zone database."""

_MORE_DIGITS: Final = 8
"""Arrow rounds numbers with up to this many digits beyond a decimal's scale. Python rounds the rest."""
WIDE_DECIMAL: Final = pa.decimal256(2 * _DIGITS, _DIGITS)
"""The type in which decimals are rounded. It holds 38 digits on each side of the point."""
JSON_DECIMAL: Final = pa.decimal256(_DIGITS, _DIGITS)
"""The type in which pyarrow reads decimals in JSON, before a view as `WIDE_DECIMAL`.

pyarrow refuses a number with more digits than the precision, and then adds zeros up to the scale without a
check. With this precision, 256 bits hold the result.
"""


def parse_texts(texts: pa.ChunkedArray[Any], kind: pa.DataType, zone: str = "UTC") -> pa.ChunkedArray[Any]:
    """Convert the texts of a column to values.

    Parameters
    ----------
    texts : pyarrow.ChunkedArray
        The texts of one column.
    kind : pyarrow.DataType
        The column's type in Spark: a number, a boolean, a date or a time.
    zone : str
        The time zone of times without a zone.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a text is not a value of the type.
    """
    if pa.types.is_timestamp(kind):
        return _parse_times(texts, kind, zone)
    convert = _cast_to(kind)
    parse: Callable[[str], Any] = _parse_date
    usual = f"^{_DAY}$"
    if pa.types.is_decimal(kind):
        # More digits do not fit `WIDE_DECIMAL`: Arrow's cast may then silently return a wrong number.
        usual, parse = f"^[+-]?{_FEW_DIGITS}$", partial(_parse_decimal, kind=kind)
        convert = partial(_parse_decimals, kind=kind)
    elif pa.types.is_integer(kind):
        usual, parse = "^-?[0-9]+$", partial(_parse_integer, kind=kind)
    elif pa.types.is_floating(kind):
        usual, parse = f"^-?{_NUMBER}$", _parse_double
    elif pa.types.is_boolean(kind):
        usual, parse = "^(true|false|TRUE|FALSE)$", _parse_boolean
    return _convert(texts, usual, convert, parse, kind)


def _cast_to(kind: pa.DataType) -> Callable[[pa.ChunkedArray[Any]], pa.ChunkedArray[Any]]:
    return lambda texts: texts.cast(kind)


def _convert(
    texts: pa.ChunkedArray[Any],
    usual: str,
    convert: Callable[[pa.ChunkedArray[Any]], pa.ChunkedArray[Any]],
    parse: Callable[[str], Any],
    kind: pa.DataType,
) -> pa.ChunkedArray[Any]:
    """Convert the texts that match `usual` together by `convert`, and the rest one by one by `parse`."""
    is_usual = pc.fill_null(pc.match_substring_regex(texts, usual), True)
    if pc.all(is_usual).as_py():
        try:
            return convert(texts)
        except pa.ArrowInvalid:
            if len(texts) > 1:  # The caller finds the text that does not fit.
                raise
            is_usual = pc.and_(is_usual, False)
    odd = pc.if_else(is_usual, None, texts).combine_chunks().dictionary_encode()
    values = [parse(text) for text in odd.dictionary.to_pylist()]
    if None in values:
        raise pa.ArrowInvalid("a text is not a value of the type")
    parsed = pa.array(values, kind).take(odd.indices)
    return pc.coalesce(convert(pc.if_else(is_usual, texts, None)), pa.chunked_array([parsed]))


def round_decimals(numbers: pa.ChunkedArray[Any], kind: pa.Decimal128Type) -> pa.ChunkedArray[Any]:
    """Round decimals of `WIDE_DECIMAL` to a type.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a number has too many digits for the type.
    """
    # Refuse large numbers first: if the result does not fit, Arrow rounds to a wrong number without an error.
    half = Decimal("0.5") if kind.scale < _DIGITS else 0
    too_large = _CONTEXT.subtract(Decimal(10**kind.precision), half).scaleb(-kind.scale, _CONTEXT)
    if pc.any(pc.greater_equal(pc.abs(numbers), pa.scalar(too_large, WIDE_DECIMAL))).as_py():
        raise pa.ArrowInvalid("a number has too many digits")
    # Arrow divides wide decimals wrongly if they are just below a power of two. So let Arrow round only
    # narrow decimals. Casts to them are safe: a cast refuses to lose digits, and so refuses the results of
    # wrong divisions.
    narrow = pa.decimal128(_DIGITS, min(_DIGITS, kind.scale + _MORE_DIGITS))
    with contextlib.suppress(pa.ArrowInvalid):
        return numbers.cast(kind)
    with contextlib.suppress(pa.ArrowInvalid):
        return pc.round(numbers.cast(narrow), kind.scale, round_mode="half_towards_infinity").cast(kind)
    unit, exact = Decimal(1).scaleb(-kind.scale), numbers.to_pylist()
    rounded = [None if one is None else one.quantize(unit, ROUND_HALF_UP, _CONTEXT) for one in exact]
    array = pa.array(rounded, kind)
    return array if isinstance(numbers, pa.Array) else pa.chunked_array([array])


def _parse_decimals(texts: pa.ChunkedArray[Any], kind: pa.Decimal128Type) -> pa.ChunkedArray[Any]:
    return round_decimals(texts.cast(WIDE_DECIMAL), kind)


def _parse_decimal(text: str, kind: pa.Decimal128Type) -> Decimal | None:
    text = text.replace(",", "")  # Spark ignores commas at any place.
    if not _DECIMAL_TEXT.fullmatch(text):
        return None
    try:
        number = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _CONTEXT)
    except InvalidOperation:
        return None
    return number if len(number.as_tuple().digits) <= kind.precision else None


def _parse_integer(text: str, kind: pa.DataType) -> int | None:
    if not _INTEGER_TEXT.fullmatch(text) or len(text) > _DIGITS:
        return None
    number, limit = int(text), 1 << (kind.bit_width - 1)
    return number if -limit <= number < limit else None


def _parse_double(text: str) -> float | None:
    text = text.strip(_BLANKS)
    if text in _SPECIAL:
        return _SPECIAL[text]
    if number := _DOUBLE_TEXT.fullmatch(text):
        return float(number[1])
    try:
        return float.fromhex(found[1]) if (found := _HEX_TEXT.fullmatch(text)) else None
    except (ValueError, OverflowError):
        return None


def _parse_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _days(year: str, month: str | None, day: str | None) -> int | None:
    """Return the days since 1970 of a date of any year; None if there is no such date."""
    number = int(year)
    cycles, rest = divmod(number - 2000, 400)
    try:
        return date(2000 + rest, int(month or 1), int(day or 1)).toordinal() - 719_163 + _CYCLE_DAYS * cycles
    except ValueError:
        return None


def _parse_date(text: str) -> int | None:
    found = _DATE_TEXT.fullmatch(text.strip(_BLANKS))
    return None if found is None else _days(*found.groups())


def _parse_times(texts: pa.ChunkedArray[Any], kind: pa.DataType, zone: str) -> pa.ChunkedArray[Any]:
    is_local = kind.tz is None
    usual = f"^{_TIME}$" if is_local else f"^{_TIME}{_ZONED}"
    bare = None
    if not pc.all(pc.fill_null(pc.match_substring_regex(texts, usual), True)).as_py():
        texts = pc.replace_substring_regex(texts, r"(:[0-9]{2}\.[0-9]{6})[0-9]+", r"\1")
        is_bare = pc.fill_null(pc.match_substring_regex(texts, _BARE), False)
        if not is_local and pc.any(is_bare).as_py():
            bare = _parse_times(pc.if_else(is_bare, texts, None), pa.timestamp("us"), zone)
            texts = pc.if_else(is_bare, None, texts)
    parsed = _convert(texts, usual, _cast_to(kind), partial(_parse_time, is_local=is_local), kind)
    return parsed if bare is None else pc.coalesce(parsed, to_instants(bare, zone).cast(kind))


def is_zone(name: str) -> bool:
    """Return whether `to_instants` knows a zone by this name, without reading the list of all zones."""
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("us")), name)
    except pa.ArrowInvalid:
        return False
    return True


def to_instants(times: pa.ChunkedArray[Any], zone: str) -> pa.ChunkedArray[Any]:
    """Convert local times of a zone to instants."""
    is_late = pc.fill_null(pc.greater_equal(times.cast(pa.int64()), _LATE_US), False)
    if zone in _zones() and pc.any(is_late).as_py():
        late = _late_instants(pc.if_else(is_late, times, None).combine_chunks(), zone)
        return pc.coalesce(to_instants(pc.if_else(is_late, None, times), zone), pa.chunked_array([late]))
    instants = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="earliest")
    # A time that the clocks skip moves forward by the length of the gap, as in Spark.
    return pc.add(instants, pc.subtract(times, pc.local_timestamp(instants)))


def _late_instants(times: pa.Array, zone: str) -> pa.Array:
    """Convert local times one by one from `_LATE_US` on, because Arrow ignores a zone's rules after it."""
    distinct = times.dictionary_encode()
    instants = []
    for time_us in distinct.dictionary.cast(pa.int64()).to_pylist():
        cycles = max(0, (time_us - _FAR_US) // (_CYCLE_DAYS * _DAY_US) + 1)  # See `_FAR_US`.
        shown = datetime(1970, 1, 1) + timedelta(days=-cycles * _CYCLE_DAYS, microseconds=time_us)
        # If the clocks skip or repeat a time, Python uses the offset before the change, as Spark does.
        instant = shown.replace(tzinfo=ZoneInfo(zone)) - datetime(1970, 1, 1, tzinfo=UTC)
        instants.append((instant + timedelta(days=cycles * _CYCLE_DAYS)) // timedelta(microseconds=1))
    return pa.array(instants, pa.int64()).cast(pa.timestamp("us", zone)).take(distinct.indices)


def _parse_time(text: str, *, is_local: bool) -> int | None:
    """Return the microseconds since 1970 of a time, or of the beginning of a day, month or year."""
    found = _TIME_TEXT.fullmatch(text.strip(_BLANKS))
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, named = found.groups()
    days = _days(year, month, day)
    clock = [int(part or 0) for part in (hour, minute, second)]
    if days is None or clock[0] > 23 or max(clock[1:]) > 59:
        return None
    seconds = 3600 * clock[0] + 60 * clock[1] + clock[2]
    time_us = days * _DAY_US + seconds * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    if is_local:
        return time_us if named is None else None
    if named is None:  # `_parse_times` converts times without a zone.
        return None
    named = named.strip(_BLANKS)
    if named == "Z":
        return time_us
    if offset := _OFFSET_TEXT.fullmatch(named):
        sign, *parts = offset.groups()
        hours, minutes, rest = (int(part or 0) for part in parts)
        offset_s = 3600 * hours + 60 * minutes + rest
        if offset_s > _MAX_OFFSET_S or max(minutes, rest) > 59:
            return None
        return time_us - (offset_s if sign == "+" else -offset_s) * 1_000_000
    named = _SHORT_ZONES.get(named, named)
    return _instant_us(time_us, named) if named in _zones() else None


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _instant_us(time_us: int, zone: str) -> int:
    column = pa.chunked_array([pa.array([time_us], pa.timestamp("us"))])
    return int(to_instants(column, zone).cast(pa.int64())[0].as_py())
