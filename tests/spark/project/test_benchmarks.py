"""Every benchmark still runs: tiny inputs, one round, times of no interest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.freshness import trigger_intervals
from benchmarks.harness import run_contender
from benchmarks.paper.s_store import spark_redis
from benchmarks.queues import first_batch
from tests.servers.servers import PostgreSql
from tests.spark.queries import needs_admission_control

pytestmark = pytest.mark.spark

_ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("queues.update_queue_speed", ["penstock", "per-key"]),
        ("state.state_in_spark", ["penstock-rows"]),
    ],
)
@pytest.mark.long
def test_a_benchmark_runs_and_prints_a_row_for_each_contender(name: str, only: list[str]) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--only", *only]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    result = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for contender in only:
        assert any(contender in line.split() for line in result.stdout.splitlines()), result.stdout


@pytest.mark.long
def test_the_benchmark_of_small_batches_measures_both_queries() -> None:
    command = [sys.executable, "-m", "benchmarks.queues.small_batches", "--quick"]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split()[:2] for line in result.stdout.splitlines()]
    for row in (["spark", "addBatch"], ["penstock", "addBatch"], ["penstock", "commit"]):
        assert row in rows, result.stdout


@pytest.mark.long
def test_the_benchmark_of_first_batches_measures_all_contenders() -> None:
    command = [sys.executable, "-m", "benchmarks.queues.first_batch", "--quick"]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    for contender in ("penstock", *first_batch.SPARK_ALONE):
        seconds, spent, mib, processes = map(float, rows[contender])
        assert min(seconds, spent) > 1
        assert mib > 200
        assert processes >= 2


@pytest.mark.long
def test_the_benchmark_of_trigger_intervals_measures_all_contenders() -> None:
    command = [sys.executable, "-m", "benchmarks.freshness.trigger_intervals", "--quick"]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split()[:3] for line in result.stdout.splitlines()]
    for contender in trigger_intervals.CONTENDERS:
        assert ["10000", "0.1", contender] in rows, result.stdout


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
@pytest.mark.long
def test_spark_with_redis_accepts_the_votes_that_ours_accepts(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="redis is not installed")
    votes = tmp_path / "votes"
    spark_redis.write_votes(votes, 2_000)
    ours, theirs = (
        run_contender("paper.s_store.spark_redis", name, str(votes), "--validated")["accepted"]
        for name in ("penstock", "Spark, Redis")
    )
    assert 0 < ours == theirs < 2_000


@needs_admission_control
@pytest.mark.long
def test_the_benchmark_of_forwarding_runs(tmp_path: Path) -> None:
    arguments = ["--share", "0.5", "--rounds", "1", "--batches", "3", "--out", str(tmp_path / "out.txt")]
    arguments += ["--bank-rows", "200", "--tpcc-rows", "200"]
    command = [sys.executable, "-m", "benchmarks.transactions.transactions_over_buckets", *arguments]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in (tmp_path / "out.txt").read_text().splitlines() if " any " in line]
    one_bucket, bank, local, tpcc = (float(row[4].rstrip("%")) for row in rows)
    assert one_bucket == local == 0
    assert 35 < bank < 65
    assert 25 < tpcc < 60, "most transactions of the mix are new orders and payments"


@pytest.mark.long
def test_the_benchmark_of_both_stages_runs(tmp_path: Path) -> None:
    arguments = ["--share", "0.5", "--rows", "500", "--batches", "3", "--out", str(tmp_path / "out.txt")]
    command = [sys.executable, "-m", "benchmarks.transactions.forwarding_stages", *arguments]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in (tmp_path / "out.txt").read_text().splitlines() if "50%" in line]
    assert [row[1] for row in rows] == ["local", "remote"]


@pytest.mark.long
def test_the_benchmark_of_upserts_runs() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    PostgreSql._find(PostgreSql.PROGRAM)
    arguments = ["--keys", "200", "--rounds", "1", "--only", "postgresql", "iceberg"]
    command = [sys.executable, "-m", "benchmarks.upserts.upserts", *arguments]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split()[:2] for line in result.stdout.splitlines()]
    for writer in (
        ["postgresql", "penstock"], ["postgresql", "executemany"], ["postgresql", "merge"],
        ["iceberg", "penstock"], ["iceberg", "upsert"],
    ):  # fmt: skip
        assert writer in rows, result.stdout
