"""A cluster whose workers run a Python without Penstock."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark_ext.daemon import DAEMON
from tests.crash.cluster.cluster import Cluster
from tests.crash.harness import started
from tests.servers.processes import until
from tests.spark.pythons import python_without_penstock

pytestmark = [pytest.mark.crash, pytest.mark.spark]


@pytest.mark.long
@pytest.mark.parametrize("good", [False, True])
def test_a_cluster_is_asked_before_the_first_batch(tmp_path: Path, good: bool) -> None:
    python = python_without_penstock(tmp_path, may_be_sent=good)
    # Penstock's daemon needs Penstock before anything is sent.
    settings = {"PYSPARK_PYTHON": python, "PENSTOCK_TEST_DAEMON": "pyspark.daemon" if good else DAEMON}
    with (
        Cluster(tmp_path) as cluster,
        started(tmp_path, "cluster/cluster_python_job.py", PENSTOCK_MASTER=cluster.url, **settings) as job,
    ):
        assert until(lambda: job.poll() is not None, 120.0)
        assert job.stdout is not None
        said = job.stdout.read()
    sent = list((tmp_path / "workers").rglob("penstock.zip"))
    assert bool(sent) == good
    assert job.returncode == (0 if good else 1), said
    if not good:
        assert f"workers={python}" in said
        assert "No module named 'penstock'" in said
        assert "set PYSPARK_PYTHON before the session starts" in said
