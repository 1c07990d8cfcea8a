"""`penstock run --master` on a cluster, with state and its sink in S3 and p-streams in a shared folder.

The workers get the pipeline's module only from the archive that the driver ships. An executor is killed, then
the driver with all that it started; the pipeline goes on with the same command.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING
from tests.crash.harness import ROOT, kill_all
from tests.processes import until
from tests.s3 import S3Server

_PATIENCE_S = 300.0
_ROWS, _KEYS = 1_500, 40
_SCHEMA = pa.schema({"k": pa.int64(), "n": pa.int64()})
STEPS_MODULE = """\
import pyarrow.compute as pc


def double(rows):
    assert "modules.zip" in __file__, __file__
    return rows.append_column("twice", pc.multiply(rows["n"], 2))
"""
_PIPELINE = """\
source: {type: pstream, path: source, max_rows_per_trigger: 250}
queue:
  key: k
  time: n
  policy: fifo
  semantics: append
  budget: 200
  buckets: 2
  apply: cluster_steps:double
  output_schema: k LONG, n LONG, twice LONG
sink: {type: pstream, path: '${SINK}'}
query: {checkpoint: checkpoint, state_location: '${STATE}', trigger: available_now}
"""
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "100",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    DAEMON_SETTING: DAEMON,
}


def run_pipeline_with_kills(
    master: str, kill_executor: Callable[[], int], directory: Path, *, say: Callable[[str], None] = print
) -> None:
    """Run the pipeline, kill an executor and the driver, run it again, and compare what came out.

    Raises
    ------
    AssertionError
        If a row was lost or came twice, the rows of a key changed their order, or the driver failed.
    """
    modules = directory / "modules"
    modules.mkdir(parents=True)
    (modules / "cluster_steps.py").write_text(STEPS_MODULE)
    (directory / "pipeline.yaml").write_text(_PIPELINE)
    keys = [random.Random(row).randrange(_KEYS) for row in range(_ROWS)]
    with PStreamWriter(directory / "source", _SCHEMA) as writer:
        writer.append(pa.table([keys, range(_ROWS)], schema=_SCHEMA))
    with S3Server() as server:
        places = {"STATE": server.uri("state"), "SINK": server.uri("sink")}
        with (directory / "driver.log").open("a") as log:
            first = _start(master, directory, log.fileno(), places)
            try:
                _wait_for_commits(first, directory, 2)
                assert kill_executor() == 1
                _wait_for_commits(first, directory, _commits(directory) + 1)
            finally:
                killed = kill_all(first)
            before = _commits(directory)
            second = _start(master, directory, log.fileno(), places)
            try:
                assert until(lambda: second.poll() is not None, _PATIENCE_S), _said(directory)
                assert second.returncode == 0, _said(directory)
            finally:
                kill_all(second)
        say(f"driver killed ({len(killed)} processes) after {before} of {_commits(directory)} micro-batches")
        found = PStreamReader(places["SINK"]).read().to_pydict()
        assert any(request.path.startswith("/bucket/state/") for request in server.requests)
    assert sorted(found["n"]) == list(range(_ROWS)), "a row was lost or came twice"
    assert found["twice"] == [2 * n for n in found["n"]]
    assert found["k"] == [keys[n] for n in found["n"]]
    last: dict[int, int] = {}
    for key, number in zip(found["k"], found["n"], strict=True):
        assert number > last.get(key, -1), f"key {key} went back"
        last[key] = number


def _start(master: str, directory: Path, log: int, places: dict[str, str]) -> subprocess.Popen[str]:
    conf = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "run", "pipeline.yaml", f"--master={master}", *conf],
        cwd=directory, stdout=log, stderr=log, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": f"{directory / 'modules'}:{ROOT}", "PYSPARK_PYTHON": sys.executable}
        | places,
    )  # fmt: skip


def _commits(directory: Path) -> int:
    return len(list(directory.glob("checkpoint/queries/results/commits/[0-9]*")))


def _wait_for_commits(driver: subprocess.Popen[str], directory: Path, goal: int) -> None:
    def is_there() -> bool:
        return _commits(directory) >= goal or driver.poll() is not None

    assert until(is_there, _PATIENCE_S), f"no progress: {_said(directory)}"
    assert driver.poll() is None, f"the driver ended early: {_said(directory)}"


def _said(directory: Path) -> str:
    return (directory / "driver.log").read_text()[-3_000:]
