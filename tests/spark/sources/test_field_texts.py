"""The local engine reads the same values from CSV and JSON as Spark, and finds the same bad records."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.ddl import parse_schema
from penstock.local_engine.records.bad_records import BadRecords
from penstock.local_engine.records.files import RecordFilesInput
from penstock.local_engine.records.whole_files import file_reader
from penstock.spark_ext.border.types import spark_schema

ZONE = "America/New_York"
RANDOM = random.Random(7)
WHOLE = "|".join(str(RANDOM.randrange(10 ** (digits - 1), 10**digits)) for digits in range(10, 40))
TEXTS = {
    "decimal(10,2)": (
        "7.129|7.125|-7.125|1e2|1.5E-3|123456789.5|99999999.995|+5|.5|5.|0x1|1_0|NaN|5d|1e400|"
        "true|-|12345678901234567890123456789012345678901| 5.5|5.5 |1,000.5|1,,0|,|3486755212|1e60"
    ),
    "decimal(38,18)": ("7.1234567890123456789|12345678901234567890.5|123456789012345678901.5|1e19"),
    "decimal(38,10)": "12345678901234567890123456789012345678|1.5|1e27|1e28",
    "decimal(38,2)": f"1.005|1|1e-50|0.{'1' * 40}|{'9' * 36}.994|{'9' * 36}.995|{WHOLE}",
    "decimal(38,0)": f"{'9' * 38}.4|{'9' * 38}.5|1",
    "decimal(9,0)": f"1.5|-2.5|999999999.4|999999999.5|{WHOLE}",
    "decimal(18,6)": f"0.0000005|-0.0000015|1e11|1e12|{WHOLE}",
    "int": ("5|+5|05|-0|0x10|1.0|1e2|2147483648|-2147483648|true|1_0| 5|5 |"),
    "bigint": ("9223372036854775807|9223372036854775808|+5|0x10| 7"),
    "double": (
        "1.5|1e400|-1e400|1d|1.5f|nan|NaN|inf|Inf|-Inf|+INF|INF|Infinity|-Infinity|infinity|"
        "0x1p3|0x10|1_0|1.|+.5|5e-324|true|9007199254740993| 1.5|1.5 "
    ),
    "boolean": ("true|false|TRUE|tRuE|1|0|t|yes| true|"),
    "date": (
        "2026-01-31|2026-1-3|2026-01|2026|2026-01-31T09:30:00Z|2026-02-30|31/01/2026|"
        "+12026-01-31|2026-01-31 09:30:00| 2026-01-31|0001-01-01|2026-01-31Tx|19999|-0001-01-01"
    ),
    "timestamp": (
        "2026-01-31T09:30:01Z|2026-01-31|2026-01|2026|2026-01-31T09:30:01+0100|"
        "2026-01-31T09:30:01+1|2026-01-31T09:30|2026-01-31T09:30Z|2026-01-31T09|2026-01-31T9:3:1|"
        "2026-01-31T09:30:01.5|2026-01-31T09:30:01.123456789Z|2026-01-31T09:30:01.|"
        "2026-01-31T09:30:01Europe/Berlin|2026-01-31T09:30:01UTC+02:00|2026-01-31T09:30:01z|"
        "2026-01-31T24:00:00Z|20260131|12345|-12345|12345.5|0001-01-01|123456-01-01|2026-02-30|"
        "2026-01-31T09:30:01+19:00|1769851801000|2026-01-31 09:30:01|2026-01-31T09:30:01 +01:00|"
        "2026-1-3 9:3:1| 2026-01-31T09:30:01Z|2026-01-31T09:30:01 Nowhere/City|"
        "2026-01-31T09:30:01,5Z|2026-01-31  09:30:01|2026-01-31T09:30:01PST|2026-01-31T09:30:01 IST|"
        "2026-07-31T09:30:01CST|2026-01-31T09:30:01 EST|2026-03-08 02:30:00|2026-11-01 01:30:00|"
        "2050-07-01 12:00:00|2050-03-13 02:30:00|2050-11-06 01:30:00|2038-07-01 12:00:00|"
        "2050-07-01T12:00:00Europe/Berlin|9999-07-01 12:00:00|123456-07-01"
    ),
    "timestamp_ntz": ("2026-01-31T09:30:01Z|2026-01-31|12345|2026-01-31T09:30:01.123456789"),
    "struct<d:decimal(10,2)>": ('{"d":7.129}|{"d":123456789.5}|{"d":"7"}|{}|null|5'),
    "array<decimal(10,2)>": ('[7.129,null,8]|[123456789.5]|[]|null|["x"]'),
    "struct<d:timestamp>": (
        '{"d":"2026-01-31T09:30:01.5Z"}|{"d":"2026-01-31 09:30:01"}|{"d":"2026-01-31"}|{"d":1769851801}|'
        '{"d":"x"}|{"d":null}|{"d":1.5}|{"d":"2026-11-01 01:30:00"}|{}|null|5'
    ),
    "struct<d:timestamp_ntz>": '{"d":"2026-01-31T09:30:01.5"}|{"d":"2026-01-31"}|{"d":"x"}|{}|null',
    "array<timestamp>": (
        '["2026-01-31T09:30:01Z",null,"2026-01-31"]|[1769851801]|["2026-01-31T09:30:01Z","x"]|["x"]|[]|null'
    ),
    "array<date>": '["2026-01-31",null]|["2026-01-31","x"]|["2026"]|[]|null',
    "struct<d:array<struct<t:timestamp,e:date>>>": (
        '{"d":[{"t":"2026-01-31T09:30:01Z","e":"2026-01-31"},{"t":"2026-01-31"},null]}|{"d":[]}|{"d":null}|'
        '{"d":[{"t":"x","e":"2026-01-31"}]}|{"d":[{"t":1769851801,"e":"x"}]}'
    ),
}
"""The texts of each type, separated by bars."""


def _lines(format: str, kind: str, texts: list[str]) -> list[str]:
    """Return a record for each text; in JSON also one with the text as a value, if it is JSON."""
    if format == "csv":
        return [
            f'{number},"{text}"' if "," in text else f"{number},{text}" for number, text in enumerate(texts)
        ]
    lines = [json.dumps({"n": number, "v": text}) for number, text in enumerate(texts)]
    for number, text in enumerate(texts, 1000):
        try:
            json.loads(text)
        except ValueError:
            continue
        lines.append(f'{{"n": {number}, "v": {text.strip()}}}')
    return lines


def _local(file: Path, format: str, schema: pa.Schema, log: Path) -> dict[int, tuple[Any, bool]]:
    source = RecordFilesInput(
        str(file), spark_schema(schema), log, format, {}, ZONE, BadRecords("source", "keep")
    )
    end = source.find_end(None)
    assert end is not None
    found: dict[int, tuple[Any, bool]] = {}
    for records in source.read_records(None, end):
        values = _shown(records.rows["v"])
        for row, (number, value) in enumerate(zip(records.rows["n"].to_pylist(), values, strict=True)):
            found[number] = (value, row in records.bad)
    return found


def _shown(values: pa.ChunkedArray[Any]) -> list[Any]:
    return values.cast(_as_numbers(values.type)).to_pylist()


def _as_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.int32() if pa.types.is_date(kind) else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_numbers(field.type)) for field in kind])
    return pa.list_(_as_numbers(kind.value_type)) if pa.types.is_list(kind) else kind


@pytest.mark.spark
@pytest.mark.parametrize("format", ["csv", "json"])
def test_fields_have_the_values_that_spark_reads(spark: SparkSession, tmp_path: Path, format: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    try:
        for number, (kind, listed) in enumerate(TEXTS.items()):
            texts = listed.split("|")
            if format == "csv" and "<" in kind:
                continue
            file = tmp_path / f"{number}.{format}"
            file.write_text("\n".join(_lines(format, kind, texts)) + "\n")
            rows = (
                spark.read.format(format)
                .schema(f"n int, v {kind}, bad string")
                .option("columnNameOfCorruptRecord", "bad")
                .load(str(file))
            )
            expected = {
                row.n: (row.v, row.bad is not None)
                for row in rows.selectExpr("n", f"{_SHOWN.get(kind, 'v')} AS v", "bad").collect()
            }
            schema = pa.schema([field.with_nullable(True) for field in parse_schema(f"n int, v {kind}")])
            found = _local(file, format, schema, tmp_path / f"log{number}")
            whole = file_reader(format, schema, {}, ZONE)(file)
            values = dict(zip(whole["n"].to_pylist(), _shown(whole["v"]), strict=True))
            # As texts, because NaN does not equal itself.
            assert str(values) == str({n: value for n, (value, _) in found.items()})
            named = [f"{kind} {texts[n % 1000]!r}: {expected[n]}" for n in expected]
            got = [
                f"{kind} {texts[n % 1000]!r}: {(value['d'] if isinstance(value, dict) else value, is_bad)}"
                for n, (value, is_bad) in found.items()
            ]
            assert sorted(got) == sorted(named)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


_SHOWN = {
    "timestamp": "unix_micros(v)",
    # A session's zone does not change the difference of two times without a zone.
    "timestamp_ntz": "timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01 00:00:00', v)",
    "date": "unix_date(v)",
    "struct<d:decimal(10,2)>": "v.d",
    "struct<d:timestamp>": "unix_micros(v.d)",
    "struct<d:timestamp_ntz>": ("timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01 00:00:00', v.d)"),
    "array<timestamp>": "transform(v, x -> unix_micros(x))",
    "array<date>": "transform(v, x -> unix_date(x))",
    "struct<d:array<struct<t:timestamp,e:date>>>": (
        "transform(v.d, x -> if(x IS NULL, NULL, map('t', unix_micros(x.t), 'e', bigint(unix_date(x.e)))))"
    ),
}
