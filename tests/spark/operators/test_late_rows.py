"""Rows that operators drop are in the p-stream of `late_to`, each once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.checkpointing.p_stream import PStream, PStreamReader
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.operators.update_stream.options import parse_ms
from penstock.spark_ext.api.metrics import metrics
from penstock.spark_ext.kafka.decode import decode_kafka
from tests.long_tests import long_but
from tests.oracles.naive_windows import Event, Sessions
from tests.spark.queries import PATIENCE_S, Place, files_of_batches

pytestmark = pytest.mark.spark

SCHEMA = "t timestamp, k string, v double, more struct<a:long,b:array<string>>"
ZERO_US = 1_700_000_000_000_000
Late = Counter[str]


def readings(seed: int, rows: int, pieces: int) -> list[pa.Table]:
    """Return out-of-order readings, cut into files; some have no time, group or value."""
    rng = np.random.default_rng(seed)
    # Many times are equal, also to a watermark.
    seconds = np.round(4 * (np.sort(rng.uniform(0, 100, rows)) - rng.exponential(8, rows))) / 4
    table = pa.table(
        {
            "t": pa.array(
                (seconds * 1e6).astype(np.int64) + ZERO_US,
                pa.timestamp("us", "UTC"),
                mask=rng.random(rows) < 0.05,
            ),
            "k": pa.array(rng.choice(["a", "b", "c"], rows), mask=rng.random(rows) < 0.1),
            "v": pa.array(rng.random(rows), mask=rng.random(rows) < 0.1),
            "more": pa.array([{"a": n, "b": [str(n), None]} for n in range(rows)]),
        }
    )
    cuts = [0, *np.sort(rng.integers(0, rows, pieces - 1)).tolist(), rows]
    return [table.slice(a, b - a) for a, b in pairwise(cuts)]


def of_time(files: list[pa.Table], size: str, slide: str, delay: str, *, append: bool) -> Late:
    """Return the rows that a loop over all of them finds late, with the watermark that they missed.

    Parameters
    ----------
    files : list of pyarrow.Table
        The micro-batches.
    append : bool
        Whether open windows include rows behind the watermark: in append mode, without deletes.
    """
    size_us, slide_us, delay_us = (1000 * parse_ms("", text, least=0) for text in (size, slide, delay))
    pane_us = int(np.gcd(size_us, slide_us))
    newest: int | None = None
    late: Late = Counter()
    for file in files:
        times = file["t"].cast(pa.int64()).to_pylist()
        passed = None if newest is None else (newest - delay_us) // pane_us * pane_us
        for row, time in zip(file.to_pylist(), times, strict=True):
            if time is None:
                late[repr((row, "the time is null", None))] += 1
            elif passed is not None:
                last_window = time // slide_us * slide_us + size_us
                if (last_window <= passed) if append else (time // pane_us * pane_us < passed):
                    late[repr((row, "late", passed))] += 1
        known = [time for time in times if time is not None]
        if known:
            newest = max([*known] + ([] if newest is None else [newest]))
    return late


def of_rows(files: list[pa.Table], delay: str) -> Late:
    """Return the rows that are late for windows of rows."""
    newest: int | None = None
    late: Late = Counter()
    for file in files:
        times = file["t"].cast(pa.int64()).to_pylist()
        passed = None if newest is None else newest - 1000 * parse_ms("", delay, least=0)
        for row, time in zip(file.to_pylist(), times, strict=True):
            if time is None:
                late[repr((row, "the time is null", None))] += 1
            elif passed is not None and time < passed:
                late[repr((row, "late", passed))] += 1
        known = [time for time in times if time is not None]
        if known:
            newest = max([*known] + ([] if newest is None else [newest]))
    return late


def of_sessions(files: list[pa.Table], gap: str, delay: str) -> Late:
    """Return the rows that are in no open session."""
    gap_us, delay_us = (1000 * parse_ms("", text, least=0) for text in (gap, delay))
    oracle, late = Sessions(gap_us, delay_us), Counter[str]()
    for file in files:
        times, rows = file["t"].cast(pa.int64()).to_pylist(), file.to_pylist()
        late.update(repr((row, "the time is null", None)) for row in rows if row["t"] is None)
        events = [
            Event(row["k"], time, place)
            for place, (row, time) in enumerate(zip(rows, times, strict=True))
            if time is not None
        ]
        passed = oracle.watermark
        oracle.batch(events)
        late.update(repr((rows[int(event.value or 0)], "late", passed)) for event in oracle.dropped)
    return late


def found(stream: Path) -> Late:
    """Return the rows of a p-stream of late rows."""
    table = PStreamReader(stream).read()
    missed = table["watermark"].cast(pa.int64()).to_pylist()
    rows = table.select(["t", "k", "v", "more"]).to_pylist()
    reasons = table["reason"].to_pylist()
    return Counter(map(repr, zip(rows, reasons, missed, strict=True)))


@pytest.mark.parametrize(
    ("mode", "size", "slide", "delay"),
    long_but(
        [
            ("append", "10 s", "4 s", "3 s"),
            ("lazy", "10 s", "4 s", "3 s"),
            ("append", "5 rows", "2 rows", "3 s"),
            ("append", "2 s gap", "", "3 s"),
        ],
        ("lazy", "10 s", "4 s", "3 s"),
    ),
)
def test_late_rows_of_windows_are_those_of_a_loop_and_replays_add_none(
    spark: SparkSession, tmp_path: Path, mode: str, size: str, slide: str, delay: str
) -> None:
    files = readings(5, 600, 6)
    place, late = Place(tmp_path), tmp_path / "late"
    options: dict[str, Any] = {
        "key": "k", "time": "t", "mode": mode, "watermark_delay": delay,
        "aggs": {"total": "sum(v)"}, "nulls": "drop", "state_location": place.state,
    }  # fmt: skip
    gap = size.removesuffix(" gap") if "gap" in size else None
    options |= {"size": size, "slide": slide} if gap is None else {"session": gap}

    def run(**more: Any) -> list[dict[str, Any]]:
        frame = place.input.frame(spark, SCHEMA)
        return metrics(place.run(penstock.update_window(frame, **options, **more)))

    place.input.add(*files[:4])
    counted = run(late_to=late)
    place.forget(3)
    place.input.add(*files[4:])
    counted = [one for one in counted if one["batch_id"] < 3] + run(late_to=late)
    if gap is not None:
        wanted = of_sessions(files, gap, delay)
    elif "rows" in size:
        wanted = of_rows(files, delay)
    else:
        wanted = of_time(files, size, slide, delay, append=mode == "append")
    assert found(late) == wanted
    assert sum(one["late"] + one["dropped"] for one in counted) == wanted.total() > 40
    assert PStreamReader(late).read().num_rows == wanted.total()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "lazy"])
def test_late_rows_of_windows_with_deletes_in_a_graph_are_those_of_a_loop(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    place, late = Place(tmp_path), tmp_path / "late"
    files = [file.filter(pc.is_valid(file["t"])) for file in readings(6, 2000, 5)]
    graph = (
        penstock.graph("g")
        .source("readings", parse_schema(SCHEMA))
        .window(
            "t", size="10 s", slide="4 s", watermark_delay="3 s", mode=mode, delete_when="v < 0.2",
            late_to=late,
        )
        .group_by("k")
        .agg(total="sum(v)")
        .sink("pstream")
    )  # fmt: skip
    for half in (files[:2], files[2:]):
        place.input.add(*half)
        running = penstock.start(
            graph, spark, place.checkpoint, sources={"readings": place.input.frame(spark, SCHEMA)},
            sink=lambda rows: rows.writeStream.format("pstream").option("path", str(tmp_path / "out")),
            available_now=True,
        )  # fmt: skip
        with running:
            assert running.await_termination(PATIENCE_S), running.status()
    batches = files_of_batches(place.checkpoint, {"readings": [file.num_rows for file in files]})
    read = [pa.concat_tables(files[batch["readings"]]) for batch in batches]
    # A delete removes single rows, so even in append mode a row is late when its pane is complete.
    wanted = of_time(read, "10 s", "4 s", "3 s", append=False)
    assert found(late) == wanted
    assert wanted.total() > 40
    dropped = PStreamReader(late).read().to_pylist()
    assert {row["deleted"] for row in dropped} == {True, False}
    assert all(row["deleted"] == (row["v"] is not None and row["v"] < 0.2) for row in dropped)


def test_wrong_places_for_late_rows_are_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(*readings(1, 10, 2))
    frame = place.input.frame(spark, SCHEMA)
    options: dict[str, Any] = {
        "key": "k", "time": "t", "size": "1 s", "aggs": {"n": "count(*)"}, "state_location": place.state,
    }  # fmt: skip
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="file"):
        penstock.update_window(frame, **options, late_to=tmp_path / "file" / "late")
    with pytest.raises(InvalidUsageError, match="state location"):
        penstock.update_window(frame, **options, late_to=place.state)
    with pytest.raises(InvalidUsageError, match="name of a column that late rows get"):
        penstock.update_window(frame.withColumn("Reason", sf.lit(1)), **options, late_to=tmp_path / "late")
    penstock.update_window(frame, **options, late_to=tmp_path / "late")
    with pytest.raises(InvalidUsageError, match=r"late_to=\S+/late missing=more .*p-stream for late_to\.$"):
        penstock.update_window(frame.drop("more"), **options, late_to=tmp_path / "late")


def test_rejected_records_are_written_once_however_often_a_batch_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, rejected = Place(tmp_path), tmp_path / "rejected"
    rng = np.random.default_rng(9)
    good = rng.random(3000) < 0.9
    texts = [f'{{"k": "a", "t": {n}}}' if one else f"bad {n}" for n, one in enumerate(good)]
    bad = [text.encode() for text in texts if text.startswith("bad")]
    files = [texts[n : n + 500] for n in range(0, 3000, 500)]

    def run(number: int) -> list[dict[str, Any]]:
        place.input.add(*(pa.table({"value": file}) for file in files[number : number + 3]))
        frame = place.input.frame(spark, "value string")
        rows = decode_kafka(
            frame, "k STRING, t BIGINT", keep=(), on_error="skip", name="texts", reject_to=rejected
        )
        # The result needs only one column, and a filter that Spark would move down.
        place.run(rows.where("t % 2 = 0").select("t"))
        return PStreamReader(rejected).read().to_pylist()

    run(0)
    place.forget(2)
    found = run(3)
    assert Counter(row["value"] for row in found) == Counter(bad)
    assert {row["reason"] for row in found} == {"the record is not JSON"}
    emitted = [row["t"] for table in place.batches().values() for row in table.to_pylist()]
    assert sorted(emitted) == [n for n, one in enumerate(good) if one and n % 2 == 0]
    PStream(tmp_path / "other", pa.schema({"k": pa.string()}))
    with pytest.raises(InvalidUsageError, match=r"reject_to=\S+/other missing=k .* for reject_to\.$"):
        decode_kafka(
            place.input.frame(spark, "value string"),
            "k STRING",
            on_error="skip",
            keep=(),
            reject_to=tmp_path / "other",
        )
    with pytest.raises(InvalidUsageError, match="records that fail the query"):
        decode_kafka(
            place.input.frame(spark, "value string"), "k STRING", on_error="fail", keep=(), reject_to=rejected
        )
