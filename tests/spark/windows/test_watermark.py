"""A window closes when the newest tuple is a delay past its end, wherever its fragments are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.checkpointing.p_stream import PStreamReader
from penstock.dataflow import Graph
from penstock.dataflow.nodes import PushedScan, topological
from penstock.spark_ext.border.types import spark_schema
from tests.long_tests import long_but
from tests.oracles.table3 import starting
from tests.spark.queries import PATIENCE_S, Input

pytestmark = pytest.mark.spark

TIMES = {"stamp": pa.timestamp("us", "UTC"), "millis": pa.int64(), "seconds": pa.int64()}
UNITS = {"stamp": None, "millis": "ms", "seconds": "s"}
NAMES = pa.table({"k": ["a", "b", "c"], "name": ["x", "y", "y"]})
SIZE_S = 60


def tuples(time: str, first: int, last: int) -> pa.Table:
    """Return a tuple of each key in each second."""
    a_second = {"stamp": 1_000_000, "millis": 1_000, "seconds": 1}[time]
    seconds = [second for second in range(first, last + 1) for _ in range(3)]
    return pa.table(
        {
            "t": pa.array([second * a_second for second in seconds], pa.int64()).cast(TIMES[time]),
            "k": ["a", "b", "c"] * (len(seconds) // 3),
        }
    )


def windows(time: str, delay: str, lookup: str | None) -> Graph:
    made = penstock.graph("watermark").source("in", tuples(time, 0, 0).schema)
    if lookup is not None:
        made = made.lookup("names", NAMES.schema, on="k")
    unit: Any = {} if UNITS[time] is None else {"unit": UNITS[time]}
    made = made.window("t", size=f"{SIZE_S} s", watermark_delay=delay, **unit)
    return made.group_by("k" if lookup is None else "name").agg(n="count(*)").sink("noop")


def ends(place: Path) -> list[int]:
    """Return the ends of the emitted windows, in seconds."""
    rows = starting(PStreamReader(place).read())
    return sorted({row["start"] // 1_000_000 + SIZE_S for row in rows})


# The last second of each run, and up to where windows are closed by it.
RUNS = [(120, 60), (121, 120), (298, 240), (300, 240), (301, 300)]


@pytest.mark.parametrize(
    ("time", "persist", "lookup"),
    long_but(
        [
            ("stamp", "always", None),
            ("millis", "never", None),
            ("seconds", "always", None),
            ("stamp", "always", "small"),
            ("stamp", "always", "by Spark"),
            ("stamp", "update_window", None),
        ],
        ("millis", "never", None),
        ("stamp", "update_window", None),
    ),
)
def test_a_delay_is_no_longer_than_it_says(
    spark: SparkSession, tmp_path: Path, time: str, persist: Any, lookup: str | None
) -> None:
    source, out = Input(tmp_path / "files"), tmp_path / "out"
    names = spark.createDataFrame(NAMES.to_pandas())
    if lookup == "by Spark":
        names = names.selectExpr("k", "concat(name, repeat('', cast(rand() AS int))) AS name")

    def sink(frame: DataFrame) -> Any:
        return frame.writeStream.format("pstream").option("path", str(out))

    before = -1
    for last, closed in RUNS:
        source.add(tuples(time, before + 1, last))
        before = last
        frame = source.frame(spark, spark_schema(tuples(time, 0, 0).schema))
        if persist == "update_window":
            state = tmp_path / "state"
            made = penstock.update_window(
                frame.withWatermark("t", "1 second"), key="k", time="t", size="60 s", mode="append",
                aggs={"n": "count(*)"}, state_location=state,
            )  # fmt: skip
            writer = sink(made).option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(PATIENCE_S)
        else:
            graph = windows(time, "1 s", lookup)
            plan = graph.plan(persist=persist)
            fused = [node for node in topological(plan.root) if isinstance(node, PushedScan)]
            assert bool(fused) == (persist == "always")
            with penstock.start(
                graph,
                spark,
                tmp_path / "checkpoint",
                sources={"in": frame},
                tables={} if lookup is None else {"names": names},
                sink=sink,
                persist=persist,
                available_now=True,
            ) as running:
                assert running.await_termination(PATIENCE_S), running.status()
        assert ends(out) == list(range(SIZE_S, closed + 1, SIZE_S)), f"after {last} s"
