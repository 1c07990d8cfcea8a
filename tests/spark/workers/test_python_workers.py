"""Sessions whose workers would run a Python without Penstock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark_ext.worker import python_workers
from penstock.spark_ext.worker.python_workers import prepare_workers
from tests.spark.p_streams import append
from tests.spark.pythons import python_without_penstock

pytestmark = pytest.mark.spark


@pytest.fixture
def other_python(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let workers run a Python that does not find Penstock."""
    program = python_without_penstock(tmp_path)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", program)
    monkeypatch.delenv("PYSPARK_PYTHON")
    python_workers._prepared.discard(spark.sparkContext)
    yield program
    python_workers._prepared.discard(spark.sparkContext)


def test_on_one_machine_workers_run_the_drivers_python(
    spark: SparkSession, other_python: str, tmp_path: Path
) -> None:
    append(tmp_path / "s", 0, 20)
    penstock.register(spark)
    assert spark.sparkContext.pythonExec == sys.executable
    rows = spark.read.format("pstream").load(str(tmp_path / "s"))
    assert sorted(row.n for row in rows.collect()) == list(range(20))


def test_another_python_that_was_asked_for_stays_if_it_has_penstock(
    spark: SparkSession, other_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", other_python)
    prepare_workers(spark)
    assert spark.sparkContext.pythonExec == sys.executable, "it has not"
    good = f"{Path(sys.executable).parent}/./{Path(sys.executable).name}"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", good)
    python_workers._prepared.discard(spark.sparkContext)
    prepare_workers(spark)
    assert spark.sparkContext.pythonExec == good


def test_on_a_cluster_what_to_set_is_told(spark: SparkSession, other_python: str) -> None:
    lack = python_workers._lack_of_workers(spark.sparkContext)
    assert lack is not None
    assert "No module named 'penstock'" in lack
    told = str(python_workers._refusal(other_python, lack))
    assert f"workers={other_python}" in told
    assert "set PYSPARK_PYTHON before the session starts" in told
