"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.errors import InvalidUsageError
from penstock.units import parse_duration_us, parse_rows


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("800ms", 800_000),
        ("2s", 2_000_000),
        ("1.5 s", 1_500_000),
        ("5 minutes", 300_000_000),
        ("1 minute", 60_000_000),
        ("2 min", 120_000_000),
        ("1 hour", 3_600_000_000),
        ("3 h", 10_800_000_000),
        ("2 Days", 172_800_000_000),
        ("1d", 86_400_000_000),
        ("10us", 10),
        ("10 microseconds", 10),
        (".5 ms", 500),
        ("0.000001s", 1),
        ("  7  seconds ", 7_000_000),
        ("0s", 0),
        ("+3 ms", 3_000),
        (timedelta(seconds=1, microseconds=5), 1_000_005),
        (timedelta(0), 0),
    ],
)
def test_a_duration_becomes_microseconds(text: str | timedelta, us: int) -> None:
    assert parse_duration_us(text) == us


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "soon",
            "'soon' is not a duration. "
            "Hint: write a number and a unit, such as '800ms', '2s', '1.5 s' or '5 minutes'.",
        ),
        (
            "",
            "'' is not a duration. "
            "Hint: write a number and a unit, such as '800ms', '2s', '1.5 s' or '5 minutes'.",
        ),
        (
            "800",
            "the duration '800' has no unit. "
            "Hint: write a number and a unit, such as '800ms', '2s', '1.5 s' or '5 minutes'.",
        ),
        (
            "3 parsecs",
            "the duration '3 parsecs' has the unknown unit 'parsecs'. Hint: the units are us, "
            "microsecond, ms, "
            "millisecond, s, sec, second, min, minute, h, hour, d, day.",
        ),
        ("-1s", "the duration '-1s' is negative."),
        (
            "0.5us",
            "the duration '0.5us' is not a whole number of microseconds. "
            "Hint: a microsecond is the shortest duration.",
        ),
        (
            "9999999999999 days",
            "the duration '9999999999999 days' is longer than 64 bits of microseconds hold.",
        ),
        (timedelta(seconds=-1), "the duration -1 day, 23:59:59 is negative."),
        (
            800,
            "800 is not a duration. "
            "Hint: write a number and a unit, such as '800ms', '2s', '1.5 s' or '5 minutes'.",
        ),
    ],
)
def test_what_is_not_a_duration_is_refused_with_what_would_be(text: str, message: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        parse_duration_us(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["1e3 s", "1,5 s", "1 2 s", "s", "1..5s", "1s2ms", "٣s", "nan s", "inf s"])
def test_other_ways_to_write_numbers_are_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError):
        parse_duration_us(text)


def test_a_number_of_rows_is_no_duration() -> None:
    found = [parse_rows(text) for text in ("100 rows", " 1ROW ", "100", "1.5 rows", "100 s", timedelta(1))]
    assert found == [100, 1, None, None, None, None]
    with pytest.raises(InvalidUsageError, match="no duration but a number of rows"):
        parse_duration_us("100 rows")
