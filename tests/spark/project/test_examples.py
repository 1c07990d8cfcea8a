"""The programs in ``examples`` print their documented results."""

from __future__ import annotations

import json
import runpy
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.conf.pipeline import load_pipeline
from penstock.dataflow import PhysicalPlan
from penstock.jobs.pipelines.run import run_to_end
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.programs import PROGRAMS

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def _elsewhere(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let relative paths be below a directory of the test, those of Spark's JVM, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program"])
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop.fs
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    hadoop.FileSystem.get(settings).setWorkingDirectory(hadoop.Path(str(tmp_path)))


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a program in the session of the tests, which it finds active; return what it prints."""
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_an_upsert_keeps_one_row_of_each_key(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    first = run("upsert.py", capsys)
    assert first == run("upsert.py", capsys)
    assert 200 < int(first[0].removeprefix("symbols: ")) <= 500


@pytest.mark.long
def test_a_leaderboard_counts_as_python_does(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = run("leaderboard.py", capsys)
    assert first == run("leaderboard.py", capsys)
    votes = pq.read_table(tmp_path / "leaderboard" / "votes").sort_by("number").to_pylist()
    running, given, counted, removed = dict.fromkeys(range(6), 0), dict[int, int](), list[int](), list[str]()
    for vote in votes:
        phone, contestant = vote["phone"], vote["contestant"]
        if contestant not in running or given.get(phone) in running:
            continue
        given[phone] = contestant
        running[contestant] += 1
        counted.append(contestant)
        if len(counted) % 1000 == 0 and len(running) > 1:
            lowest = min(running, key=lambda one: (running[one], one))
            del running[lowest]
            removed.append(f"vote {vote['number']} removed contestant {lowest}")
    assert f"counted: {len(counted)}" in first
    assert [line for line in first if "removed" in line] == removed
    assert [line for line in first if line.startswith("contestant")] == [
        f"contestant {one}: {running[one]} votes, {counted[-100:].count(one)} of the last 100"
        for one in sorted(running, key=lambda one: -running[one])
    ]


@pytest.mark.long
def test_votes_run_through_a_workflow_as_python_does(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = run("voter.py", capsys)
    assert first == run("voter.py", capsys)
    cast = pq.read_table(tmp_path / "voter" / "votes").sort_by("number").to_pylist()
    running, given, counted = dict.fromkeys(range(8), 0), dict[int, int](), list[int]()
    refused = {"validate: no such contestant": 0, "validate: voted already": 0}
    removed: list[str] = []
    for vote in cast:
        phone, contestant = vote["phone"], vote["contestant"]
        if contestant not in running or phone in given:
            refused[
                f"validate: {'no such contestant' if contestant not in running else 'voted already'}"
            ] += 1
            continue
        given[phone] = contestant
        running[contestant] += 1
        counted.append(contestant)
        if len(counted) % 1000 == 0 and len(running) > 1:
            lowest = min(running, key=lambda one: (running[one], one))
            del running[lowest]
            given = {one: voted for one, voted in given.items() if voted != lowest}
            removed.append(f"vote {vote['number']} removed contestant {lowest}")
    assert [line for line in first if "removed" in line] == removed
    assert len(removed) == 7
    assert {line for line in first if "removed" not in line and "place" not in line} == {
        f"counted: {len(counted)}", *(f"{why}: {count}" for why, count in refused.items())
    }  # fmt: skip
    assert all(refused.values())
    trend = counted[-100:]
    boards = [
        sorted(running, key=lambda one: (-running[one], one)),
        sorted(running, key=lambda one: (running[one], one)),
        sorted(running, key=lambda one: (-trend.count(one), one)),
    ]
    expected = [[*board, None, None, None][:3] for board in boards]
    assert [line for line in first if line.startswith("place")] == [
        f"place {place + 1}: top {top}, bottom {bottom}, trending {trending}"
        for place, (top, bottom, trending) in enumerate(zip(*expected, strict=True))
    ]


@pytest.mark.long
def test_packaged_programs_end_as_python_says_and_go_on(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "SL", "bank", "linear_road"])
    run("programs.py", capsys)
    for line in run("programs.py", capsys):
        name, _, ends = line.partition(" ")
        program = PROGRAMS[name]
        plain = PlainTables(program.database.tables.values())
        events = penstock.PStreamReader(tmp_path / "programs" / name / "events").read().to_batches()
        columns = program.procedure.program().results
        expected = Counter(
            row[-1] for batch in events for row in plain.run(program.procedure.text, batch, columns)
        )
        assert expected.total() >= 40_000
        counts = [f"{why or 'committed'} {expected[why]}" for why in sorted(expected, key=lambda w: w or "")]
        assert ends.endswith(": " + ", ".join(counts))


@pytest.mark.long
def test_late_rows_count_while_their_window_is_open(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("late_rows.py", capsys) == [
        "[0, 10): mean 30 of 3 readings",
        "[10, 20): mean 35 of 2 readings",
        "late: 1",
    ]


@pytest.mark.long
def test_a_join_that_was_killed_goes_on(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    killed = subprocess.run([sys.executable, EXAMPLES / "joined.py", "--kill"], check=False)
    assert killed.returncode == -signal.SIGKILL
    rows = run("joined.py", capsys)
    assert len(rows) == len(set(rows)) >= 3
    assert {row.rpartition(" ")[2] for row in rows} <= {"1", "2"}
    assert {f"{symbol} 2 1" for symbol in "ABC"} <= set(rows)


def test_two_processes_share_a_p_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("processes.py", capsys) == ["rows: 1000 sum: 499500.0"]


def test_the_notebook_draws_a_plan_and_its_results(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((EXAMPLES / "drawings.ipynb").read_text(encoding="utf-8"))["cells"]
    scope: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), scope)
    plan = scope["plan"]
    assert isinstance(plan, PhysicalPlan)
    assert plan._repr_svg_().startswith("<svg ")
    assert len(scope["volumes"]) > 10  # type: ignore[arg-type]  # a frame


@pytest.mark.long
def test_a_program_for_spark_submit_runs_without_it(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = run("submit.py", capsys)
    assert line.endswith("still waiting: 0")


def test_a_pipeline_in_yaml_runs(spark: SparkSession) -> None:
    Path("incoming").mkdir()
    rows = [f'{{"time": "2026-01-31T09:30:0{n}Z", "sensor": "a", "value": {n}}}' for n in range(3)]
    Path("incoming/1.json").write_text("\n".join(rows), encoding="utf-8")
    run_to_end(load_pipeline(EXAMPLES / "sensors.yaml"), spark=spark)
    assert pq.read_table("newest")["value"].to_pylist() == [2.0]


def test_a_graph_that_is_stopped_before_its_first_results_ends(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock, "run", lambda running: running.stop())
    assert "windows:" not in run("graph.py", capsys)[-1]


def test_a_graph_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    *plan, last = run("graph.py", capsys)
    assert any("p-stream" in line for line in plan)
    assert int(last.removeprefix("windows: ")) > 50
