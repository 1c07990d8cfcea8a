"""Decimals and times of fields on the local engine, against Python's decimals and time zones."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.local_engine.field_texts import parse_texts
from penstock.local_engine.records.json_decoder import JsonDecoder
from penstock.local_engine.records.whole_files import file_reader

KINDS = [(10, 2), (38, 10), (38, 2), (38, 0), (38, 38), (9, 0), (18, 6)]
_digits = st.integers(0, 40).flatmap(lambda count: st.integers(0, 10**count)).map(str)
_numbers = st.one_of(_digits, st.tuples(_digits, _digits).map(".".join), st.just("-2.5e3"))


def rounded(text: str, precision: int, scale: int) -> Decimal | None:
    number = Context(prec=200).create_decimal(text)
    number = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=200))
    return number if abs(number.scaleb(scale, Context(prec=200))) < 10**precision else None


@example((10, 2), "3486755212")
@example((38, 10), "12345678901234567890123456789012345678")
@example((38, 0), "9" * 38 + ".9")
@example((38, 10), "18014398509481983.60")
@example((38, 2), "1e-50")
@example((10, 2), "1e60")
@given(st.sampled_from(KINDS), _numbers)
def test_decimals_are_rounded_or_refused(digits: tuple[int, int], text: str) -> None:
    kind, expected = pa.decimal128(*digits), rounded(text, *digits)
    column = pa.chunked_array([[text, "0"]])
    if expected is None:
        with pytest.raises(pa.ArrowInvalid):
            parse_texts(column, kind)
    else:
        assert parse_texts(column, kind).to_pylist() == [expected, 0]
    schema = pa.schema({"v": kind, "s": pa.struct({"v": kind}), "l": pa.list_(kind)})
    record = f'{{"v": {text}, "s": {{"v": {text}}}, "l": [{text}]}}'
    decoded, (reason, _) = JsonDecoder(schema, "UTC").decode(pa.array([record.encode(), b'{"v": 0}']))
    assert decoded["v"].to_pylist() == [expected, 0]
    assert decoded["s"][0].as_py() == {"v": expected}
    assert decoded["l"][0].as_py() == (None if expected is None else [expected])
    assert (reason is None) == (expected is not None)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_file_with_decimals_of_many_digits_is_read(tmp_path: Path, format: str) -> None:
    texts = ["1.005", "1", f"0.{'1' * 40}", "1e-50", '"1,000.5"']
    lines = texts if format == "csv" else [f'{{"v": {text}}}' for text in texts]
    file = tmp_path / "a"
    file.write_text("\n".join(lines))
    rows = file_reader(format, pa.schema({"v": pa.decimal128(38, 2)}), {}, "UTC")(file)
    assert list(map(str, rows["v"].to_pylist())) == ["1.01", "1.00", "0.11", "0.00", "1000.50"]


@pytest.mark.parametrize("header", [True, False])
def test_lines_end_at_cr_lf_or_both(tmp_path: Path, header: bool) -> None:
    (tmp_path / "a").write_bytes((b"k,n\r" if header else b"") + b"a,1\rb,2\r\n\r\nc,3\n")
    schema = pa.schema({"k": pa.string(), "n": pa.int64()})
    rows = file_reader("csv", schema, {"header": str(header)}, "UTC")(tmp_path / "a")
    assert rows.to_pydict() == {"k": ["a", "b", "c"], "n": [1, 2, 3]}


ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Sydney",
    "Europe/Istanbul",
    "Africa/Casablanca",
    "+01:00",
]
TIMES = [
    "2037-07-01 12:00:00", "2038-07-01 12:00:00", "2050-07-01 12:00:00", "2050-01-01 12:00:00",
    "2050-03-27 02:30:00", "2050-03-13 02:30:00", "2050-10-30 02:30:00", "2050-11-06 01:30:00",
    "2050-10-02 02:30:00", "2087-06-01 00:00:00", "9999-07-01 12:00:00", "2026-03-29 02:30:00",
]  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
def test_times_without_a_zone_are_read_in_any_year(zone: str) -> None:
    found = parse_texts(pa.chunked_array([TIMES]), pa.timestamp("us", "UTC"), zone).to_pylist()
    known = datetime.fromisoformat(f"2026-01-01T00:00:00{zone}").tzinfo if zone[0] == "+" else ZoneInfo(zone)
    # Python takes the offset before the change for a time that the clocks skip or repeat, as Spark does.
    assert found == [datetime.fromisoformat(time).replace(tzinfo=known).astimezone(UTC) for time in TIMES]


def test_years_beyond_those_of_python_have_summer_time() -> None:
    times = pa.chunked_array([["52050-07-01 12:00:00", "52050-07-01 12:00:00Z"]])
    berlin, utc = parse_texts(times, pa.timestamp("us", "UTC"), "Europe/Berlin").cast(pa.int64()).to_pylist()
    assert utc - berlin == 2 * 3_600_000_000


def test_all_forms_of_a_time_without_a_zone_are_read_in_the_session_s() -> None:
    forms = [
        "2026",
        "2026-7",
        " 2026-7-1 ",
        "2026-07-01T9",
        "2026-07-01 9:30",
        "2026-07-01 09:30:01.123456789",
    ]
    found = parse_texts(pa.chunked_array([forms]), pa.timestamp("us", "UTC"), "Asia/Kolkata").to_pylist()
    expected = [(1, 1), (7, 1), (7, 1), (7, 1, 9), (7, 1, 9, 30), (7, 1, 9, 30, 1, 123456)]
    zone = ZoneInfo("Asia/Kolkata")
    assert found == [datetime(2026, *some, tzinfo=zone) for some in expected]  # type: ignore[misc, arg-type]
