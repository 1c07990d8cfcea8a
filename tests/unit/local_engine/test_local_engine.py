"""Pipelines on the local engine, without Spark."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from typer.testing import CliRunner

from penstock import _failpoints
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.cli import app
from penstock.conf.document import Document, PipelineError
from penstock.conf.pipeline import Pipeline
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.local.pipeline import check_local_pipeline, open_pipeline
from penstock.jobs.pipelines.places import check_places
from penstock.jobs.pipelines.run import run_to_end
from penstock.local_engine.outputs import MemoryOutput, ParquetOutput
from penstock.local_engine.query_log import EntryLog, QueryLog
from penstock.local_engine.records.whole_files import file_reader
from penstock.monitoring import opentelemetry
from penstock.monitoring.prometheus import PrometheusServer
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.worker.bucket_task import BucketTask, ServedBucket
from penstock.state_store.lineage import FileId, Pointer, Version

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.float64()})
QUEUE = {"key": "k", "time": "t"}


def updates(rows: int, keys: int = 20, seed: int = 1, first: int = 0) -> pa.Table:
    draws = random.Random(seed)
    return pa.table(
        {
            "k": [f"k{draws.randrange(keys)}" for _ in range(rows)],
            "t": list(range(first, first + rows)),
            "v": [float(draws.randrange(100)) for _ in range(rows)],
        },
        SCHEMA,
    )


def append(place: Path, rows: pa.Table) -> None:
    with PStreamWriter(place, SCHEMA, threads=1) as writer:
        writer.append(rows)


def pipeline(place: Path, **sections: Any) -> Pipeline:
    """Return a pipeline from the p-stream ``in`` to the p-stream ``out``."""
    document = {
        "engine": "local",
        "source": {"type": "pstream", "path": str(place / "in")},
        "sink": {"type": "pstream", "path": str(place / "out")},
        "query": {"trigger": "available_now", "checkpoint": str(place / "checkpoint")},
    }
    return Pipeline.model_validate(document | sections)


def umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def out(place: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = PStreamReader(place / "out").read().to_pylist()
    return rows


def newest(rows: pa.Table) -> list[tuple[Any, ...]]:
    return query("SELECT k, max(t) AS t, arg_max(v, t) AS v FROM rows GROUP BY k ORDER BY k", rows)


def query(text: str, rows: pa.Table) -> list[tuple[Any, ...]]:
    """Return the result of SQL over ``rows``."""
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        return connection.sql(text).fetchall()


def sorted_rows(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows)


def test_a_queue_emits_the_newest_row_of_each_key_over_restarts(tmp_path: Path) -> None:
    first, second = updates(300), updates(300, seed=2, first=300)
    append(tmp_path / "in", first)
    queue = pipeline(tmp_path, queue=QUEUE | {"buckets": 3})
    totals = run_to_end(queue)
    assert (totals.batches, totals.waiting_keys) == (1, 0)
    assert sorted_rows(out(tmp_path), "k", "t", "v") == newest(first)
    assert run_to_end(queue).batches == 0, "nothing is new"
    append(tmp_path / "in", second)
    before = len(out(tmp_path))
    run_to_end(queue)
    assert sorted_rows(out(tmp_path)[before:], "k", "t", "v") == newest(second)


def test_a_budget_serves_the_keys_that_wait_in_later_micro_batches(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(300))
    queue = pipeline(tmp_path, queue=QUEUE | {"budget": 6, "buckets": 2})
    served: list[int] = []
    totals = run_to_end(queue, lambda batch: served.append(batch.emitted))
    assert max(served) == 6, "a bucket serves its share"
    assert totals.emitted == len(newest(updates(300)))
    assert sorted_rows(out(tmp_path), "k", "t", "v") == newest(updates(300))


def test_a_new_checkpoint_with_kept_state_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(updates(30), tmp_path / "in" / "rows.parquet")
    source = {
        "type": "files",
        "format": "parquet",
        "path": str(tmp_path / "in"),
        "schema": "k string, t bigint, v double",
    }
    query = {"trigger": "available_now", "state_location": str(tmp_path / "state"), "name": "newest"}
    sections = {"source": source, "queue": QUEUE, "sink": {"type": "noop"}}
    for checkpoint in ("old", "old", "new"):
        assert not caplog.records
        query["checkpoint"] = str(tmp_path / checkpoint)
        run_to_end(pipeline(tmp_path, query=query, **sections))
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == [
        f"queue starts without state: {tmp_path}/state holds only state of other checkpoints. If the "
        "query's checkpoint was deleted or moved by mistake, restore it [query=newest]"
    ]


def test_each_commit_has_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path / "in", updates(40))
    with caplog.at_level(logging.INFO, "penstock.local_engine.query"):
        totals = run_to_end(pipeline(tmp_path, queue=QUEUE | {"budget": 6}))
    lines = [text for one in caplog.records if (text := one.getMessage()).startswith("committed [")]
    assert len(lines) == totals.batches > 1
    assert lines[0] == f"committed [query=results batch=0 rows_in={totals.rows_in} emitted=6]"


def test_few_states_and_results_of_a_micro_batch_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "in", updates(300))
    held: list[int] = [0]
    kept: list[int] = []
    serve, finish = BucketTask.serve, ServedBucket.finish

    def count_served(*arguments: Any) -> ServedBucket[Any]:
        held.append(held[-1] + 1)
        return serve(*arguments)

    def count_finished(served: ServedBucket[Any]) -> Any:
        held.append(held[-1] - 1)
        kept.append(len(served.batches))
        return finish(served)

    monkeypatch.setattr(BucketTask, "serve", count_served)
    monkeypatch.setattr(ServedBucket, "finish", count_finished)
    run_to_end(pipeline(tmp_path, queue=QUEUE | {"buckets": 16}))
    assert len(kept) > 10, "the buckets with keys"
    assert max(held) <= 4
    assert set(kept) == {0}
    assert sorted_rows(out(tmp_path), "k", "t", "v") == newest(updates(300))


def test_two_running_pipelines_write_into_one_p_stream(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(20))
    sink = {"type": "pstream", "path": str(tmp_path / "out")}
    running = [
        open_pipeline(
            pipeline(
                tmp_path, queue=QUEUE, sink=sink,
                query={"name": name, "checkpoint": str(tmp_path / name), "trigger": "available_now"},
            )
        )
        for name in ("one", "other")
    ]  # fmt: skip
    for number in range(6):
        append(tmp_path / "in", updates(20, first=20 + 20 * number, seed=number))
        for graph in running:
            assert graph.step()
    rows = PStreamReader(tmp_path / "out").read()
    newest = PStreamReader(tmp_path / "in").read().group_by("k").aggregate([("t", "max")]).to_pylist()
    ends = sorted((row["k"], row["t_max"]) for row in newest)
    found = [(row["k"], row["t"]) for row in rows.to_pylist()]
    assert sorted(found) == sorted(2 * sorted(set(found))), "each pipeline wrote the same rows"
    assert set(ends) <= set(found)


def test_keys_that_wait_survive_a_restart(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(300))
    queue = pipeline(tmp_path, queue=QUEUE | {"budget": 6, "buckets": 2})
    held = open_pipeline(queue)
    held.step()
    assert len(out(tmp_path)) == 6
    del held
    assert run_to_end(queue).rows_in == 0
    assert sorted_rows(out(tmp_path), "k", "t", "v") == newest(updates(300))


@pytest.mark.parametrize("point", [*_failpoints.LOCAL_POINTS, "sink.after_segments", "sink.after_commit"])
def test_a_crash_anywhere_neither_loses_nor_repeats_a_row(tmp_path: Path, point: str) -> None:
    rows = updates(300)
    queue = pipeline(tmp_path, queue=QUEUE | {"policy": "linecutting", "budget": 5, "buckets": 2})
    for number in range(2):
        # Rows that come after a crash do not belong to the micro-batch that runs again.
        append(tmp_path / "in", rows.slice(100 * number, 100))
        running = open_pipeline(queue)
        with _failpoints.armed({point: "error"}), pytest.raises(_failpoints.InjectedError):
            running.step()
    append(tmp_path / "in", rows.slice(200))
    run_to_end(queue)
    last = {row["k"]: (row["k"], row["t"], row["v"]) for row in out(tmp_path)}
    assert sorted(last.values()) == newest(rows)
    times = [(row["k"], row["t"]) for row in out(tmp_path)]
    assert len(set(times)) == len(times)


@pytest.mark.long
@pytest.mark.parametrize("point", [*_failpoints.LOCAL_POINTS, "state.after_publish", "sink.before_commit"])
def test_a_kill_anywhere_neither_loses_nor_repeats_a_row(tmp_path: Path, point: str) -> None:
    rows = updates(200)
    append(tmp_path / "in", rows)
    queue = pipeline(tmp_path, queue=QUEUE | {"policy": "linecutting", "budget": 5, "buckets": 2})
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(queue.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    command = [sys.executable, "-m", "penstock.cli", "run", str(file)]
    for number in range(3):
        marker = tmp_path / f"{point}-{number}"
        environment = os.environ | {"PENSTOCK_FAILPOINTS": f"{point}=kill@{marker}"}
        ended = subprocess.run(command, env=environment, check=False, capture_output=True)
        assert (ended.returncode, marker.exists()) == (-signal.SIGKILL, True), ended.stderr.decode()
    subprocess.run(command, check=True, capture_output=True)
    assert sorted_rows(out(tmp_path), "k", "t", "v") == newest(rows)


def test_late_rows_go_into_a_p_stream_once_whatever_crashes(tmp_path: Path) -> None:
    parts = [
        updates(60, keys=4),
        updates(60, keys=4, seed=2, first=30),
        updates(60, keys=4, seed=3, first=10),
    ]
    queue = pipeline(tmp_path, queue=QUEUE | {"late_to": str(tmp_path / "late"), "buckets": 2})
    newest: dict[str, int] = {}
    expected = []
    points = ["local.after_commit", "task_rows.after_commit", "local.after_write"]
    for part, point in zip(parts, points, strict=True):
        append(tmp_path / "in", part)
        running = open_pipeline(queue)
        with _failpoints.armed({point: "error"}), pytest.raises(_failpoints.InjectedError):
            running.step()
        run_to_end(queue)
        rows = part.to_pylist()
        arrived = {
            key: max(row["t"] for row in rows if row["k"] == key) for key in {row["k"] for row in rows}
        }
        # A row is late if its key has a newer emitted one, and none newer than that arrives with it.
        expected += [
            (row["k"], row["t"], row["v"], emitted)
            for row in rows
            if arrived[row["k"]] <= (emitted := newest.get(row["k"], -1)) and row["t"] < emitted
        ]
        newest = {key: max(arrived.get(key, -1), newest.get(key, -1)) for key in {*arrived, *newest}}
    late = PStreamReader(tmp_path / "late").read().to_pylist()
    assert {row["reason"] for row in late} == {"late"}
    assert sorted_rows(late, "k", "t", "v", "watermark") == sorted(expected)


def test_filters_projections_lookups_and_results_are_applied(tmp_path: Path) -> None:
    rows = updates(300)
    append(tmp_path / "in", rows)
    names = tmp_path / "names.csv"
    names.write_text("k,name\n" + "".join(f"k{n},name {n}\n" for n in range(0, 20, 2)))
    run_to_end(
        pipeline(
            tmp_path,
            filter="v >= 20",
            projection=["k", "t", "v * 2 AS w"],
            lookup={
                "table": {
                    "format": "csv",
                    "path": str(names),
                    "schema": "k STRING, name STRING",
                    "options": {"header": "true"},
                },
                "key": "k",
            },
            queue=QUEUE,
            results={"filter": "w < 150", "projection": ["k", "name", "w + 1 AS x"]},
        )
    )
    text = (
        "SELECT k, name, 2 * v + 1 AS x FROM (SELECT k, max(t) AS t, arg_max(v, t) AS v FROM rows "
        f"WHERE v >= 20 GROUP BY k) JOIN read_csv('{names}') USING (k) WHERE 2 * v < 150 ORDER BY k"
    )
    expected = query(text, rows)
    assert len(expected) > 3
    assert sorted_rows(out(tmp_path), "k", "name", "x") == expected


def test_a_union_prefers_an_input_at_ties(tmp_path: Path) -> None:
    append(tmp_path / "in", pa.table({"k": ["a", "b"], "t": [1, 5], "v": [1.0, 2.0]}, SCHEMA))
    append(tmp_path / "other", pa.table({"k": ["a", "b"], "t": [1, 4], "v": [10.0, 20.0]}, SCHEMA))
    other = {"source": {"type": "pstream", "path": str(tmp_path / "other")}}
    run_to_end(pipeline(tmp_path, union=QUEUE | {"inputs": {"other": other}, "prefer": "other"}))
    assert sorted_rows(out(tmp_path), "k", "t", "v") == [("a", 1, 10.0), ("b", 5, 2.0)]


def test_a_join_emits_the_newest_match_of_each_key(tmp_path: Path) -> None:
    append(tmp_path / "in", pa.table({"k": ["a", "b", "c"], "t": [10, 20, 30], "v": [1.0, 2.0, 3.0]}, SCHEMA))
    with PStreamWriter(
        tmp_path / "asks", pa.schema({"k": pa.string(), "t": pa.int64(), "ask": pa.int64()})
    ) as w:
        w.append(pa.table({"k": ["a", "b", "c"], "t": [12, 40, 31], "ask": [5, 6, 2]}))
    run_to_end(
        pipeline(
            tmp_path,
            join={
                "with": {"source": {"type": "pstream", "path": str(tmp_path / "asks")}},
                "key": "k", "time": "t", "unit": "s", "within": "5 s", "condition": "ask > v",
            },
        )
    )  # fmt: skip
    assert sorted_rows(out(tmp_path), "k", "t", "v", "ask") == [("a", 12, 1.0, 5)]


WINDOW = {
    "window": {"time": "t", "unit": "s", "size": "60 s", "slide": "20 s", "watermark_delay": "0 s"},
    "group_by": ["k"],
    "aggregates": {"n": "count(*)", "mean": "avg(v)", "most": "max(v)"},
    "having": "n > 1",
    "persist": "never",
}
COUNTED = """
    SELECT k, w, n, mean, most FROM (
        SELECT k, w, count(*) AS n, avg(v) AS mean, max(v) AS most
        FROM rows, range(-40, 1000, 20) AS windows(w)
        WHERE t >= w AND t < w + 60 GROUP BY k, w
    ) WHERE n > 1 AND w + 60 <= (SELECT max(t) // 20 * 20 FROM rows) ORDER BY k, w
"""


@pytest.mark.parametrize("source", ["pstream", "files"])
def test_windows_of_a_p_stream_and_of_files_equal_a_query_in_sql(tmp_path: Path, source: str) -> None:
    rows = updates(400, keys=3)
    cut = [rows.slice(0, 250), rows.slice(250)]
    windows: dict[str, Any] = dict(WINDOW)
    if source == "files":
        windows["source"] = {
            "type": "files", "format": "json", "path": str(tmp_path / "in"),
            "schema": "k STRING, t BIGINT, v DOUBLE",
        }  # fmt: skip
    for number, some in enumerate(cut):
        if source == "pstream":
            append(tmp_path / "in", some)
        else:
            (tmp_path / "in").mkdir(exist_ok=True)
            text = "".join(json.dumps(row) + "\n" for row in some.to_pylist())
            (tmp_path / "in" / f"{number}.json").write_text(text)
        run_to_end(pipeline(tmp_path, **windows))
    got = [row | {"w": int(row["window"]["start"].timestamp())} for row in out(tmp_path)]
    assert sorted_rows(got, "k", "w", "n", "mean", "most") == query(COUNTED, rows)


def test_rows_that_the_first_of_two_queries_drops_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"k": "a", "t": 1}, {"k": None, "t": 2}, {"k": "b", "t": 3}]
    Path("in.json").write_text("\n".join([*map(json.dumps, rows), "broken"]))
    document = {
        "engine": "local",
        "source": {
            "type": "files", "format": "json", "path": "in.json", "schema": "k string, t long",
            "on_error": "skip",
        },
        "queue": {"key": "k", "time": "t", "nulls": "drop"},
        "window": {"time": "t", "unit": "s", "size": "10 s"},
        "group_by": ["k"],
        "aggregates": {"n": "count(*)"},
        "persist": {"queue": "always"},
        "sink": {"type": "console"},
        "query": {"trigger": "available_now"},
    }  # fmt: skip
    Path("p.yaml").write_text(json.dumps(document))
    result = CliRunner().invoke(app, ["run", "p.yaml"])
    assert result.exit_code == 0, result.stderr
    *batches, first, last = result.stderr.splitlines()
    assert any(
        line.startswith("ingest-queue: batch 0 ") and "dropped 1  bad records 1" in line for line in batches
    )
    assert first == "ingest-queue: 1 batch, 3 rows in, 2 emitted, 1 dropped, 1 bad record"
    assert last == "1 batch, 2 rows in, 0 emitted"


def test_a_graph_of_two_queries_persists_its_source(tmp_path: Path) -> None:
    rows = updates(400, keys=3)
    files = tmp_path / "in"
    files.mkdir()
    pq.write_table(rows, files / "0.parquet")
    source = {
        "type": "files",
        "format": "parquet",
        "path": str(files),
        "schema": "k STRING, t BIGINT, v DOUBLE",
    }
    windows = pipeline(tmp_path, **WINDOW | {"persist": "always", "source": source})
    run_to_end(windows)
    assert [path.name for path in sorted((tmp_path / "checkpoint" / "queries").iterdir())] == [
        "ingest-source", "results",
    ]  # fmt: skip
    got = [row | {"w": int(row["window"]["start"].timestamp())} for row in out(tmp_path)]
    assert sorted_rows(got, "k", "w", "n", "mean", "most") == query(COUNTED, rows)


def test_an_upsert_keeps_a_table_up_to_date(tmp_path: Path) -> None:
    rows = updates(300)
    append(tmp_path / "in", rows)
    sink = {
        "type": "upsert", "to": f"sqlite:///{tmp_path}/t.db", "table": "newest", "create": True,
        "delete_when": "v < 10",
    }  # fmt: skip
    run_to_end(pipeline(tmp_path, queue=QUEUE, sink=sink))
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        found = connection.execute("SELECT k, t, v FROM newest ORDER BY k").fetchall()
    assert found == [row for row in newest(rows) if row[2] >= 10]


def test_hints_fit_a_pipeline_in_yaml(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(3))
    sink = {"type": "upsert", "to": f"sqlite:///{tmp_path}/t.db", "table": "newest"}
    with pytest.raises(InvalidUsageError, match="Hint: create the table, or set create to true"):
        run_to_end(pipeline(tmp_path, queue=QUEUE, sink=sink))


def test_a_parquet_sink_writes_a_micro_batch_once(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(300))
    sink = {"type": "parquet", "path": str(tmp_path / "files")}
    queue = pipeline(tmp_path, queue=QUEUE | {"budget": 8}, sink=sink)
    running = open_pipeline(queue)
    with _failpoints.armed({"local.after_write": "error"}), pytest.raises(_failpoints.InjectedError):
        running.step()
    run_to_end(queue)
    files = sorted((tmp_path / "files").glob("part-*.parquet"))
    rows = pa.concat_tables([pq.read_table(file) for file in files])
    assert sorted_rows(rows.to_pylist(), "k", "t", "v") == newest(updates(300))
    logged = [entry["path"] for entry in EntryLog(tmp_path / "files" / "_spark_metadata").entries()]
    assert logged == [file.as_uri() for file in files]


def test_a_new_checkpoint_is_refused_before_a_sink_with_results_of_another(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(30))
    sink = {"type": "parquet", "path": str(tmp_path / "files")}
    queue = pipeline(tmp_path, queue=QUEUE, sink=sink)
    document = Document("q.yaml", {})
    check_places(queue, document)
    run_to_end(queue)
    assert (tmp_path / "files").stat().st_mode & 0o777 == 0o777 & ~umask(), (
        "others may read results, as of Spark"
    )
    check_places(queue, document)  # the checkpoint is there
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(PipelineError, match=r"sink.path: .*files holds the results of another checkpoint"):
        check_places(queue, document)
    shutil.rmtree(tmp_path / "files")
    check_places(queue, document)


def test_a_start_with_the_name_of_another_reader_creates_no_table(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(30))
    run_to_end(pipeline(tmp_path, queue=QUEUE))
    sink = {"type": "upsert", "to": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True}
    query = {"trigger": "available_now", "checkpoint": str(tmp_path / "other")}
    with pytest.raises(
        InvalidUsageError, match=r"already subscribed .* deletes the rows that only this reader"
    ):
        run_to_end(pipeline(tmp_path, queue=QUEUE, sink=sink, query=query))
    assert not (tmp_path / "t.db").exists()
    assert not (tmp_path / "other").exists()


def test_a_parquet_sink_skips_a_micro_batch_that_another_engine_wrote(tmp_path: Path) -> None:
    EntryLog(tmp_path / "_spark_metadata").add(0, [{"path": "file:///part", "action": "add"}])
    rows = updates(3)
    output = ParquetOutput(str(tmp_path), rows.schema, str(tmp_path))
    output.write(iter(rows.to_batches()), "query", 0)
    assert list(tmp_path.glob("*.parquet")) == []
    output.write(iter(rows.to_batches()), "query", 1)
    assert [pq.read_table(file).num_rows for file in tmp_path.glob("*.parquet")] == [3]


def test_a_log_of_files_is_compacted_as_spark_does(tmp_path: Path) -> None:
    log = EntryLog(tmp_path)
    for number in range(12):
        log.add(number, [{"path": f"file:///{number}", "batchId": number}])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9.compact",
    ]  # fmt: skip
    again = EntryLog(tmp_path)
    assert again.newest == 11
    assert [entry["batchId"] for entry in again.entries(7, 10)] == [8, 9, 10]


def _write_csv(path: Path, rows: pa.Table) -> None:
    path.write_text("k,t,v\n" + "".join(f"{r['k']},{r['t']},{r['v']}\n" for r in rows.to_pylist()))


def _write_json(path: Path, rows: pa.Table) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))


@pytest.mark.parametrize(
    ("format", "write", "options"),
    [
        ("csv", _write_csv, {"header": "true"}),
        ("json", _write_json, {}),
        ("parquet", lambda path, rows: pq.write_table(rows, path), {}),
    ],
)
def test_files_that_appear_are_read_once(
    tmp_path: Path, format: str, write: Callable[[Path, pa.Table], None], options: dict[str, str]
) -> None:
    rows = updates(100)
    (tmp_path / "files").mkdir()
    source = {
        "type": "files", "format": format, "path": str(tmp_path / "files"), "options": options,
        "schema": "k STRING, t BIGINT, v DOUBLE",
    }  # fmt: skip
    queue = pipeline(tmp_path, source=source, queue=QUEUE)
    write(tmp_path / "files" / "a", rows.slice(0, 60))
    assert run_to_end(queue).rows_in == 60
    write(tmp_path / "files" / "b", rows.slice(60))
    (tmp_path / "files" / "_hidden").write_text("no rows")
    assert run_to_end(queue).rows_in == 40
    last = {row["k"]: (row["k"], row["t"], row["v"]) for row in out(tmp_path)}
    assert sorted(last.values()) == newest(rows)


def test_times_of_files_without_a_zone_get_one(tmp_path: Path) -> None:
    schema = pa.schema({"t": pa.timestamp("us", "UTC")})
    file = tmp_path / "a.csv"
    file.write_text("2026-01-01T10:00:00Z\n2026-01-01 12:00:00+02:00\n")
    assert len(set(file_reader("csv", schema, {}, "UTC")(file)["t"].to_pylist())) == 1
    file.write_text("2026-01-01 10:00:00\n2026-01-01 09:00:00Z\n")
    nine, ten = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (9, 10))
    assert file_reader("csv", schema, {}, "UTC")(file)["t"].to_pylist() == [ten, nine]
    assert len(set(file_reader("csv", schema, {}, "Europe/Berlin")(file)["t"].to_pylist())) == 1


@pytest.mark.parametrize(
    ("zone", "is_known"),
    [("Asia/Tokyo", True), ("+02:00", True), ("Europe/Belin", False), ("GMT+2", False), ("", False)],
)
def test_a_zone_that_the_engine_does_not_know_is_refused(tmp_path: Path, zone: str, is_known: bool) -> None:
    append(tmp_path / "in", updates(3))
    query = {"checkpoint": "checkpoint", "spark": {"spark.sql.session.timeZone": zone}}
    checked = pipeline(tmp_path, queue=QUEUE, query=query)
    expected = nullcontext() if is_known else pytest.raises(PipelineError, match="not know the time zone")
    with expected:
        check_local_pipeline(checked)


def test_a_file_that_does_not_fit_is_refused_without_its_values(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": ["secret"]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidUsageError, match="does not fit the schema") as caught:
        file_reader("parquet", pa.schema({"n": pa.int64()}), {}, "UTC")(tmp_path / "a.parquet")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("csv", 'a,1\nb,secret\nc,"1,000"\n'),
        ("json", '{"k": "a", "v": 1}\n{"k": "b", "v": "secret"}\n{"k": "c", "v": "1,000"}\n'),
    ],
)
def test_values_of_a_table_that_do_not_fit_are_null_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, format: str, text: str
) -> None:
    (tmp_path / "a").write_text(text)
    schema = pa.schema({"k": pa.string(), "v": pa.decimal128(38, 2)})
    rows = file_reader(format, schema, {}, "UTC")(tmp_path / "a").to_pylist()
    assert rows == [{"k": "a", "v": 1}, {"k": "b", "v": None}, {"k": "c", "v": 1000}]
    assert caplog.messages == [
        f"records do not fit the schema, and have nulls [file={tmp_path / 'a'} records=1]"
    ]


def test_metrics_are_offered_to_prometheus_and_sent_to_opentelemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(opentelemetry, "otlp_provider", lambda: MeterProvider([reader]))
    servers: list[PrometheusServer] = []
    start = PrometheusServer.__init__

    def note(server: PrometheusServer, host: str, port: int) -> None:
        start(server, host, 0)  # a free port
        servers.append(server)

    monkeypatch.setattr(PrometheusServer, "__init__", note)
    seen: list[str] = []

    def scrape(batch: object) -> None:
        with urllib.request.urlopen(servers[0].url) as answer:
            seen.append(answer.read().decode())
        seen.append(str(reader.get_metrics_data()))

    checkpoint = str(tmp_path / "checkpoint")
    query = {
        "name": "q", "checkpoint": checkpoint, "trigger": "available_now",
        "prometheus": 9, "opentelemetry": True,
    }  # fmt: skip
    files = {"type": "files", "format": "parquet", "path": str(tmp_path / "files")}
    (tmp_path / "files").mkdir()
    pq.write_table(updates(300), tmp_path / "files" / "0.parquet")
    run_to_end(pipeline(tmp_path, queue=QUEUE, query=query, source=files), scrape)
    assert 'penstock_rows_in_total{operator="queue",query="q"} 300.0' in seen[0]
    assert "penstock.staleness.application" in seen[1]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(servers[0].url)


RATE = {"key": "value", "time": "timestamp"}
ANSI = {"spark.sql.ansi.enabled": "false"}


@pytest.mark.parametrize(
    ("sections", "place", "fact"),
    [
        ({"source": {"type": "rate"}, "queue": RATE}, "source.type", "no source rate"),
        ({"sink": {"type": "spark", "format": "delta"}}, "sink.type", "no sink spark"),
        ({"sink": {"type": "foreach_batch", "function": "a:b"}}, "sink.type", "no sink foreach_batch"),
        ({"filter": "upper(reverse(k)) = 'A'"}, "filter", "cannot evaluate upper(reverse(k)) = 'A'"),
        ({"query": {"checkpoint": "c", "spark": ANSI}}, "query.spark", "spark.sql.ansi.enabled"),
    ],
)
def test_what_it_cannot_run_is_refused_with_a_hint(
    tmp_path: Path, sections: dict[str, Any], place: str, fact: str
) -> None:
    append(tmp_path / "in", updates(3))
    with pytest.raises(PipelineError) as caught:
        check_local_pipeline(pipeline(tmp_path, **({"queue": QUEUE} | sections)))
    (problem,) = caught.value.problems
    assert fact in problem
    assert place.partition(".")[0] in problem
    assert problem.endswith("Hint: use engine: spark.")


def test_a_state_that_is_gone_is_refused_at_the_start_even_without_new_rows(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(30))
    queue = pipeline(tmp_path, queue=QUEUE)
    run_to_end(queue)
    assert run_to_end(queue).batches == 0
    shutil.rmtree(tmp_path / "checkpoint" / "state")
    with pytest.raises(CorruptDataError, match=r"the state of this checkpoint is missing.*operator\.punit"):
        run_to_end(queue)


def test_an_error_of_records_names_the_pipelines_line_and_counts_bad_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in", "a.csv").write_text("a,soon\nb,soon\nc,2026-01-01T10:00:00Z\n")
    Path("p.yaml").write_text(
        "engine: local\n"
        "source: {type: files, format: csv, path: in, schema: 'k string, t timestamp'}\n"
        "queue: {key: k, time: t}\n"
        "sink: {type: noop}\n"
        "query: {trigger: available_now, checkpoint: checkpoint}\n"
    )
    result = CliRunner().invoke(app, ["run", "p.yaml"])
    assert result.exit_code == 1
    assert re.search(r"null \(or NaN\) key.*bad_records=2", result.stderr)
    result = CliRunner().invoke(app, ["run", "p.yaml", "--set", "source.on_error=fail"])
    assert re.search(r"cannot be read.*: source=source file=\S+a\.csv .*pipeline=p\.yaml:2\.", result.stderr)


def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(3))
    run_to_end(pipeline(tmp_path, queue=QUEUE))
    with pytest.raises(InvalidUsageError, match=r"belongs to another graph.*Hint: undo the change"):
        run_to_end(pipeline(tmp_path, queue=QUEUE | {"policy": "fifo"}))
    with pytest.raises(
        InvalidUsageError,
        match=r"number of buckets: .*Hint: set it to 1 .*, or start with a new checkpoint \(.* files\)\.$",
    ):
        append(tmp_path / "in", updates(3, first=3))
        run_to_end(pipeline(tmp_path, queue=QUEUE | {"buckets": 7}))


def test_check_finds_another_number_of_buckets_than_the_local_engines_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    append(tmp_path / "in", updates(3))
    Path("p.yaml").write_text(
        "source: {type: pstream, path: in}\n"
        "queue: {key: k, time: t}\n"
        "sink: {type: noop}\n"
        "query: {trigger: available_now, checkpoint: checkpoint}\n"
    )
    local = ["p.yaml", "--engine", "local"]
    assert CliRunner().invoke(app, ["run", *local, "--set", "queue.buckets=8"]).exit_code == 0
    result = CliRunner().invoke(app, ["check", *local])
    assert result.exit_code == 2
    assert "another number of buckets: operator=queue was=8 now=1 " in result.stderr
    for same in ("queue.buckets=8", 'query.spark={"spark.sql.shuffle.partitions": "8"}'):
        assert CliRunner().invoke(app, ["check", *local, "--set", same]).exit_code == 0


@pytest.mark.parametrize(
    ("format", "line"),
    [("json", '{"k": "a", "t": "2026-01-01T00:00:00Z"}'), ("csv", "a,2026-01-01T00:00:00Z")],
)
def test_a_checkpoint_shows_the_plan_that_explain_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in", f"a.{format}").write_text(f"{line}\n")
    Path("p.yaml").write_text(
        "engine: local\n"
        f"source: {{type: files, format: {format}, path: in, schema: 'k string, t timestamp'}}\n"
        "window: {time: t, size: 1 h}\n"
        "group_by: [k]\n"
        "aggregates: {n: count(*)}\n"
        "sink: {type: noop}\n"
        "query: {trigger: available_now, checkpoint: checkpoint}\n"
    )
    assert CliRunner().invoke(app, ["run", "p.yaml", "--no-progress"]).exit_code == 0
    shown = CliRunner().invoke(app, ["inspect", "graph", "checkpoint"]).stdout
    explained = CliRunner().invoke(app, ["explain", "p.yaml"]).stdout
    assert "source source (files, replayable)" in explained
    assert explained.strip() in shown
    assert json.loads(CliRunner().invoke(app, ["inspect", "graph", "checkpoint", "--json"]).stdout)[
        "plan"
    ] == (json.loads(CliRunner().invoke(app, ["explain", "p.yaml", "--json"]).stdout))
    assert CliRunner().invoke(app, ["run", "p.yaml", "--no-progress"]).exit_code == 0, "it starts again"


def test_state_has_the_name_of_its_query_as_on_spark(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(30))
    location = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now"}
    queue = pipeline(tmp_path, queue=QUEUE, query=location | {"name": "orders"})
    run_to_end(queue)
    command = ["inspect", "state", str(tmp_path / "checkpoint" / "state"), "--json"]
    (bucket,) = json.loads(CliRunner().invoke(app, command).stdout)["buckets"]
    assert bucket["query_name"] == "orders"
    append(tmp_path / "in", updates(30, first=30))
    renamed = pipeline(tmp_path, queue=QUEUE, query=location | {"name": "results"})
    assert run_to_end(renamed).batches == 1, "a checkpoint with another name starts"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "was", "now"),
    [
        ({}, {"budget": 5}, "none", "some"),
        ({"budget": 5}, {}, "some", "none"),
        ({}, {"freshness": {"p95": "1 s"}}, "none", "some"),
    ],
)
def test_a_new_or_removed_budget_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, after: Any, was: str, now: str, fails: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    append(tmp_path / "in", updates(30))
    with monkeypatch.context() as patched, pytest.raises(OSError) if fails else nullcontext():
        if fails:  # the only micro-batch is planned but not committed
            patched.setattr(QueryLog, "commit", fail)
        run_to_end(pipeline(tmp_path, queue=QUEUE | before))
    with pytest.raises(InvalidUsageError, match=f'another budget: operator=queue was="{was}" now="{now}"'):
        open_pipeline(pipeline(tmp_path, queue=QUEUE | after))
    shutil.rmtree(tmp_path / "checkpoint" / "state")
    with pytest.raises(InvalidUsageError, match=r"another number of sources.*a budget counts as a source"):
        open_pipeline(pipeline(tmp_path, queue=QUEUE | after))


def test_old_files_of_a_checkpoint_are_deleted(tmp_path: Path) -> None:
    log = QueryLog(str(tmp_path), 2, kept_batches=3)
    for batch in range(10):
        log.plan(batch, [{"row": batch}])
        log.commit(
            batch, {label: Pointer(Version(batch + 1), FileId("f" * 32)) for label in bucket_labels(4)}, ()
        )
    for name in ("offsets", "commits"):
        assert sorted(int(path.name) for path in (tmp_path / name).iterdir()) == [7, 8, 9]
    assert len(list((tmp_path / "state" / "0" / "0").glob("*.snapshot"))) <= 4
    assert len(QueryLog(str(tmp_path), 2).pointers(4)) == 4


def test_the_command_runs_a_pipeline_on_the_engine_that_it_names(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(50))
    file = tmp_path / "p.yaml"
    document = pipeline(tmp_path, queue=QUEUE).model_dump(mode="json", by_alias=True, exclude_unset=True)
    del document["engine"]
    file.write_text(json.dumps(document))
    ran = CliRunner().invoke(app, ["run", str(file), "--engine", "local", "--no-progress"])
    assert ran.exit_code == 0, ran.output
    assert "1 batch, " in ran.output
    assert len(out(tmp_path)) == len(newest(updates(50)))
    refused = CliRunner().invoke(app, ["run", str(file), "--engine", "local", "--master", "yarn"])
    assert refused.exit_code == 2
    assert "takes no settings of Spark" in refused.output
    wrong = CliRunner().invoke(app, ["run", str(file), "--engine", "loca"])
    assert wrong.exit_code == 2
    assert "--engine loca: engine: 'loca' is not one of spark, local" in wrong.output


def test_the_memory_sink_keeps_the_rows(tmp_path: Path) -> None:
    append(tmp_path / "in", updates(50))
    running = open_pipeline(pipeline(tmp_path, queue=QUEUE, sink={"type": "memory"}))
    running.run_available()
    output = running.queries[-1].output
    assert isinstance(output, MemoryOutput)
    assert sorted_rows(output.table().to_pylist(), "k", "t", "v") == newest(updates(50))
