"""Windows that are combined in their buckets before they cross to Spark equal DuckDB's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from benchmarks.streams import bids
from penstock.dataflow import Graph
from penstock.spark_ext.border.types import spark_schema
from tests.long_tests import long_but
from tests.oracles.table3 import Windows, cut, found, rows_of, same, slowly
from tests.spark.queries import PATIENCE_S, Input

pytestmark = pytest.mark.spark

TIME = "date_time"


def stream() -> pa.Table:
    """Return bids, of which some have no price."""
    table = slowly(bids(4_000, seed=9), TIME, 40).select([TIME, "auction", "bidder", "price"])
    there = pc.not_equal(pc.bit_wise_and(table["bidder"], 3), 0)
    price = pc.if_else(there, table["price"].cast(pa.float64()), pa.scalar(None, pa.float64()))
    auction = pc.bit_wise_and(table["auction"], 31)
    return table.set_column(3, "price", price).set_column(1, "auction", auction)


def windows() -> Graph:
    """Return windows of auctions."""
    made = penstock.graph("by window").source("nexmark", stream().schema)
    return made.window(TIME, size="6 s", slide="2 s").group_by("auction", half="auction % 2")


MADE = Windows(f"epoch_us({TIME})", 6, 2, "FROM nexmark").sql(
    """SELECT start, auction, auction % 2 AS half, count(*) AS bids, max(price) AS dearest,
    avg(price) AS mean, count(price) AS priced FROM closed GROUP BY ALL"""
)
LAST = "start + 4000000 AS start"
"""The start of a joined window, which is the last slide of the windows that are joined."""


def folded() -> Graph:
    made = windows().agg(bids="count(*)", dearest="max(price)", mean="avg(price)", priced="count(price)")
    made = made.where("bids > 2").select("window", "dearest", "priced", "mean", third="auction % 3")
    return (
        made.where("third < 2")
        .group_by("window", "third")
        .agg(
            auctions="count(*)",
            priced="count(dearest)",
            all_priced="sum(priced)",
            low="min(mean)",
            dearest="max(dearest)",
            mean="avg(mean)",
            spread="stddev(mean)",
        )
    )


FOLDED = """SELECT start, auction % 3 AS third, count(*) AS auctions, count(dearest) AS priced,
    sum(priced) AS all_priced, min(mean) AS low, max(dearest) AS dearest, avg(mean) AS mean,
    stddev(mean) AS spread FROM made WHERE bids > 2 AND auction % 3 < 2 GROUP BY ALL"""


def over_all() -> Graph:
    return windows().agg(bids="count(*)").group_by("window").agg(bids="sum(bids)", auctions="count(*)")


OVER_ALL = "SELECT start, sum(bids) AS bids, count(*) AS auctions FROM made GROUP BY ALL"


def by_spark() -> Graph:
    """Spark evaluates an expression that only Spark knows, and all later steps."""
    made = windows().agg(bids="count(*)").select("window", "bids", word="repeat('x', auction % 2)")
    return made.group_by("window", "word").agg(bids="sum(bids)")


BY_SPARK = "SELECT start, repeat('x', half) AS word, sum(bids) AS bids FROM made GROUP BY ALL"


def of_sets() -> Graph:
    return windows().agg(bids="count(*)").group_by("window").agg(sizes="count(DISTINCT bids)")


OF_SETS = "SELECT start, count(DISTINCT bids) AS sizes FROM made GROUP BY ALL"


def dearest() -> Graph:
    """The auctions with the highest bids of each half; some have no bid with a price."""
    made = windows().agg(dearest="max(price)", bids="count(*)")
    most = made.group_by("window", "half").agg(top="max(dearest)")
    return made.join_windows(most, on="half", condition="top <= dearest AND bids > 1")


DEAREST = f"""SELECT {LAST}, auction, half, dearest, bids,
    max(dearest) OVER (PARTITION BY made.start, half) AS top
    FROM made QUALIFY dearest = top AND bids > 1"""


def fewest() -> Graph:
    made = windows().agg(bids="count(*)")
    return made.join_windows(made.group_by("window").agg(few="min(bids)"), condition="few = bids")


MIN_BIDS = f"""SELECT {LAST}, auction, half, bids, min(bids) OVER (PARTITION BY made.start) AS few
    FROM made QUALIFY bids = few"""


def plan_of(frame: DataFrame) -> str:
    """Return Spark's plan."""
    return str(frame._jdf.queryExecution().logical().toString())


CASES: dict[str, tuple[Any, str, str]] = {
    "folded": (folded, FOLDED, "_Merge"),
    "over all": (over_all, OVER_ALL, "_Merge"),
    "by Spark": (by_spark, BY_SPARK, "PartitionAccumulator"),
    "of sets": (of_sets, OF_SETS, "PartitionAccumulator"),
    "dearest": (dearest, DEAREST, "_Match"),
    "fewest": (fewest, MIN_BIDS, "_Match"),
}


@pytest.mark.parametrize("persist", long_but(["always", "never"], "always"))
@pytest.mark.parametrize("case", long_but(CASES, "folded"))
def test_windows_by_window_are_those_that_duckdb_has(
    spark: SparkSession, tmp_path: Path, case: str, persist: Any
) -> None:
    made, sql, function = CASES[case]
    draw, table = random.Random(f"{case} {persist}"), stream()
    source = Input(tmp_path / "files")
    plans: list[str] = []

    def sink(frame: DataFrame) -> Any:
        plans.append(plan_of(frame))
        return frame.writeStream.format("pstream").option("path", str(tmp_path / "out"))

    # Stopped in between, and started again over the same checkpoint.
    at = draw.randrange(1_000, 3_000)
    for part in (table.slice(0, at), table.slice(at)):
        source.add(*cut(part, draw, 2))
        running = penstock.start(
            made().sink("noop"),
            spark,
            tmp_path / "checkpoint",
            sources={"nexmark": source.frame(spark, spark_schema(table.schema))},
            sink=sink,
            persist=persist,
            available_now=True,
        )
        with running:
            assert running.await_termination(PATIENCE_S), running.status()
    assert all(f"MapInArrow {function}(" in plan for plan in plans)
    wanted = rows_of(f"WITH made AS ({MADE}) {sql}", {"nexmark": table})
    assert len(wanted) > 10
    same(found(tmp_path / "out"), wanted)


@pytest.mark.parametrize("persist", long_but(["always", "never"], "always"))
@pytest.mark.parametrize("case", long_but(["over all", "fewest"], "fewest"))
def test_few_rows_leave_the_operator(spark: SparkSession, tmp_path: Path, case: str, persist: Any) -> None:
    table, source = stream(), Input(tmp_path / "files")
    source.add(table)
    running = penstock.start(
        CASES[case][0]().sink("noop"),
        spark,
        tmp_path / "checkpoint",
        sources={"nexmark": source.frame(spark, spark_schema(table.schema))},
        persist=persist,
        available_now=True,
    )
    with running:
        assert running.await_termination(PATIENCE_S), running.status()
        metrics = penstock.metrics(list(running.queries.values())[-1])
    emitted, left = (sum(one[name] for one in metrics) for name in ("emitted", "rows_out"))
    wanted = len(rows_of(f"WITH made AS ({MADE}) {CASES[case][1]}", {"nexmark": table}))
    assert wanted <= left <= 3 * wanted, "of each bucket what it has folded, or its least"
    assert emitted > 5 * left, "windows are counted as they close"
