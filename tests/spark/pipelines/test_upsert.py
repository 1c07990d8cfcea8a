"""Upserts from queries and pipelines, through a store that dies and a query that starts again."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.checks.checking import check_pipeline
from penstock.jobs.pipelines.run import run_to_end
from tests.servers.processes import until
from tests.servers.servers import PostgreSql
from tests.spark.queries import SCHEMA, Input, quotes

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    server = PostgreSql()
    yield server
    server.remove()


def _rows(server: PostgreSql, table: str) -> list[tuple[Any, ...]]:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(server.uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT k, t, v FROM {table} ORDER BY k")
        return list(cursor.fetchall())


def test_a_table_is_exact_after_its_server_was_killed_and_the_query_started_again(
    spark: SparkSession, tmp_path: Path, server: PostgreSql
) -> None:
    source = Input(tmp_path / "in")

    def start() -> Any:
        state = str(tmp_path / "state")
        rows = source.frame(spark)
        queue = penstock.update_queue(
            rows, key="k", time="t", nulls="drop", state_location=state, delete_when="v < 0"
        )
        writer = penstock.upsert(
            queue, to=server.uri, table="prices", key="k", time="t", delete_when="deleted", create=True
        )
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    source.add(quotes([("a", 1, 1.0), ("b", 1, 2.0), ("a", 3, 3.0), ("c", 1, 1.0)]))
    query = start()
    assert until(lambda: _rows(server, "prices") == [("a", 3, 3.0), ("b", 1, 2.0), ("c", 1, 1.0)], 60)
    server.stop(signal.SIGKILL)
    # A delete, an older update, and a key that comes back after its delete.
    source.add(quotes([("a", 4, -1.0), ("b", 0, 9.0)]), quotes([("a", 2, 5.0), ("c", 2, -1.0)]))
    source.add(quotes([("c", 5, 7.0)]))
    server.start()
    wanted = [("b", 1, 2.0), ("c", 5, 7.0)]
    assert until(lambda: _rows(server, "prices") == wanted and query.lastProgress["batchId"] >= 3, 120)
    query.stop()
    query = start()
    source.add(quotes([("a", 3, 8.0), ("d", 1, 4.0)]))
    assert until(lambda: _rows(server, "prices") == [*wanted, ("d", 1, 4.0)], 60)
    query.stop()


def test_what_does_not_fit_is_refused_before_the_query_runs(
    spark: SparkSession, tmp_path: Path, server: PostgreSql
) -> None:
    rows: DataFrame = Input(tmp_path / "in").frame(spark)
    with pytest.raises(InvalidUsageError, match="there is no such table") as caught:
        penstock.upsert(rows, to=server.uri.replace("any", "s3cret"), table="none", key="k", time="t")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(InvalidUsageError, match="names an unknown column: column=symbol"):
        penstock.upsert(rows, to=server.uri, table="none", key="symbol", time="t")


def test_deletes_may_be_a_column_of_spark_or_a_flag_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    source = Input(tmp_path / "in")
    source.add(quotes([("a", 1, 1.0), ("b", 2, -1.0)]))
    rows = source.frame(spark).withColumn("gone", sf.col("v") < 0)
    wanted: dict[str, tuple[str | Column, list[Any]]] = {
        "by_column": (sf.col("gone"), [("a", 1, 1.0, 0)]),
        "by_name": ("GONE", [("a", 1, 1.0)]),
    }
    for name, (condition, stored) in wanted.items():
        writer = penstock.upsert(
            rows,
            to=f"sqlite:///{tmp_path}/{name}.db",
            table="t",
            key="k",
            time="t",
            delete_when=condition,
            create=True,
        )
        penstock.run(writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True))
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            assert connection.execute("SELECT * FROM t").fetchall() == stored


def test_a_pipeline_keeps_a_table_with_the_key_and_time_of_its_queue(
    spark: SparkSession, tmp_path: Path
) -> None:
    Input(tmp_path / "in").add(quotes([("a", 1, 1.0), ("b", 2, 2.0), ("a", 3, 3.0)]))
    pipeline: dict[str, Any] = {
        "source": {"type": "files", "format": "parquet", "path": str(tmp_path / "in"), "schema": SCHEMA},
        "queue": {"key": "k", "time": "t"},
        "sink": {
            "type": "upsert",
            "to": f"sqlite:///{tmp_path}/prices.db",
            "table": "prices",
            "create": True,
        },
        "query": {"trigger": "available_now", "checkpoint": str(tmp_path / "checkpoint")},
    }
    run_to_end(Pipeline.model_validate(pipeline))
    with closing(sqlite3.connect(tmp_path / "prices.db")) as connection:
        assert sorted(connection.execute("SELECT k, t, v FROM prices")) == [("a", 3, 3.0), ("b", 2, 2.0)]
    window = {"window": {"time": "t", "unit": "s", "size": "1 s"}, "aggregates": {"n": "count(*)"}}
    with pytest.raises(ValueError, match=r"sink.key: is required without a queue"):
        Pipeline.model_validate({**pipeline, "queue": None, **window})


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_a_table_that_lacks_a_column_is_refused_with_the_line_of_the_sink(
    spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    Input(tmp_path / "in").add(quotes([("a", 1, 1.0)]))
    with closing(sqlite3.connect(tmp_path / "prices.db")) as connection:
        connection.execute("CREATE TABLE prices (k TEXT PRIMARY KEY, t INTEGER)")
    (tmp_path / "p.yaml").write_text(
        f"engine: {engine}\n"
        f"source: {{type: files, format: parquet, path: {tmp_path}/in, schema: '{SCHEMA}'}}\n"
        "queue: {key: k, time: t}\n"
        f"sink: {{type: upsert, to: 'sqlite:///{tmp_path}/prices.db', table: prices}}\n"
        f"query: {{trigger: available_now, checkpoint: {tmp_path}/checkpoint}}\n"
    )
    pipeline, document = check_pipeline(str(tmp_path / "p.yaml"), [])
    says = "4: sink: the table lacks columns of the rows: .* missing=v known=k, t. Hint: add the columns"
    with pytest.raises(InvalidUsageError, match=says) as caught:
        run_to_end(pipeline, document=document)
    assert str(caught.value).startswith(f"{tmp_path}/p.yaml:4")


def test_an_error_of_the_store_does_not_show_the_rows(
    spark: SparkSession, tmp_path: Path, server: PostgreSql
) -> None:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(server.uri) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE low (k text PRIMARY KEY, t bigint, v double precision CHECK (v < 10))")
        connection.commit()
    source = Input(tmp_path / "in")
    source.add(quotes([("hidden", 1, 77.0)]))
    writer = penstock.upsert(source.frame(spark), to=server.uri, table="low", key="k", time="t")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="the store refuses the rows") as caught:
        query.awaitTermination(60)
    assert "code=23514" in str(caught.value)
    assert "hidden" not in str(caught.value)
