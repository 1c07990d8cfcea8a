"""The program that warms up a machine: small queries compile kernels and load Spark's classes.

`penstock.jobs.class_archive` runs it in a separate process.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

import penstock
from penstock.jobs.class_archive import JAVA_OPTIONS
from penstock.jobs.session import open_session


def _run_queries(directory: Path) -> None:
    """Send a few rows from Parquet files through a queue, a p-stream and windows."""
    settings = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # A JVM that archives its classes cannot start from an existing archive.
        JAVA_OPTIONS: "-Xshare:auto",
    }
    spark, _ = open_session("penstock-warm-up", settings, log_level="OFF")
    penstock.register(spark)
    for number in range(2):
        rows = spark.range(100).selectExpr(
            "id % 7 AS key", f"timestamp_seconds(id + 100 * {number}) AS time", "id / 2 AS value"
        )
        rows.write.mode("append").parquet(str(directory / "input"))
    schema = spark.read.parquet(str(directory / "input")).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    newest = penstock.update_queue(
        files.parquet(str(directory / "input")), key="key", time="time", state_location=directory / "state"
    )
    _run(newest, "pstream", directory / "stream")
    windows = penstock.update_window(
        spark.readStream.format("pstream").load(str(directory / "stream")),
        key="key", time="time", size="20 seconds", slide="10 seconds", mode="append",
        aggs={"mean": "avg(value)", "count": "count(*)"}, state_location=directory / "state of windows",
    )  # fmt: skip
    _run(windows, "parquet", directory / "output")
    spark.stop()


def _run(df: DataFrame, kind: str, path: Path) -> None:
    writer = df.writeStream.format(kind).option("path", str(path))
    writer = writer.option("checkpointLocation", str(path.with_name(f"checkpoint of {path.name}")))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    _run_queries(Path.cwd())
