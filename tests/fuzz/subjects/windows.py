"""Random windows over random streams, through `update_window` and through Spark's own batch aggregates.

Append windows are all that have closed. Lazy ones are of each micro-batch and group the newest that has
closed, if it is newer than what was emitted; eager ones are some of all, each once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.errors import ArithmeticException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.units import parse_duration_us
from tests.fuzz.case import Case
from tests.fuzz.compare import assert_same_rows
from tests.spark.queries import PATIENCE_S, Input, settings

_SPECS = [
    ("10 seconds", "3 seconds"), ("12 seconds", "8 seconds"), ("10 seconds", "10 seconds"),
    ("7 seconds", "1 second"), ("1500 milliseconds", "500 milliseconds"), ("1 second", "300 milliseconds"),
    ("1 minute", "1 second"), ("90 minutes", "30 minutes"), ("1 hour", "25 minutes"), ("1 day", "6 hours"),
    ("7 days", "1 day"),
]  # fmt: skip
_ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/St_Johns",
]
_ORIGINS_S = {
    "the last hour of October's clock change in Berlin": 1_698_541_200,
    "the first hour of March's in New York": 1_741_503_600,
    "1970": 0,
    "before 1970": -12_345_678,
    "1883": -2_717_650_800,
    "year 1": -62_135_596_800,
    "year 0": -62_150_000_000,
    "now": 1_700_000_000,
    "2200": 7_258_118_400,
}
_HUGE = 1_700_000_000_000_000_000
"""Spark makes doubles of values before it takes their deviation, which loses the digits of those near it."""
_NS_SECONDS = 9_000_000_000
"""Nanoseconds of an int64 reach as far."""
_KEYS = {
    "text": "string", "part": "int", "day": "date", "price": "decimal(10,2)", "flag": "boolean",
    "level": "double", "moment": "timestamp", "bytes": "binary", "big": "decimal(38,4)",
}  # fmt: skip
_VALUES = {
    "v": "double", "f": "float", "tiny": "tinyint", "small": "smallint", "i": "int", "n": "bigint",
    "d": "date",
}  # fmt: skip
_AGGS = [
    "count(*)", "count({x})", "sum({x})", "avg({x})", "mean({x})", "min({x})", "max({x})", "stddev({x})",
    "max({x}) - min({x})", "sum({x}) / count(*)", "avg({x}) FILTER (WHERE tiny > 0)", "count(DISTINCT {x})",
    "sum(CASE WHEN v > 0 THEN {x} ELSE 0 END)", "sum(CASE WHEN {x} > 3 THEN 1 ELSE 0 END)",
    "count(*) FILTER (WHERE {x} IS NOT NULL)", "coalesce(min({x}), max(tiny))", "stddev({x}) + avg(v)",
    "sum({x}) FILTER (WHERE {x} < 5)",
]  # fmt: skip
_OF_DATES = ["count(d)", "min(d)", "max(d)", "count(DISTINCT d)"]
_ENDS = ["first({x})", "last({x})"]


def check(case: Case) -> None:
    """Run one query of windows, a file a micro-batch, and compare each window that has closed."""
    draw, spark = case.random, case.spark
    size, slide = draw.choice(_SPECS)
    kind = draw.choice(["timestamp", "timestamp", "timestamp_ntz", "date", "s", "ms", "us", "ns"])
    if kind in ("date", "s") and parse_duration_us(slide) % 1_000_000:
        size, slide = "10 seconds", "3 seconds"
    if kind == "date":
        size, slide = draw.choice([("1 day", "1 day"), ("7 days", "1 day"), ("3 days", "2 days")])
    delay_us = draw.choice([0, 1, 15, 40]) * draw.choice([1_000_000, parse_duration_us(slide) // 4])
    delay_us -= delay_us % 1000
    keys = draw.sample(list(_KEYS), draw.randint(0, 2))
    schema = ", ".join(
        f"{name} {of}"
        for name, of in [
            ("t", kind if kind in ("timestamp", "timestamp_ntz", "date") else "bigint"),
            *((name, _KEYS[name]) for name in keys),
            *_VALUES.items(),
        ]
    )
    times = _times(draw, kind, size, slide, delay_us)
    unique = len(set(times)) == len(times)
    huge = draw.random() < 0.3
    aggs = _aggregates(draw, ends=unique)
    rows = _rows(draw, kind, times, keys, huge=huge)
    zone, mode = draw.choice(_ZONES), draw.choice(["append", "append", "lazy", "eager"])
    told = f"{mode}, {size} by {slide}, {kind}, {zone}, delay {delay_us} us, keys {keys}, {aggs}"
    with settings(spark, spark__sql__session__timeZone=zone, spark__sql__ansi__enabled="true"):
        cuts = sorted(draw.sample(range(1, len(rows)), min(draw.randint(0, 2), len(rows) - 1)))
        place = Input(case.directory / "input")
        place.add(*(rows.slice(a, b - a) for a, b in pairwise([0, *cuts, len(rows)])))
        unit: Any = kind if kind in ("s", "ms", "us", "ns") else None
        windows = penstock.update_window(
            place.frame(spark, schema), key=keys, time="t", size=size, slide=slide, aggs=aggs, mode=mode,
            watermark_delay=f"{delay_us // 1000} ms", unit=unit, buckets=draw.randint(1, 3),
            state_location=case.directory / "state", nulls="drop",
        )  # fmt: skip
        whole = spark.read.schema(schema).parquet(str(place.directory))

        def closed(batch: DataFrame) -> DataFrame:
            return _of_spark(batch, kind, size, slide, keys, aggs, delay_us, huge=huge)

        theirs = closed(whole)
        assert windows.schema.simpleString() == theirs.schema.simpleString(), told
        expected = _or_overflow(lambda: _comparable(theirs))
        found = _or_overflow(lambda: _comparable(_collected(spark, windows, f"windows_{case.seed}", case)))
        if found is None or expected is None:
            # Of lazy and eager windows, those that overflow may be none that are emitted.
            same = found is expected or (mode != "append" and expected is None)
            assert same, f"{'Spark' if expected is None else 'only ours'} overflows: {told}"
            return
        if mode != "append":
            names, known = [*keys, "window"], [found]
            if mode == "lazy":
                files = {end: Input(case.directory / f"first_{end}") for end in (*cuts, len(rows))}
                for end, file in files.items():
                    file.add(rows.slice(0, end))
                parts = (spark.read.schema(schema).parquet(str(one.directory)) for one in files.values())
                known = [_comparable(closed(part).select(*names)) for part in parts]
            expected = _most_recent(expected, known, names, every=mode == "eager")
        assert_same_rows(found, expected, told)


def _most_recent(windows: pa.Table, closed: list[pa.Table], names: list[str], *, every: bool) -> pa.Table:
    """Return the windows that are the newest of their group among some that closed, or are among them."""
    kept: set[tuple[str, ...]] = set()
    for part in closed:
        newest: dict[tuple[str, ...], Any] = {}
        for row in part.select(names).to_pylist():
            *group, start = row.values()
            key = tuple(map(repr, group))
            newest[key] = start if key not in newest else max(start, newest[key])
            if every:
                kept.add((*key, repr(start)))
        kept |= {(*key, repr(start)) for key, start in newest.items()}
    chosen = [tuple(map(repr, row.values())) in kept for row in windows.select(names).to_pylist()]
    return windows.filter(pa.array(chosen, pa.bool_()))


def _or_overflow(made: Callable[[], pa.Table]) -> pa.Table | None:
    """Return a result; None where the query ends because a number overflows."""
    try:
        return made()
    except (ArithmeticException, StreamingQueryException) as error:
        if "overflow" not in str(error).lower():
            raise
        return None


def _times(draw: random.Random, kind: str, size: str, slide: str, delay_us: int) -> list[int]:
    """Return times in microseconds, of which none is later than the delay allows."""
    origin = draw.choice(list(_ORIGINS_S.values()))
    if kind == "ns":
        origin = draw.choice([one for one in _ORIGINS_S.values() if abs(one) < _NS_SECONDS])
    step = {"s": 1_000_000, "ms": 1000, "date": 86_400_000_000}.get(kind, 1)
    span = draw.choice([2, 5]) * parse_duration_us(size) + draw.choice([0, 3]) * delay_us
    at = origin * 1_000_000 + draw.choice([0, 1, -1]) * draw.randint(0, parse_duration_us(slide))
    points = sorted(draw.randint(0, span) for _ in range(draw.choice([1, 30, 200])))
    made = [at + point - draw.randint(0, delay_us) for point in points]
    return [time // step * step for time in made]


def _rows(draw: random.Random, kind: str, times: list[int], keys: list[str], *, huge: bool) -> pa.Table:
    nulls = draw.choice([0.0, 0.2])
    low = draw.choice([60, 127])

    def column(make: Any, of: pa.DataType) -> pa.Array[Any]:
        return pa.array([None if draw.random() < nulls else make() for _ in times], of)

    special = [float("nan"), float("inf"), -float("inf")] if draw.random() < 0.3 else [-0.0]

    def floats() -> float:
        return draw.choice([draw.uniform(-10, 10), float(draw.randint(-3, 9)), *special])

    makers: dict[str, tuple[Any, pa.DataType]] = {
        "text": (lambda: draw.choice(["", "a", "A", "ä", "b"]), pa.string()),
        "part": (lambda: draw.randint(-1, 2), pa.int32()),
        "day": (lambda: draw.choice([-719_529, -719_162, -171_700, 0, 2_932_897]), pa.int32()),
        "price": (lambda: Decimal(draw.choice([0, -1, 250])).scaleb(-2), pa.decimal128(10, 2)),
        "flag": (lambda: draw.random() < 0.5, pa.bool_()),
        "level": (lambda: draw.choice([0.0, -0.0, float("nan"), 1.5]), pa.float64()),
        "moment": (lambda: draw.choice([0, -1, 10**15, -62_150_000_000_000_000]), pa.timestamp("us", "UTC")),
        "bytes": (lambda: draw.choice([b"", b"\0", b"\0\0"]), pa.binary()),
        "big": (lambda: Decimal(draw.choice([0, 10**33, -1])).scaleb(-4), pa.decimal128(38, 4)),
        "v": (floats, pa.float64()),
        "f": (lambda: draw.choice([floats(), 0.5]), pa.float32()),
        "tiny": (lambda: draw.randint(-low, low), pa.int8()),
        "small": (lambda: draw.randint(-9000, 9000), pa.int16()),
        "i": (lambda: draw.randint(-(10**9), 10**9), pa.int32()),
        "n": (lambda: _HUGE * huge + draw.randint(-(10**10), 10**10), pa.int64()),
        "d": (lambda: date(2023, 10, draw.randint(1, 31)), pa.date32()),
    }  # fmt: skip
    at: pa.Array[Any]
    if kind in ("timestamp", "timestamp_ntz"):
        at = pa.array(times, pa.timestamp("us", "UTC" if kind == "timestamp" else None))
    elif kind == "date":
        at = pa.array([time // 86_400_000_000 for time in times], pa.int32()).cast(pa.date32())
    else:
        over, by = {"s": (1_000_000, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}[kind]
        at = pa.array([time // over * by + (draw.randint(0, 999) if by > 1 else 0) for time in times])
    names = [*keys, *_VALUES]
    made = pa.table([at, *(column(*makers[name]) for name in names)], ["t", *names])
    if "day" not in keys:
        return made
    # Python has no date of year 0.
    day = made["day"].cast(pa.date32())
    return made.set_column(made.schema.get_field_index("day"), "day", day)


def _aggregates(draw: random.Random, *, ends: bool) -> dict[str, str]:
    some = draw.sample(_AGGS, draw.randint(1, 6)) + draw.sample(_OF_DATES, draw.randint(0, 2))
    if ends:
        some += draw.sample(_ENDS, draw.randint(0, 2))
    numbers = [name for name in _VALUES if name != "d"]
    made = [text.format(x=draw.choice(numbers)) for text in some]
    return {f"a{at}": text for at, text in enumerate(made)}


def _of_spark(
    batch: DataFrame,
    kind: str,
    size: str,
    slide: str,
    keys: list[str],
    aggs: dict[str, str],
    delay_us: int,
    *,
    huge: bool,
) -> DataFrame:
    """Return the windows of all rows that end `delay` before the newest one, or earlier."""
    time = {
        "s": "timestamp_seconds(t)",
        "ms": "timestamp_millis(t)",
        "us": "timestamp_micros(t)",
        "ns": "timestamp_micros(t div 1000 - CASE WHEN t % 1000 < 0 THEN 1 ELSE 0 END)",
    }.get(kind, "CAST(t AS TIMESTAMP)" if kind == "date" else "t")
    rows = batch.withColumn("__at", sf.expr(time))
    made = {name: _by_time(text) for name, text in aggs.items()}
    if huge:
        made = {name: text.replace("stddev(n)", f"stddev(n - {_HUGE})") for name, text in made.items()}
    windows = rows.groupBy(*keys, sf.window("__at", size, slide)).agg(
        *(sf.expr(text).alias(name) for name, text in made.items())
    )
    newest = rows.agg(sf.max("__at").alias("__newest"))
    closed = windows.crossJoin(newest).where(
        sf.expr(f"window.end + INTERVAL {delay_us // 1000 / 1000:.3f} SECOND <= __newest")
    )
    return closed.select(*keys, "window", *aggs)


def _by_time(text: str) -> str:
    """Return an aggregate whose first and last are by time, as Spark's are not."""
    for ours, theirs in (("first(", "min_by("), ("last(", "max_by(")):
        if text.startswith(ours):
            return f"{theirs}{text[len(ours) : -1]}, t)"
    return text


def _collected(spark: SparkSession, windows: DataFrame, name: str, case: Case) -> DataFrame:
    writer = windows.writeStream.format("memory").queryName(name).outputMode("append")
    query = writer.option("checkpointLocation", str(case.directory / "checkpoint")).trigger(
        availableNow=True
    ).start()  # fmt: skip
    try:
        assert query.awaitTermination(int(PATIENCE_S)), "the query did not end"
    finally:
        query.stop()
    return spark.table(name)


def _comparable(rows: DataFrame) -> pa.Table:
    """Return rows in types that Python can hold, whatever their year."""
    made = []
    for field in rows.schema:
        column = f"`{field.name}`"
        match field.dataType.simpleString():
            case "timestamp":
                column = f"unix_micros({column})"
            case "date":
                column = f"unix_date({column})"
            case text if text.startswith("struct<start:timestamp,"):
                column = f"unix_micros({column}.start)"
            case text if text.startswith("struct<start:timestamp_ntz"):
                column = f"CAST({column}.start AS STRING)"
            case _:
                pass
        made.append(sf.expr(column).alias(field.name))
    return rows.select(*made).toArrow()
