"""Replays of recorded micro-batches: what differs, what another policy would have done, what is gone."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from penstock import _failpoints
from penstock._clock import SimulatedClock
from penstock.checkpointing.files import open_files
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.checkpointing.p_unit import PUnit, encode
from penstock.cli import app
from penstock.conf.pipeline import load_document
from penstock.errors import InvalidUsageError
from penstock.jobs.local.pipeline import Places, open_pipeline
from penstock.jobs.pipelines.databases import databases_in
from penstock.jobs.pipelines.run import run_to_end
from penstock.jobs.replay.comparison import read_answers
from penstock.jobs.replay.query import HeldAnswers, open_query
from penstock.jobs.replay.recording import Checkpoint, Recording
from penstock.jobs.replay.run import Replay
from penstock.local_engine import operators
from penstock.local_engine.query import LocalBatch
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.procedures.requests.messages import ANSWERS
from penstock.spark_ext.sources.p_stream_options import WriteOptions
from penstock.spark_ext.sources.p_stream_rows import SegmentRows
from penstock.spark_ext.sources.task_rows import TaskRows
from penstock.spark_ext.worker.bucket_task import BucketTask, _background
from penstock.spark_ext.worker.requests import AnswerWriter
from penstock.state_store.clock_record import _name
from penstock.state_store.descriptions import read_description
from penstock.state_store.location import SPECIFICATION_FILE
from tests.long_tests import long_but

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.int64()})
BUSY, QUIET = 4, 16
"""Keys with an update in each micro-batch, and keys with one in four."""


def rows_of(number: int) -> pa.Table:
    """Return the rows of a micro-batch."""
    keys = [f"busy{n}" for n in range(BUSY)]
    keys += [f"quiet{n}" for n in range(QUIET) if (n + number) % 4 == 0]
    return pa.table({"k": keys, "t": [number] * len(keys), "v": range(len(keys))}, SCHEMA)


class Run:
    """A pipeline that ran for some micro-batches, with a clock of its own."""

    def __init__(self, place: Path, **sections: Any) -> None:
        self.place = place
        self.clock = SimulatedClock(1_800_000_000_000_000)
        document = {
            "engine": "local",
            "source": {"type": "pstream", "path": str(place / "in")},
            "queue": {"key": "k", "time": "t", "policy": "linecutting", "budget": 4, "buckets": 2},
            "sink": {"type": "pstream", "path": str(place / "out")},
            "query": {"checkpoint": str(place / "checkpoint"), "metrics": str(place / "metrics.jsonl")},
        } | sections
        self.file = place / "pipeline.yaml"
        self.file.write_text(json.dumps(document))

    def go(self, batches: range) -> Run:
        """Run micro-batches a second apart, and write their metrics."""
        from penstock.jobs.local.run import _MetricsFile

        loaded, document = load_document(self.file)
        PStream(self.place / "in", SCHEMA).subscribe("replay")
        running = open_pipeline(loaded, document, Places(clock=self.clock))
        metrics = _MetricsFile(loaded)

        def note(done: LocalBatch) -> None:
            metrics.write(done)

        for number in batches:
            with PStreamWriter(self.place / "in", SCHEMA, threads=1) as writer:
                writer.append(rows_of(number))
            self.clock.advance(1_000_000)
            assert running.step(note)
        return self

    def replay(self, *arguments: str) -> Result:
        command = ["replay", str(self.place / "checkpoint"), "--pipeline", str(self.file), *arguments]
        return CliRunner().invoke(app, command, catch_exceptions=False)

    def found(self, *arguments: str) -> Any:
        result = self.replay("--json", *arguments)
        assert result.exit_code in (0, 1), result.output
        return json.loads(result.stdout)

    def recording(self) -> Recording:
        loaded, document = load_document(self.file)
        opened = Checkpoint.open(str(self.place / "checkpoint"))
        return open_query(loaded, document, opened, str(self.place / "unused")).recording


class Ticking(SimulatedClock):
    """A clock that moves by a millisecond each time it is read."""

    def __init__(self) -> None:
        super().__init__(1_800_000_000_000_000)

    def __call__(self) -> int:
        self.advance(1000)
        return super().__call__()


def digests(place: Path) -> dict[str, str]:
    files = [path for path in place.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module", autouse=True)
def _unsynced() -> Iterator[None]:
    """Skip syncs: durability has other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr("penstock._durable.sync_file_system", lambda path: None)
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run")).go(range(12))


@pytest.mark.parametrize("policy", long_but(["fifo", "linecutting", "freshest"], "fifo"))
def test_recorded_micro_batches_run_again_as_they_were_and_nothing_is_written(
    tmp_path: Path, policy: str
) -> None:
    queue = {"key": "k", "time": "t", "policy": policy, "budget": 4, "buckets": 2}
    run = Run(tmp_path, queue=queue).go(range(8))
    stream = PStream(tmp_path / "in")
    for reader in stream.readers().keys() - {"replay"}:
        stream.unsubscribe(reader)  # a replay does not subscribe it again
    before = digests(tmp_path)
    found = run.found("--from", "3", "--to", "6")
    assert digests(tmp_path) == before
    assert [one["batch"] for one in found] == [3, 4, 5, 6]
    assert [one["differences"] for one in found] == [[]] * 4
    compared = {"rows", "state", "counts"} | ({"staleness"} if policy != "fifo" else set())
    assert all(set(one["compared"]) == compared for one in found)
    assert {one["rows_out"] for one in found} == {4}
    assert run.replay("--from", "3", "--to", "6").exit_code == 0


def test_staleness_is_that_of_the_metrics_file(ran: Run) -> None:
    lines = [json.loads(line) for line in (ran.place / "metrics.jsonl").read_text().splitlines()]
    theirs = {line["batch_id"]: line["application_staleness_ms"] for line in lines}
    for one in ran.found("--from", "5"):
        assert one["staleness_ms"] == pytest.approx(theirs[one["batch"]])
        assert one["staleness_ms"]["p95"] > 1000


def test_a_changed_operator_shows_a_difference(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = UpdateQueue.enqueue

    def forget(queue: UpdateQueue, arrivals: Arrivals, now_us: int) -> Any:
        """Lose the last arrival."""
        return enqueue(queue, arrivals.take(np.arange(len(arrivals) - 1)), now_us)

    monkeypatch.setattr(UpdateQueue, "enqueue", forget)
    result = ran.replay("--from", "6", "--to", "7")
    assert result.exit_code == 1
    assert "2 of 2 micro-batches differ, the first is 6" in result.output
    found = ran.found("--from", "6", "--to", "7")
    first = {one["what"]: (one["recorded"], one["replayed"]) for one in found[0]["differences"]}
    assert first["rows_in"] == (8, 6)
    assert "state" in first


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path).go(range(3))
    assert "not compared" not in run.replay().output
    for name in ("out", "metrics.jsonl"):
        (tmp_path / name).rename(tmp_path / f"{name}.gone")
    told = run.replay()
    assert told.exit_code == 0
    assert "rows of 3 micro-batches are not compared: the sink no longer has them" in told.output
    assert "counts of 3 micro-batches are not compared: the metrics file lacks them" in told.output


def test_a_replay_has_the_buckets_of_the_recording(tmp_path: Path) -> None:
    query = {"checkpoint": str(tmp_path / "checkpoint"), "spark": {"spark.sql.shuffle.partitions": "3"}}
    queue = {"key": "k", "time": "t", "policy": "fifo", "budget": 4}
    Run(tmp_path, queue=queue, query=query).go(range(2))
    run = Run(tmp_path, queue=queue, query={"checkpoint": query["checkpoint"]})
    assert [one["differences"] for one in run.found()] == [[], []]
    # An earlier pipeline had another operator, with other buckets.
    (state,) = (tmp_path / "checkpoint" / "state").iterdir()
    other = open_files(str(state / "earlier"))
    described = read_description(open_files(str(state / "queue")))
    assert described is not None
    assert described["buckets"] == 3
    other.publish(SPECIFICATION_FILE, encode(PUnit("operator", {**described, "buckets": 5})))
    assert [one["differences"] for one in run.found()] == [[], []]


def test_a_replay_serves_as_long_as_the_recording_on_more_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = {"checkpoint": str(tmp_path / "checkpoint"), "spark": {"spark.sql.shuffle.partitions": "4"}}
    window = WINDOWS["window"] | {"budget": "4 ms"}
    run = Run(tmp_path, **WINDOWS | {"window": window, "query": query})
    run.clock = Ticking()

    def on_four_processors(*facts: Any, **given: Any) -> BucketTask[Any]:
        return BucketTask(*facts, **given | {"processors": 4})

    with monkeypatch.context() as patch:
        patch.setattr(operators, "BucketTask", on_four_processors)
        run.go(range(8))
    found = run.found("--from", "3")
    assert [one["differences"] for one in found] == [[]] * 5
    assert any(one["waiting_keys"] for one in found)


def test_a_changed_pipeline_shows_its_rows(ran: Run) -> None:
    result = ran.replay("--from", "6", "--to", "6", "--set", "results={filter: v < 2}")
    assert result.exit_code == 1
    assert "rows: " in result.output
    assert "6 rows - k='" in result.output
    found = ran.found("--from", "6", "--to", "6", "--set", "results={filter: v < 2}")
    assert {one["what"] for one in found[0]["differences"]} == {"rows"}


@pytest.mark.parametrize("policy", long_but(["fifo", "in_place", "freshest"], "freshest"))
def test_another_policy_is_answered_as_if_it_had_run(tmp_path: Path, policy: str) -> None:
    """The oracle is a run of that policy from the first micro-batch on, at the same times."""
    for name in "ab":
        (tmp_path / name).mkdir()
    run = Run(tmp_path / "a").go(range(8))
    queue = {"key": "k", "time": "t", "policy": policy, "budget": 4, "buckets": 2}
    other = Run(tmp_path / "b", queue=queue).go(range(8))
    answer = run.found("--from", "0", "--policy", policy)
    assert list(answer) == ["linecutting", policy]
    lines = [json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()]
    for ours, theirs in zip(answer[policy]["batches"], lines, strict=True):
        assert ours["staleness_ms"] == pytest.approx(theirs["application_staleness_ms"])
        assert ours["waiting_keys"] == theirs["waiting_keys"]
        assert ours["conflated"] == theirs["conflated"]
    assert other.found()[0]["batch"] == 0


def test_another_policy_begins_with_the_keys_that_waited(ran: Run) -> None:
    answer = ran.found("--from", "6", "--policy", "fifo")
    before = ran.found("--from", "5", "--to", "5")[0]["waiting_keys"]
    assert before > 4
    for name in ("linecutting", "fifo"):
        first = answer[name]["batches"][0]
        assert first["waiting_keys"] >= before - 4
        assert first["rows_out"] == 4
    # Busy keys starve quiet ones less if they lose their places with each update.
    assert answer["fifo"]["staleness_ms"] != answer["linecutting"]["staleness_ms"]
    shown = ran.replay("--from", "6", "--policy", "fifo")
    assert "linecutting (recorded)" in shown.output
    assert shown.exit_code == 0


WINDOWS: dict[str, Any] = {
    "queue": None, "group_by": ["k"], "aggregates": {"n": "count(*)", "sum": "sum(v)"},
    "window": {"time": "t", "unit": "s", "size": "3 s", "slide": "1 s", "mode": "lazy", "budget": 2},
}  # fmt: skip


@pytest.mark.parametrize("late", [{}, {"late_to": "late"}])
def test_windows_over_files_that_the_local_engine_ran_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    document = {
        "engine": "local",
        "source": {"type": "files", "format": "json", "path": "in", "schema": "k string, t timestamp"},
        "window": {"time": "t", "size": "1 minute"} | late,
        "group_by": ["k"],
        "aggregates": {"n": "count(*)"},
        "sink": {"type": "pstream", "path": "out"},
        "query": {"checkpoint": "checkpoint", "trigger": "available_now"},
    }
    Path("pipeline.yaml").write_text(json.dumps(document))
    for number, minute in enumerate((0, 9, 1, 20)):
        Path(f"in/{number}.json").write_text(json.dumps({"k": "a", "t": f"2026-01-01T00:{minute:02}:00Z"}))
        assert CliRunner().invoke(app, ["run", "pipeline.yaml"]).exit_code == 0
    before = digests(tmp_path)
    replayed = CliRunner().invoke(app, ["replay", "checkpoint", "--pipeline", "pipeline.yaml", "--json"])
    assert replayed.exit_code == 0, replayed.output
    assert digests(tmp_path) == before
    found = json.loads(replayed.stdout)
    assert [one["differences"] for one in found] == [[]] * len(found)
    assert sum(one["rows_out"] for one in found) == 2


def windows_by(policy: str) -> dict[str, Any]:
    return WINDOWS | {"window": WINDOWS["window"] | {"policy": policy}}


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fifo", "in_place", "freshest"])
def test_another_policy_of_windows_is_answered_as_if_it_had_run(tmp_path: Path, policy: str) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    run = Run(tmp_path / "a", **windows_by("linecutting")).go(range(8))
    other = Run(tmp_path / "b", **windows_by(policy)).go(range(8))
    answer = run.found("--from", "0", "--policy", policy)
    assert list(answer) == ["linecutting", policy]
    lines = [json.loads(line) for line in (other.place / "metrics.jsonl").read_text().splitlines()]
    assert any(line["waiting_keys"] for line in lines)
    for ours, theirs in zip(answer[policy]["batches"], lines, strict=True):
        assert ours["staleness_ms"] == pytest.approx(theirs["application_staleness_ms"])
        assert (ours["waiting_keys"], ours["rows_out"]) == (theirs["waiting_keys"], theirs["rows_out"])


@pytest.mark.parametrize("weight", long_but([None, "v"], None))
def test_windows_that_wait_line_up_for_another_policy(tmp_path: Path, weight: str | None) -> None:
    """Without weights in_place serves by the oldest update, so in_place to in_place is no change."""
    sections = windows_by("in_place")
    if weight is not None:
        sections |= {"projection": ["k", "t", "v + 1 AS v"]}
        sections["window"] = sections["window"] | {"weight": weight}
    run = Run(tmp_path, **sections).go(range(10))
    loaded, document = load_document(run.file)
    opened = Checkpoint.open(str(run.place / "checkpoint"))
    recorded = open_query(loaded, document, opened, str(tmp_path / "same"))
    numbers = recorded.recording.choose(6, None)
    same = list(Replay(recorded, recorded, str(tmp_path / "same")).run(numbers))
    query = open_query(loaded, document, opened, str(tmp_path / "changed"))
    changed = list(Replay(query, recorded, str(tmp_path / "changed"), Policy.IN_PLACE).run(numbers))
    assert same[0].metrics.waiting_keys > 0
    if weight is None:
        assert [one.results for one in changed] == [one.results for one in same]
    for name in ("linecutting", "freshest"):
        answer = run.found("--from", "6", "--policy", name)
        totals = {policy: one["batches"][0]["rows_out"] for policy, one in answer.items()}
        assert totals == {"in_place": 2, name: 2}


def test_what_is_collected_is_named_with_what_can_be_replayed(tmp_path: Path) -> None:
    run = Run(tmp_path).go(range(6))
    recording = run.recording()
    assert list(recording.ranges()) == [(0, 5)]
    label, pointer = next(iter(recording.batch(2).before.items()))
    files = recording.store(label).files
    (Path(files.location) / _name(pointer)).unlink()
    with pytest.raises(InvalidUsageError, match=r"the record of its clock is collected") as caught:
        run.recording().choose(1, 4)
    assert caught.value.context["batch"] == 2
    assert caught.value.context["replayable"] == "0 to 1, 3 to 5"
    assert [one["batch"] for one in run.found()] == [3, 4, 5]
    (Path(files.location) / recording.batch(4).before[label].file_name).unlink()
    assert list(run.recording().ranges()) == [(0, 1), (3, 5)]
    with pytest.raises(InvalidUsageError, match="versions of the state before it are collected"):
        run.recording().choose(4, None)
    assert run.replay("--from", "9").exit_code == 2


def test_released_rows_are_named(tmp_path: Path) -> None:
    run = Run(tmp_path).go(range(4))
    stream = PStream(tmp_path / "in")
    stream.trim_from("replay", rows_of(0).num_rows + 1)
    stream.trim_from(next(name for name in stream.readers() if name != "replay"), stream.end)
    PStream(tmp_path / "in").trim(now=True)
    result = run.replay("--from", "0")
    assert result.exit_code == 2
    assert "rows of its p-stream are released" in result.output
    assert run.replay().exit_code == 0


@pytest.mark.long
def test_retained_versions_keep_micro_batches_replayable(tmp_path: Path) -> None:
    kept: dict[int, list[tuple[int, int]]] = {}
    for versions in (2, 60):
        place = tmp_path / str(versions)
        place.mkdir()
        query = {"checkpoint": str(place / "checkpoint"), "retain_versions": versions}
        run = Run(place, query=query).go(range(40))
        _background().submit(int).result()  # sweeps are done in order
        kept[versions] = list(run.recording().ranges())
    assert kept[60] == [(0, 39)]
    assert kept[2][-1][1] == 39
    assert kept[2][0][0] > 10


def test_files_windows_and_an_earlier_crash_are_replayed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = {"type": "files", "format": "parquet", "path": str(tmp_path / "in"),
              "schema": "k STRING, t BIGINT, v BIGINT"}  # fmt: skip
    sections = {
        "source": source, "queue": None, "persist": "never",
        "window": {"time": "t", "unit": "s", "size": "3 s", "slide": "1 s", "watermark_delay": "0 s"},
        "group_by": ["k"], "aggregates": {"n": "count(*)", "total": "sum(v)"},
        "sink": {"type": "parquet", "path": str(tmp_path / "files")},
    }  # fmt: skip
    run = Run(tmp_path, **sections)
    document = json.loads(run.file.read_text())
    del document["queue"]
    run.file.write_text(json.dumps(document | {"query": document["query"] | {"trigger": "available_now"}}))
    loaded, _ = load_document(run.file)
    for number in range(6):
        pq.write_table(rows_of(number), tmp_path / "in" / f"{number}.parquet")
        if number == 3:
            with _failpoints.armed({"local.after_write": "error"}), pytest.raises(_failpoints.InjectedError):
                open_pipeline(loaded).step()
        run_to_end(loaded, lambda done: None)
    found = run.found("--from", "2")
    assert [one["differences"] for one in found] == [[]] * 4
    assert all("rows" in one["compared"] for one in found)
    assert sum(one["rows_out"] for one in found) > 10
    changed = run.found("--from", "4", "--set", "aggregates.total=sum(v) + 1")
    assert [one["what"] for one in changed[0]["differences"]] == ["rows"]
    (tmp_path / "in" / "2.parquet").unlink()
    assert "a file of its source is gone" in run.replay("--from", "2").output


BANK = """
import penstock

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")


@bank.procedure(returns="balance bigint")
def deposit(e, accounts):
    accounts[e.t].balance += e.v
    return accounts[e.t].balance
"""


def test_a_database_is_replayed_from_its_first_rows(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK)
    (tmp_path / "accounts.csv").write_text("id,balance\n" + "".join(f"{n},{100 * n}\n" for n in range(6)))
    accounts = {
        "format": "csv", "path": str(tmp_path / "accounts.csv"), "schema": "id LONG, balance LONG",
        "options": {"header": "true"},
    }  # fmt: skip
    database = {"file": str(tmp_path / "bank.py"), "procedure": "deposit", "keep": "k", "buckets": 2}
    run = Run(tmp_path, queue=None, database=database | {"initial": {"accounts": accounts}})
    document = json.loads(run.file.read_text())
    del document["queue"]
    run.file.write_text(json.dumps(document))
    run.go(range(4))
    for first in ("0", "2"):
        found = run.found("--from", first)
        assert [one["differences"] for one in found] == [[]] * (4 - int(first))
        assert all({"rows", "state", "counts"} <= set(one["compared"]) for one in found)
    asked = run.replay("--set", f"database.requests={tmp_path / 'requests'}")
    assert asked.exit_code == 2
    assert "there is no p-stream" in asked.output
    assert not (tmp_path / "requests").exists()


ASKED_BANK = """
import penstock

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")


@bank.procedure(event="t bigint, v bigint", returns="balance bigint")
def deposit(e, accounts):
    if e.t not in accounts:
        accounts.insert(id=e.t, balance=BONUS)
    accounts[e.t].balance += e.v
    return accounts[e.t].balance


@bank.procedure(event="id bigint", returns="balance bigint")
def balance(e, accounts):
    if e.id not in accounts:
        abort("no account")
    return accounts[e.id].balance
"""


def test_requests_run_again_in_their_order_and_no_client_gets_a_second_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bank.py").write_text(ASKED_BANK.replace("BONUS", "0"))
    requests = str(tmp_path / "requests")
    database = {"file": str(tmp_path / "bank.py"), "procedure": "deposit", "buckets": 2, "requests": requests}
    run = Run(tmp_path, queue=None, database=database)
    document = json.loads(run.file.read_text())
    del document["queue"]
    run.file.write_text(json.dumps(document))
    (bank,) = databases_in(tmp_path / "bank.py").values()
    with bank.connect(requests) as client:
        PStream(f"{requests}/requests").subscribe("replay")
        for number in range(5):
            client.send(f"first {number}", "balance", id=0)
            client.send(f"second {number}", "deposit", t=number, v=100)
            client.send(f"third {number}", "balance", id=number)
            if number:
                client.send(f"first {number - 1}", "balance", id=0)  # sent twice, answered from memory
            run.go(range(number, number + 1))
        assert client.wait("third 3") == {"balance": 100, "rejected": None}
        assert client.wait("first 0") == {"balance": None, "rejected": "no account"}
    _background().submit(int).result()
    before = digests(tmp_path)
    for first in ("0", "3"):
        found = run.found("--from", first)
        assert [one["differences"] for one in found] == [[]] * (5 - int(first))
        assert [one["requests"] for one in found] == [3, 4, 4, 4, 4][int(first) :]
        assert all({"rows", "answers", "state", "counts"} <= set(one["compared"]) for one in found)
    assert digests(tmp_path) == before
    with monkeypatch.context() as patch:
        patch.setattr(HeldAnswers, "publish", lambda *given: None)
        lost = run.found("--from", "3", "--to", "3")
        assert [(one["what"], one["recorded"]) for one in lost[0]["differences"]] == [("answers", 4)]
    answers = Path(requests) / "answers"
    answers.rename(tmp_path / "elsewhere")
    before = digests(tmp_path)
    unknown = run.found("--from", "3", "--to", "3")
    assert unknown[0]["differences"] == [] and "answers" not in unknown[0]["compared"]
    assert digests(tmp_path) == before and not answers.exists()
    # Another program is another pipeline.
    (tmp_path / "bank.py").write_text(ASKED_BANK.replace("BONUS", "1"))
    changed = run.replay("--from", "0", "--to", "0")
    assert changed.exit_code == 2 and "another program" in changed.output
    (tmp_path / "bank.py").write_text(ASKED_BANK.replace("BONUS", "0"))
    # Released requests cannot run again.
    stream = PStream(f"{requests}/requests")
    for reader in stream.readers():
        stream.trim_from(reader, stream.end)
    PStream(f"{requests}/requests").trim(now=True)
    refused = run.replay("--from", "1")
    assert refused.exit_code == 2 and "rows of its p-stream are released" in refused.output


def test_answers_are_compared_while_the_log_has_them(tmp_path: Path) -> None:
    stream = PStream(tmp_path / "answers", ANSWERS)
    location = stream.files.location
    writer = AnswerWriter(TaskRows(location, SegmentRows(WriteOptions.parse({"path": location}), stream)), 2)
    answers = [
        pa.RecordBatch.from_pylist(
            [{"id": str(n), "procedure": "p", "bucket": n % 2, "transaction": n}], ANSWERS
        )
        for n in range(6)
    ]
    for number, rows in enumerate(answers):
        writer.publish(rows, "q", number, number % 2)
    stream = PStream(tmp_path / "answers")

    def found(batches: range) -> list[list[str] | None]:
        tables = [read_answers(stream, "q", batch, 2) for batch in batches]
        return [None if table is None else table["id"].to_pylist() for table in tables]

    assert found(range(7)) == [["0"], ["1"], ["2"], ["3"], ["4"], ["5"], []]
    (kept,) = stream.readers()
    stream.trim_from(kept, 3)
    PStream(tmp_path / "answers").trim(now=True)
    stream = PStream(tmp_path / "answers")
    # The other bucket may have answered in micro-batch 3, too.
    assert found(range(7)) == [None, None, None, None, ["4"], ["5"], []]


def test_a_replay_rejects_no_record_again(tmp_path: Path) -> None:
    source = {
        "type": "files", "format": "json", "path": str(tmp_path / "files"), "on_error": "skip",
        "schema": "k STRING, t BIGINT, v BIGINT", "reject_to": str(tmp_path / "rejected"),
    }  # fmt: skip
    run = Run(tmp_path, source=source)
    (tmp_path / "files").mkdir()
    running = open_pipeline(*load_document(run.file), Places(clock=run.clock))
    for number in range(2):
        text = json.dumps({"k": "a", "t": number, "v": 1}) + f'\n{{"k": {number}'
        (tmp_path / "files" / str(number)).write_text(text)
        run.clock.advance(1_000_000)
        assert running.step(lambda done: None)
    assert PStream(tmp_path / "rejected").end == 2
    before = digests(tmp_path / "rejected")
    found = run.found()
    assert [one["differences"] for one in found] == [[], []]
    assert all("rows" in one["compared"] for one in found)
    assert digests(tmp_path / "rejected") == before


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--policy", "freshst"), "unknown value: option=policy"),
        (("--from", "7", "--to", "3"), "range of micro-batches is empty"),
        (("--set", "queue.buckets=3"), "another number of buckets"),
        (
            ("--set", "queue.buckets=3"),
            "hint: set it to 2 (buckets, or spark.sql.shuffle.partitions), or",
        ),
        (("--set", "queue.policy=fifo"), "another policy"),
        (("--to", "200"), "there is no such micro-batch: batch=200 newest=11"),
    ],
)
def test_wrong_arguments_are_refused(ran: Run, arguments: tuple[str, ...], fact: str) -> None:
    result = ran.replay(*arguments)
    assert result.exit_code == 2
    assert fact in result.output.replace("\n", " ").lower()


def test_a_directory_without_checkpoint_is_refused(tmp_path: Path, ran: Run) -> None:
    result = CliRunner().invoke(app, ["replay", str(tmp_path), "--pipeline", str(ran.file)])
    assert result.exit_code == 2
    assert "there is no checkpoint of a pipeline" in result.output
