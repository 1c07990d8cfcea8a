"""An operator in a flow of `spark-pipelines run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

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
PAGE = ROOT / "docs" / "reference" / "spark-versions.md"


def run(place: Path) -> None:
    command: list[Path | str] = [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run"]
    for setting in ("spark.ui.enabled=false", "spark.driver.memory=512m"):
        command += ["--conf", setting]
    # In its tests, Spark gives the server any free port.
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

import penstock

QUOTES = "symbol string, ts bigint, price double"
SIDES = {"left": "symbol string, ts bigint, price double", "right": "symbol string, ts bigint, other double"}

spark = SparkSession.active()
penstock.register(spark)
bank = penstock.database("bank")
bank.table("totals", "symbol string, total double", key="symbol", partition_by="symbol")


@bank.procedure(event=QUOTES, returns="total double")
def add(e, totals):
    if e.symbol not in totals:
        totals.insert(symbol=e.symbol, total=0.0)
    row = totals[e.symbol]
    row.total += e.price
    return row.total


def read():
    return spark.readStream.schema(QUOTES).json("PLACE/quotes")


@dp.table
def queue():
    return penstock.update_queue(
        read(), key="symbol", time="ts", schema=QUOTES, budget=10, delete_when="price < 0",
        late_to="PLACE/late", state_location="PLACE/state", name="queue",
    )


@dp.table
def union():
    return penstock.update_union(
        read(), read(), key="symbol", time="ts", schema=QUOTES, state_location="PLACE/state", name="both"
    )


@dp.table
def joined():
    other = read().withColumnRenamed("price", "other")
    return penstock.update_join(
        read(), other, key="symbol", time="ts", within="1 s", unit="s", schema=SIDES, name="joined",
        condition="other >= price", state_location="PLACE/state",
    )


@dp.table
def windows():
    aggs = {"n": "count(*)", "total": "sum(price)", "most": "max(price * 2)"}
    return penstock.update_window(
        read(), key="symbol", time="ts", size="2 s", unit="s", aggs=aggs, mode="lazy", schema=QUOTES,
        state_location="PLACE/state", name="windows",
    )


@dp.table
def transactions():
    return penstock.transactions(
        read(), add, time="ts", keep=("symbol", "ts"), schema=QUOTES, name="sums",
        state_location="PLACE/state",
    )
"""


@pytest.mark.long
def test_each_operator_runs_in_a_flow_that_knows_the_columns(tmp_path: Path) -> None:
    for name in ("flows", "quotes"):
        (tmp_path / name).mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(place=tmp_path))
    (tmp_path / "flows" / "all.py").write_text(FLOWS.replace("PLACE", str(tmp_path)))
    quotes = [("a", 1, 1.0), ("a", 3, 3.0), ("b", 1, 5.0), ("a", 2, 2.0), ("b", 4, -1.0)]
    lines = [f'{{"symbol": "{symbol}", "ts": {ts}, "price": {price}}}' for symbol, ts, price in quotes]
    (tmp_path / "quotes" / "1.json").write_text("\n".join(lines))
    run(tmp_path)

    def rows(table: str, *names: str) -> list[tuple[object, ...]]:
        found = pq.read_table(tmp_path / "spark-warehouse" / table).to_pylist()
        return sorted(tuple(row[name] for name in names) for row in found)

    assert rows("queue", "symbol", "ts", "price", "deleted") == [("a", 3, 3.0, False), ("b", 4, -1.0, True)]
    assert rows("union", "symbol", "ts", "price") == [("a", 3, 3.0), ("b", 4, -1.0)]
    assert rows("joined", "symbol", "ts", "price", "other") == [("a", 3, 3.0, 3.0), ("b", 4, -1.0, -1.0)]
    newest = [("a", 2, 5.0, 6.0), ("b", 1, -1.0, -2.0)]
    assert rows("windows", "symbol", "n", "total", "most") == newest
    sums = [("a", 1, 1.0), ("a", 2, 3.0), ("a", 3, 6.0), ("b", 1, 5.0), ("b", 4, 4.0)]
    assert rows("transactions", "symbol", "ts", "total") == sums


def test_a_flow_with_a_queue_keeps_the_newest_of_each_key(tmp_path: Path) -> None:
    for name in ("flows", "quotes"):
        (tmp_path / name).mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(place=tmp_path))
    (program,) = (block.text for block in blocks(PAGE) if block.file == "newest.py")
    (tmp_path / "flows" / "newest.py").write_text(program.replace("/data", str(tmp_path)))
    quotes = [("a", 1, 1.0), ("a", 3, 3.0), ("b", 1, 5.0), ("a", 2, 2.0)]
    lines = [f'{{"symbol": "{symbol}", "ts": {ts}, "price": {price}}}' for symbol, ts, price in quotes]
    (tmp_path / "quotes" / "1.json").write_text("\n".join(lines))
    run(tmp_path)
    table = pq.read_table(tmp_path / "spark-warehouse" / "newest")
    rows = [(row["symbol"], row["ts"], row["price"]) for row in table.to_pylist()]
    assert sorted(rows) == [("a", 3, 3.0), ("b", 1, 5.0)]
