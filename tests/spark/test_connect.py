"""Operators behind Spark Connect: the client has no JVM, the server is a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.errors import InvalidUsageError
from tests.spark.conftest import lean_server
from tests.spark.connect_server import lacks_client
from tests.spark.queries import Place, quotes

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacks_client(), reason='needs pip install "penstock[connect]"'),
]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a session of Spark Connect, beside the classic one of other modules."""
    with lean_server(tmp_path_factory.mktemp("connect")) as server, server.session() as session:
        penstock.register(session)
        yield session


def test_a_queue_with_a_budget_is_drained_and_read(remote: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, 3.0), ("c", 1, 4.0)]))
    queue = place.queue(remote, budget=1)
    writer = queue.writeStream.format("parquet").option("checkpointLocation", str(place.checkpoint))
    writer = writer.trigger(availableNow=True).option("path", str(place.sink))
    totals = penstock.run(writer, on_batch=lambda batch: None)
    assert (totals.rows_in, totals.emitted, totals.waiting_keys) == (4, 3, 0)
    assert sorted(row for rows in place.rows().values() for row in rows) == [
        ("a", 2, 2.0), ("b", 1, 3.0), ("c", 1, 4.0),
    ]  # fmt: skip
    state = penstock.read_state(remote, place.state, checkpoint=place.checkpoint)
    assert sorted((row.k, row.waiting) for row in state.collect()) == [
        ("a", False), ("b", False), ("c", False),
    ]  # fmt: skip


def test_a_restart_with_another_policy_is_refused(remote: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]))
    place.run(place.queue(remote, policy="fifo"))
    with pytest.raises(InvalidUsageError, match="policy"):
        place.start(place.queue(remote, policy="in_place"))


def test_windows_take_spark_columns_and_a_second_operator_is_refused(
    remote: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0), ("a", 2, 5.0), ("a", 20, 0.0)]))
    windows = penstock.update_window(
        place.input.frame(remote), "k", "t", "10 s", aggs={"mean": sf.avg("v")}, unit="s",
        state_location=place.state,
    )  # fmt: skip
    with pytest.raises(InvalidUsageError, match="can hold only one"):
        penstock.update_queue(windows, key="k", time="window", state_location=place.state)
    place.run(windows.selectExpr("k", "cast(window.end AS long) AS t", "mean AS v"))
    assert [row for rows in place.rows().values() for row in rows] == [("a", 10, 3.0)]
