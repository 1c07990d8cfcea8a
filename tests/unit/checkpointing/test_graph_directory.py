"""The directory of a running graph: documents, Spark's logs, facts, recovery, and `inspect graph`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import _clock
from penstock.checkpointing.graph.directory import GraphDirectory, QueryProgress
from penstock.checkpointing.graph.facts import Markers, facts_of
from penstock.checkpointing.graph.waiting import find_waiting_since_ms
from penstock.cli import app
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.spark_ext.graph.recovery import GraphRecovery, QueryStreams
from tests.checkpoints.graph_directories import offset, write_graph, write_logs


class Ticks:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def recover(place: Path) -> GraphRecovery:
    """Recover the graph of `write_graph`."""
    queries = [
        QueryStreams("ingest-numbers", ()),
        QueryStreams("results", (str(place / "p-streams" / "numbers"),)),
    ]
    return GraphRecovery("sums", GraphDirectory(place), queries, Ticks())


def test_of_documents_the_newest_counts_and_is_alone(tmp_path: Path) -> None:
    directory = GraphDirectory(tmp_path)
    assert directory.newest("graph") is None
    for name in ("a", "b", "b"):
        directory.put("graph", {"name": name})
    directory.put("recovery", {"time_us": 1})
    assert directory.newest("graph") == {"format": 1, "name": "b"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "graph-00000001.json",
        "recovery-00000000.json",
    ]


def test_damaged_and_newer_documents_are_told(tmp_path: Path) -> None:
    directory = GraphDirectory(tmp_path)
    file = tmp_path / "graph-00000000.json"
    for content in ("{", "[]", "{}"):
        file.write_text(content)
        with pytest.raises(CorruptDataError, match=r"file=.*graph-00000000\.json"):
            directory.newest("graph")
    file.write_text('{"format": 2}')
    with pytest.raises(InvalidUsageError, match="format=2 known=1"):
        directory.newest("graph")


def test_a_relative_location_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert GraphDirectory("here").query("results") == str(tmp_path / "here/queries/results")
    assert GraphDirectory(f"file://{tmp_path}/there/").place("state") == f"file://{tmp_path}/there/state"


def test_the_progress_of_a_query_is_in_its_logs(tmp_path: Path) -> None:
    directory = GraphDirectory(tmp_path)
    assert directory.progress("results") == QueryProgress()
    stream = write_graph(tmp_path)
    progress = directory.progress("results")
    assert progress == QueryProgress("id of results", 2, 1, {stream.identity: 20})
    twice = [[offset(stream, 15), offset(stream, 12)]]
    write_logs(tmp_path, "twice", planned=twice, committed=0)
    assert directory.progress("twice").rows == {stream.identity: 12}, "of several readers the least counts"
    (tmp_path / "queries/twice/offsets/0").write_text("v7\n{}")
    with pytest.raises(CorruptDataError, match="version=v7"):
        directory.progress("twice")
    (tmp_path / "queries/results/metadata").write_text("{")
    with pytest.raises(CorruptDataError, match="metadata is damaged"):
        directory.progress("results")


def test_a_planned_micro_batch_that_is_not_committed_is_as_old_as_its_plan(tmp_path: Path) -> None:
    directory = GraphDirectory(tmp_path)
    assert directory.interrupted_ms("results") is None
    plans: list[list[object]] = [[], []]
    write_logs(tmp_path, "results", planned=plans, committed=1)
    assert directory.interrupted_ms("results") is None
    write_logs(tmp_path, "again", planned=plans, committed=0)
    plan = tmp_path / "queries/again/offsets/1"
    plan.write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1234}\n-')
    assert directory.interrupted_ms("again") == 1234
    for damaged in ("", "v1", "v1\n{}", "v1\n[", "v1\n7", 'v1\n{"batchTimestampMs":"x"}'):
        plan.write_text(damaged)
        assert directory.interrupted_ms("again") is None


def test_rows_wait_since_the_plan_of_their_micro_batch_or_the_commit_of_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count(1)
    monkeypatch.setattr(_clock, "now_us", lambda: 1_000_000 * next(seconds))
    stream = write_graph(tmp_path / "graph")
    options = {"path": stream.files.location}
    stream.refresh()
    commits_ms = [commit.time_us // 1000 for commit in stream.log.commits]
    assert len(set(commits_ms)) == 3

    def since(
        planned: Sequence[Sequence[object]], *, start: str | None = None, committed: int = 0
    ) -> int | None:
        place = tmp_path / f"{len(planned)}-{start}-{committed}"
        write_logs(place, "results", planned=planned, committed=committed)
        given = options | ({} if start is None else {"start": start})
        return find_waiting_since_ms(GraphDirectory(place), "results", [given])

    assert since([[offset(stream, 10)]]) == commits_ms[1]
    assert since([[offset(stream, 15)]]) == commits_ms[1]
    assert since([[offset(stream, 30)]]) is None
    assert since([], committed=-1) == commits_ms[0]
    assert since([], start="latest", committed=-1) is None
    assert since([[offset(stream, 20)]], start="latest") == commits_ms[2]
    # A planned micro-batch is older than all rows that it does not have.
    plan = tmp_path / "graph/queries/results/offsets/2"
    plan.write_text(plan.read_text().replace('{"batchWatermarkMs": 0', '{"batchTimestampMs": 1234'))
    assert find_waiting_since_ms(GraphDirectory(tmp_path / "graph"), "results", [options]) == 1234


def test_facts_tell_offsets_lag_and_markers(tmp_path: Path) -> None:
    write_graph(tmp_path)
    facts = facts_of(GraphDirectory(tmp_path))
    (stream,) = facts.streams
    (reader,) = stream.readers
    assert (stream.start, stream.end, stream.commits, stream.retained) == (0, 30, 3, 3)
    assert (reader.released, reader.committed, reader.lag) == (10, 20, 10)
    assert facts.markers == Markers(retain=3, checkpoint=2, release=1)
    assert [(one.planned, one.committed) for one in facts.queries] == [(2, 2), (2, 1)]
    with pytest.raises(InvalidUsageError, match="not the checkpoint of a graph"):
        facts_of(GraphDirectory(tmp_path / "queries"))
    for commit in (tmp_path / "queries/results/commits").iterdir():
        commit.unlink()
    ((reader,),) = (stream.readers for stream in facts_of(GraphDirectory(tmp_path)).streams)
    assert (reader.committed, reader.lag) == (10, 20), "rows before the subscription's first row do not wait"


def test_a_recovery_has_four_phases_that_are_timed_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_graph(tmp_path)
    with caplog.at_level(logging.INFO):
        recovery = recover(tmp_path)
        assert recovery.report is None, "rows are to be replayed"
        recovery.record_commit(2)
        recovery.record_commit(3)
    phases = ["progress recovery", "upstream requesting", "data recovery", "upstream replay"]
    assert [record.message.partition(" [")[0] for record in caplog.records] == phases
    assert "rows=10" in caplog.text
    report = recovery.report
    assert report is not None
    assert (report.checkpoint, report.units_loaded) == (1, 1)
    assert report.upstream_replay_s == 1.0
    document = GraphDirectory(tmp_path).newest("recovery")
    assert document is not None
    assert document["phases_s"] == dict.fromkeys(phases, 1.0)
    assert document["rows_replayed"] == 10


def test_a_recovery_with_nothing_to_replay_ends_at_once(tmp_path: Path) -> None:
    write_graph(tmp_path, commits=2, planned=1, committed=1)
    assert recover(tmp_path).report is not None


def test_what_a_recovery_needs_and_is_gone_is_told(tmp_path: Path) -> None:
    stream = write_graph(tmp_path)
    for segment in (tmp_path / "p-streams/numbers/segments").iterdir():
        content = segment.read_bytes()
        segment.write_bytes(content[:-1])
    with pytest.raises(CorruptDataError, match="a segment of a p-stream is missing or cut"):
        recover(tmp_path)
    stream.trim_from("sums", 30)
    stream.trim(now=True)
    with pytest.raises(
        CorruptDataError, match=r"needs rows that the p-stream has released.* needed=20 start=30"
    ):
        recover(tmp_path)


def test_the_command_shows_a_graph_without_spark(tmp_path: Path) -> None:
    write_graph(tmp_path)
    runner = CliRunner()
    shown = runner.invoke(app, ["inspect", "graph", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "markers: 3 retain, 2 checkpoint, 1 release" in shown.output
    assert "last recovery: none" in shown.output
    recover(tmp_path).record_commit(2)
    shown = runner.invoke(app, ["inspect", "graph", str(tmp_path)])
    assert re.search(
        r"query\s+\W\s+writes\s+\W\s+last planned batch\s+\W\s+last committed batch", shown.stdout
    )
    assert "10 rows replayed; progress recovery 1.000 s" in shown.output
    document = json.loads(runner.invoke(app, ["inspect", "graph", str(tmp_path), "--json"]).stdout)
    assert document["streams"][0]["readers"][0]["lag"] == 10
    assert document["recovery"]["checkpoint"] == 1
    nothing = runner.invoke(app, ["inspect", "graph", str(tmp_path / "nowhere")])
    assert nothing.exit_code == 2
    assert "not the checkpoint of a graph" in nothing.output
