"""Pipelines between p-streams, any source and sink of Spark, and functions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.conf.document import PipelineError
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.graph import graph_of
from penstock.jobs.pipelines.run import run_to_end
from tests.spark.queries import SCHEMA, Input, limits, quotes

pytestmark = pytest.mark.spark

QUEUE = {"key": "k", "time": "t"}
ROWS = [("a", 5, 1.0), ("b", 5, 2.0), ("a", 9, 3.0), ("b", 1, 9.0)]
NEWEST = [("a", 9, 3.0), ("b", 5, 2.0)]


def pipeline(tmp_path: Path, name: str, **sections: Any) -> Pipeline:
    query = {"name": name, "checkpoint": str(tmp_path / f"{name}-checkpoint"), "trigger": "available_now"}
    files = {"type": "files", "format": "parquet", "path": str(tmp_path / "in"), "schema": SCHEMA}
    return Pipeline.model_validate({"source": files, "queue": QUEUE, "query": query, **sections})


@pytest.mark.long
def test_rows_pass_through_a_p_stream_to_a_function_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = str(tmp_path / "stream")
    first = pipeline(tmp_path, "first", sink={"type": "pstream", "path": stream, "options": {"goal": "fast"}})
    (tmp_path / "written_rows.py").write_text(
        "rows = []\n"
        "def write(batch, number):\n"
        "    rows.extend((number, *row) for row in batch.orderBy('k').collect())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    second = pipeline(
        tmp_path,
        "second",
        source={"type": "pstream", "path": stream} | limits(max_rows_per_trigger=100),
        queue=QUEUE | {"policy": "fifo"},
        sink={"type": "foreach_batch", "function": "written_rows:write"},
    )
    for _ in range(2):
        Input(tmp_path / "in").add(quotes(ROWS))
        run_to_end(first)
        run_to_end(second)
    rows = sys.modules["written_rows"].rows
    assert sorted(row[1:] for row in rows) == sorted(2 * NEWEST)
    assert len({number for number, *_ in rows}) == 2


def test_any_source_and_sink_of_spark_has_a_place(spark: SparkSession, tmp_path: Path) -> None:
    schema = "timestamp timestamp, value bigint"
    counted = pipeline(
        tmp_path,
        "counted",
        source={
            "type": "spark",
            "format": "rate-micro-batch",
            "schema": schema,
            "options": {"rowsPerBatch": 10, "numPartitions": 1},
        },
        projection=["value % 3 AS k", "value AS t"],
        queue=QUEUE,
        sink={"type": "spark", "format": "json", "path": str(tmp_path / "out")},
    )
    run_to_end(counted)
    written = [
        json.loads(line)
        for file in (tmp_path / "out").glob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert sorted((row["k"], row["t"]) for row in written) == [(0, 9), (1, 7), (2, 8)]


def test_a_source_of_spark_with_other_columns_than_declared_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = {"type": "spark", "format": "rate", "schema": "timestamp timestamp, value string"}
    retyped = pipeline(
        tmp_path, "retyped", source=source, queue={"key": "value", "time": "timestamp"}, sink={"type": "noop"}
    )
    with pytest.raises(InvalidUsageError, match="does not have the columns that the graph declares"):
        run_to_end(retyped)


def test_what_is_not_there_is_told_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"query.checkpoint: is required for the pstream sink"):
        pipeline(tmp_path, "no", query={}, sink={"type": "pstream", "path": "x"})
    Input(tmp_path / "in").add(quotes(ROWS))
    missing = pipeline(
        tmp_path, "missing", sink={"type": "foreach_batch", "function": "no_such_module:write"}
    )
    with pytest.raises(InvalidUsageError, match=r"sink.function: No module named 'no_such_module'"):
        run_to_end(missing)
    source = {"type": "pstream", "path": str(tmp_path / "none")}
    with pytest.raises(PipelineError, match="source: there is no p-stream"):
        graph_of(pipeline(tmp_path, "none", source=source, sink={"type": "noop"}))
