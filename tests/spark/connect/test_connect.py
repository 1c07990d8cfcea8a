"""Operators behind Spark Connect: the client has no JVM, the server is a process of its own."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.checkpointing.p_stream import PStreamReader
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.run import run_to_end
from penstock.spark_ext.api.register import remove_metrics
from penstock.spark_ext.worker import python_workers
from tests.spark.conftest import Sessions, lean_server
from tests.spark.connect_server import ConnectServer, classic_functions, lacks_client
from tests.spark.p_streams import append, numbers, run, stream
from tests.spark.queries import PATIENCE_S, SCHEMA, Input, Place, quotes
from tests.transactions.procedures import define

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacks_client(), reason='needs pip install "penstock[connect]"'),
]


ROWS = [("a", 5, 1.0), ("b", 5, 2.0), ("a", 9, 3.0), ("b", 1, 9.0)]
NEWEST = [("a", 9, 3.0), ("b", 5, 2.0)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """Give a server."""
    with lean_server(tmp_path_factory.mktemp("connect")) as started:
        yield started


@pytest.fixture(scope="module")
def remote(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a session of Spark Connect, beside the classic one of other modules."""
    with server.session() as session:
        penstock.register(session, metrics_file=str(tmp_path_factory.mktemp("metrics") / "metrics"))
        yield session
        remove_metrics(session)


def pipeline(place: Path, **sections: Any) -> dict[str, Any]:
    """Return a pipeline that reads the directory ``in`` of a place."""
    files = {"type": "files", "format": "parquet", "path": str(place / "in"), "schema": SCHEMA}
    query = {"name": "newest", "checkpoint": str(place / "checkpoint"), "trigger": "available_now"}
    return {"source": files, "queue": {"key": "k", "time": "t"}, "query": query, **sections}


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


_WRONG: dict[str, Callable[[SparkSession, str], object]] = {
    "no option 'rowpersecond'. Hint: did you mean 'rowsPerSecond'?": lambda spark, place: (
        spark.readStream.format("market").option("rowPerSecond", 5).load().columns
    ),
    "there is no p-stream at this location": lambda spark, place: (
        spark.read.format("pstream").load(place).collect()
    ),
    "did you mean 'unitRows'?": lambda spark, place: (
        spark.range(1).write.format("pstream").mode("append").option("unitRow", 1).save(place)
    ),
}


@pytest.mark.parametrize("message", _WRONG)
def test_a_wrong_option_is_one_line(remote: SparkSession, tmp_path: Path, message: str) -> None:
    with pytest.raises(AnalysisException, match=re.escape(message)) as caught:
        _WRONG[message](remote, str(tmp_path / "place"))
    shown = "".join(traceback.format_exception(caught.value))
    assert len(str(caught.value).splitlines()) == 1
    assert shown.count("Traceback") == 1


def test_a_restart_with_another_policy_is_refused(remote: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 1, 1.0)]))
    place.run(place.queue(remote, policy="fifo"))
    with pytest.raises(InvalidUsageError, match="policy"):
        place.start(place.queue(remote, policy="in_place"))


@pytest.mark.long
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


def test_p_streams_are_written_and_read_on_after_a_restart(remote: SparkSession, tmp_path: Path) -> None:
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    append(source, 0, 25)
    even = stream(remote, source, reader="even").where("n % 2 = 0")
    run(even, sink, checkpoint)
    append(source, 25, 40)
    run(even, sink, checkpoint)
    assert numbers(sink) == list(range(0, 40, 2))
    twice = stream(remote, source, reader="r").union(stream(remote, source, reader="r").where("n > 1"))
    with pytest.raises(InvalidUsageError, match="two sources of a query read a p-stream under one name"):
        penstock.update_queue(twice, key="n", time="n", state_location=tmp_path / "state")
    batch = remote.read.format("pstream").load(str(sink))
    assert sorted(row.n for row in batch.collect()) == list(range(0, 40, 2))


def test_unions_and_joins_run(remote: SparkSession, tmp_path: Path) -> None:
    first, second = Place(tmp_path / "first"), Place(tmp_path / "second")
    first.input.add(quotes([("a", 5, 1.0), ("b", 1, 2.0)]))
    second.input.add(quotes([("a", 6, 3.0), ("c", 1, 4.0)]))
    frames = [place.input.frame(remote) for place in (first, second)]
    first.run(penstock.update_union(*frames, key="k", time="t", state_location=first.state))
    assert sorted(first.sequence()) == [("a", 6, 3.0), ("b", 1, 2.0), ("c", 1, 4.0)]
    joined = penstock.update_join(
        frames[0], frames[1].withColumnRenamed("v", "w"), "k", "t", "5 s", unit="s",
        state_location=second.state,
    )  # fmt: skip
    second.run(joined)
    assert second.sequence("k", "v", "w") == [("a", 1.0, 3.0)]


@pytest.mark.long
def test_late_rows_are_kept_and_metrics_count_them(remote: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.add(quotes([("a", 100, 1.0)]), quotes([("a", 1, 2.0)]), quotes([("a", 200, 3.0)]))
    windows = penstock.update_window(
        place.input.frame(remote), "k", "t", "10 s", aggs={"most": "max(v)"}, unit="s",
        watermark_delay="5 s", state_location=place.state, late_to=tmp_path / "late",
    )  # fmt: skip
    query = place.run(windows.selectExpr("k", "cast(window.end AS long) AS t", "most AS v"))
    assert PStreamReader(tmp_path / "late").read()["v"].to_pylist() == [2.0]
    entries = penstock.metrics(query)
    assert (sum(entry["rows_in"] for entry in entries), sum(entry["late"] for entry in entries)) == (3, 1)


@pytest.mark.long
def test_a_graph_with_a_p_stream_inside_goes_on_after_a_restart(remote: SparkSession, tmp_path: Path) -> None:
    source, out = Input(tmp_path / "in"), tmp_path / "out"
    graph = penstock.graph("g").source("quotes", quotes([]).schema).update_queue("k", "t")
    graph = graph.where("v > 1").sink("pstream", path=str(out))
    for start, rows in enumerate((ROWS, [("c", 1, 5.0), ("a", 10, 0.0)])):
        source.add(quotes(rows))
        running = penstock.start(
            graph, remote, tmp_path / "checkpoint", sources={"quotes": source.frame(remote)},
            persist="always", available_now=True,
        )  # fmt: skip
        with running:
            assert running.await_termination(PATIENCE_S), running.status()
        assert (running.recovery is not None) == (start > 0)
    kept = PStreamReader(out).read().to_pylist()
    assert sorted(tuple(row.values()) for row in kept) == [*NEWEST, ("c", 1, 5.0)]


@pytest.mark.long
def test_transactions_keep_their_tables(remote: SparkSession, tmp_path: Path) -> None:
    database: Any = penstock.database("shop")
    database.table("totals", "k string, sum double NOT NULL", key="k")
    text = """
def act(e, totals):
    if e.k not in totals:
        totals.insert(k=e.k, sum=0.0)
    totals[e.k].sum += e.v
    return totals[e.k].sum
"""
    procedure = database.procedure(returns="sum double")(define(text))
    place = Place(tmp_path)
    for rows in ([("a", 1, 1.0), ("b", 2, 2.0)], [("a", 3, 3.0)]):
        place.input.add(quotes(rows))
        df = place.input.frame(remote)
        place.run(penstock.transactions(df, procedure, time="t", keep="k", state_location=place.state))
    assert sorted(place.sequence("k", "sum")) == [("a", 1.0), ("a", 4.0), ("b", 2.0)]
    state = penstock.read_state(remote, place.state, checkpoint=place.checkpoint, table="totals")
    assert sorted((row.k, row.sum) for row in state.collect()) == [("a", 4.0), ("b", 2.0)]


def test_upserts_keep_a_table_up_to_date(remote: SparkSession, tmp_path: Path) -> None:
    place, file = Place(tmp_path), tmp_path / "newest.db"
    for rows in (ROWS, [("a", 7, 0.0), ("c", 1, 4.0)]):
        place.input.add(quotes(rows))
        to = f"sqlite:///{file}"
        writer = penstock.upsert(place.queue(remote), to=to, table="newest", key="k", time="t", create=True)
        writer = writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True)
        totals = penstock.run(writer, on_batch=lambda batch: None)
        assert totals.rows_in == len(rows)
    with closing(sqlite3.connect(file)) as connection:
        assert sorted(connection.execute("SELECT k, t, v FROM newest")) == [*NEWEST, ("c", 1, 4.0)]


FUNCTIONS = """
import counted_rows


def write(batch, number):
    with open({file!r}, "a") as file:
        file.writelines(counted_rows.line(row) for row in batch.collect())
"""


@pytest.mark.long
def test_functions_of_a_pipeline_reach_the_server(
    remote: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Input(tmp_path / "in").add(quotes(ROWS))
    (tmp_path / "own_functions.py").write_text(FUNCTIONS.format(file=str(tmp_path / "out")))
    (tmp_path / "counted_rows.py").write_text(
        "import json\n\ndef line(row):\n    return json.dumps(row.asDict()) + '\\n'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sink = {"type": "foreach_batch", "function": "own_functions:write"}
    run_to_end(Pipeline.model_validate(pipeline(tmp_path, sink=sink)), spark=remote)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted(tuple(row.values()) for row in rows) == NEWEST


@pytest.mark.long
def test_the_command_runs_a_pipeline_on_the_server(server: ConnectServer, tmp_path: Path) -> None:
    Input(tmp_path / "in").add(quotes(ROWS))
    # Relative paths: the server has another working directory.
    sections = pipeline(Path(), sink={"type": "pstream", "path": "out"})
    sections["query"]["metrics"] = str(tmp_path / "metrics")
    (tmp_path / "newest.yaml").write_text(yaml.safe_dump(sections))
    command = [sys.executable, "-m", "penstock.cli", "run", "newest.yaml"]
    environment = os.environ | {"SPARK_REMOTE": server.url}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    kept = PStreamReader(tmp_path / "out").read().to_pylist()
    assert sorted(tuple(row.values()) for row in kept) == NEWEST
    (entry,) = (json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines())
    assert (entry["rows_in"], entry["conflated"]) == (4, 2)


def test_classic_and_connect_go_on_with_one_checkpoint_in_turn(
    remote: SparkSession, sessions: Sessions, tmp_path: Path
) -> None:
    place = Place(tmp_path)

    def newest(session: SparkSession, rows: list[tuple[str, int, float]]) -> None:
        place.input.add(quotes(rows))
        place.run(place.queue(session, buckets=2))

    newest(remote, ROWS)
    with classic_functions(), sessions.session(connect=False) as classic:
        newest(classic, [("a", 8, 0.0), ("b", 6, 5.0)])
        state = penstock.read_state(classic, place.state, checkpoint=place.checkpoint)
        assert sorted((row.k, row.waiting) for row in state.collect()) == [("a", False), ("b", False)]
    newest(remote, [("b", 5, 0.0), ("c", 1, 1.0)])
    assert sorted(place.sequence()) == sorted([*NEWEST, ("b", 6, 5.0), ("c", 1, 1.0)])


def test_functions_of_the_other_kind_of_session_are_refused(remote: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    with classic_functions(), pytest.raises(InvalidUsageError, match="functions of classic sessions"):
        place.queue(remote)


def test_a_function_of_each_batch_needs_a_checkpoint(remote: SparkSession, tmp_path: Path) -> None:
    rows = Place(tmp_path).queue(remote)
    with pytest.raises(InvalidUsageError, match="foreachBatch with an operator needs a checkpoint"):
        rows.writeStream.foreachBatch(lambda batch, number: None).start()


def test_workers_of_a_server_that_lack_a_module_are_refused(
    remote: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_workers._prepared.discard(remote)
    monkeypatch.setattr(python_workers, "_NEEDED", ("penstock", "no_such_module"))
    with pytest.raises(InvalidUsageError, match=r"lack=no module no_such_module.*set spark\.pyspark\.python"):
        penstock.register(remote)
    monkeypatch.undo()
    penstock.register(remote)
