"""`penstock run --master`: what it refuses before Spark starts, and what it hands to Spark."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.conf.pipeline import load_pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.cluster.master import cluster_pipeline, spark_settings

_MASTER = "spark://host:7077"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_the_options_become_settings_of_spark_and_win_over_the_file() -> None:
    settings = spark_settings("local[3]", ["spark.x=1=2", "spark.master=yarn"], "client")
    assert settings == {"spark.x": "1=2", "spark.master": "local[3]", "spark.submit.deployMode": "client"}
    pipeline = load_pipeline("market", ["query.spark={spark.x: a, spark.y: b}"])
    with cluster_pipeline(pipeline, settings) as configured:
        assert configured.query.spark == {"spark.y": "b", **settings}


@pytest.mark.parametrize("master", [_MASTER, "yarn", "k8s://https://host:6443"])
def test_the_workers_of_a_cluster_get_an_archive_for_as_long_as_the_driver_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("cluster_sink.py").write_text("def write(rows, batch): ...")
    sink = "sink={type: foreach_batch, function: 'cluster_sink:write'}"
    pipeline = load_pipeline("market", ["query.checkpoint=checkpoint", sink])
    with cluster_pipeline(pipeline, spark_settings(master, ["spark.submit.pyFiles=a.zip"])) as configured:
        given, archive = configured.query.spark["spark.submit.pyFiles"].split(",")
        assert given == "a.zip"
        assert zipfile.ZipFile(archive).namelist() == ["cluster_sink.py"]
    assert not Path(archive).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--master=spark:/host"], "this is no master of Spark: master=spark:/host"),
        (["--conf=executor.memory=1g"], "this is no setting of Spark: conf=executor.memory=1g"),
        (["--conf=spark.executor.memory"], "this is no setting of Spark"),
        ([f"--master={_MASTER}", "--deploy-mode=cluster"], "is the driver itself and cannot run on the"),
        (["--conf=spark.submit.deployMode=cluster"], "spark-submit --deploy-mode cluster"),
        ([f"--master={_MASTER}"], "query.checkpoint is missing: master=spark://host:7077"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_refused_before_spark_starts(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["run", "market", *arguments])
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("variable", "other"), [("SPARK_REMOTE", "Spark Connect"), ("PYSPARK_GATEWAY_PORT", "spark-submit")]
)
def test_only_one_chooses_the_master(monkeypatch: pytest.MonkeyPatch, variable: str, other: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(InvalidUsageError, match=f"{other} chooses the master"):
        spark_settings(_MASTER)
