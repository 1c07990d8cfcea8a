"""Operators in flows of `spark-pipelines run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING
from tests.documents import ROOT, blocks
from tests.spark.connect_server import lacks_client

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacks_client(), reason='needs pip install "penstock[connect]"'),
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="declarative pipelines came with Spark 4.1"),
]

PIPELINE = """
name: quotes
storage: file://{place}/storage
libraries:
  - glob:
      include: flows/**
configuration:
  spark.sql.shuffle.partitions: "2"
  spark.sql.execution.arrow.maxBytesPerBatch: "2147483647"
"""
QUOTES = [("a", 1, 1.0), ("a", 3, 3.0), ("b", 1, 5.0), ("a", 2, 2.0)]
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

import penstock

QUOTES = "symbol string, ts bigint, price double"
DOUBLED = "symbol string, ts bigint, doubled double"
GIVEN = {{"time": "ts", "state_location": "{place}/state"}}
KEYED = GIVEN | {{"key": "symbol"}}

spark = SparkSession.active()
penstock.register(spark)


def quotes():
    return spark.readStream.schema(QUOTES).json("{place}/quotes")


@dp.table
def newest():
    return penstock.update_queue(quotes(), schema=QUOTES, **KEYED)


@dp.table
def preferred():
    worse = quotes().selectExpr("symbol", "ts", "-price AS price")
    return penstock.update_union({{"sure": quotes(), "fast": worse}}, prefer="sure", schema=QUOTES, **KEYED)


@dp.table
def joined():
    doubled = quotes().selectExpr("symbol", "ts", "price * 2 AS doubled")
    sides = {{"left": QUOTES, "right": DOUBLED}}
    return penstock.update_join(quotes(), doubled, within="0 s", unit="s", schema=sides, **KEYED)


@dp.table
def summed():
    aggs = {{"total": "sum(price)", "n": "count(*)"}}
    return penstock.update_window(quotes(), size="2 rows", unit="s", aggs=aggs, schema=QUOTES, **KEYED)


@dp.table
def remembered():
    database = penstock.database("last")
    database.table("last", "symbol string, price double", key="symbol", partition_by="symbol")

    @database.procedure(event="symbol string, price double", returns="before double")
    def remember(e, last):
        row = last.get(e.symbol)
        if row is None:
            last.insert(symbol=e.symbol, price=e.price)
            return None
        before = row.price
        row.price = e.price
        return before

    return penstock.transactions(quotes(), remember, keep=["symbol", "price"], schema=QUOTES, **GIVEN)
"""
PAGE = ROOT / "docs" / "reference" / "spark-versions.md"


def run(place: Path) -> None:
    command: list[Path | str] = [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run"]
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "512m", DAEMON_SETTING: DAEMON}
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    # In its tests, Spark gives the server any free port.
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def run_flows(place: Path, program: str) -> None:
    """Run the flows of a program over `QUOTES`."""
    for name in ("flows", "quotes"):
        (place / name).mkdir()
    (place / "spark-pipeline.yml").write_text(PIPELINE.format(place=place))
    (place / "flows" / "flows.py").write_text(program)
    lines = [f'{{"symbol": "{symbol}", "ts": {ts}, "price": {price}}}' for symbol, ts, price in QUOTES]
    (place / "quotes" / "1.json").write_text("\n".join(lines))
    run(place)


def rows_of(place: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table that a flow wrote, in order."""
    rows = pq.read_table(place / "spark-warehouse" / table).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in rows), key=lambda row: (row[0], row[-1]))


@pytest.mark.long
def test_a_flow_with_a_queue_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    (program,) = (block.text for block in blocks(PAGE) if block.file == "newest.py")
    run_flows(tmp_path, program.replace("/data", str(tmp_path)))
    assert rows_of(tmp_path, "newest", "symbol", "ts", "price") == [("a", 3, 3.0), ("b", 1, 5.0)]


@pytest.mark.long
def test_flows_with_every_operator_run_to_their_ends_beside_each_other(tmp_path: Path) -> None:
    run_flows(tmp_path, FLOWS.format(place=tmp_path))
    newest = [("a", 3, 3.0), ("b", 1, 5.0)]
    assert rows_of(tmp_path, "newest", "symbol", "ts", "price") == newest
    assert rows_of(tmp_path, "preferred", "symbol", "ts", "price") == newest
    joined = rows_of(tmp_path, "joined", "symbol", "price", "doubled")
    assert joined == [("a", 3.0, 6.0), ("b", 5.0, 10.0)]
    assert rows_of(tmp_path, "summed", "symbol", "total", "n") == [("a", 3.0, 2)]
    remembered = rows_of(tmp_path, "remembered", "symbol", "before", "price")
    assert remembered == [("a", None, 1.0), ("a", 1.0, 2.0), ("a", 2.0, 3.0), ("b", None, 5.0)]
