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


@pytest.mark.long
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
