"""Two pipelines with `penstock run --master`: every row into a p-stream, and the newest of it into another.

The workers get the first one's module only from the archive that the driver ships. Under each pipeline a part
of the cluster is killed, then the driver with all that it started; the same command goes on.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING
from tests.crash.harness import ROOT, kill_all
from tests.servers.processes import until

__all__ = ["PLACES", "Places", "run_pipelines_with_kills"]

PLACES = ("source", "middle", "sink", "every", "newest")
"""Three p-streams, and the state of both pipelines."""

_PATIENCE_S = 1200.0
_BUSY = "a Python worker did not start in time"
"""The end of a driver on a machine under load: Spark waits ten seconds only. A user starts it again."""

_STARTS = 6
_ROWS, _KEYS = 900, 40
_SCHEMA = pa.schema({"k": pa.int64(), "n": pa.int64()})
STEPS_MODULE = """\
import pyarrow.compute as pc


def double(rows):
    assert "modules.zip" in __file__, __file__
    return rows.append_column("twice", pc.multiply(rows["n"], 2))
"""
_PIPELINES = {
    "every": """\
source: {type: pstream, path: '${SOURCE}', max_rows_per_trigger: 250}
queue:
  key: k
  time: n
  policy: fifo
  semantics: append
  budget: 200
  buckets: 2
  apply: cluster_steps:double
  output_schema: k LONG, n LONG, twice LONG
sink: {type: pstream, path: '${MIDDLE}'}
query: {checkpoint: every, state_location: '${EVERY}', trigger: available_now}
""",
    "newest": """\
source: {type: pstream, path: '${MIDDLE}', max_rows_per_trigger: 200}
queue: {key: k, time: n, policy: in_place, budget: 25, buckets: 2}
sink: {type: pstream, path: '${SINK}'}
query: {checkpoint: newest, state_location: '${NEWEST}', trigger: available_now}
""",
}
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


@dataclass(frozen=True)
class Places:
    """The locations of state and p-streams, as a user writes them.

    Attributes
    ----------
    of_pipelines : callable
        Given a name, returns the location in the pipelines' files.
    of_test : callable
        Returns the same location for this process, which has neither the settings nor the environment.
    settings, environment : mapping of str to str
        Of Spark, for `--conf`; and of the driver.
    """

    of_pipelines: Callable[[str], str]
    of_test: Callable[[str], str]
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def run_pipelines_with_kills(
    master: str,
    kills: Mapping[str, Callable[[], int]],
    directory: Path,
    places: Places,
    *,
    say: Callable[[str], None] = print,
) -> None:
    """Run the pipelines, kill parts of the cluster and the drivers, run them again, and compare the rows.

    Parameters
    ----------
    master : str
        The URL of the cluster.
    kills : mapping of str to callable
        What to kill of the cluster under the pipelines ``every`` and ``newest``. Returns how many processes
        were killed.
    directory : Path
        Of checkpoints, modules and logs, which all machines see.
    places : Places
        Of the rest.

    Raises
    ------
    AssertionError
        If a row was lost or came twice, the rows of a key changed their order, or a driver failed.
    """
    modules = directory / "modules"
    modules.mkdir(parents=True)
    (modules / "cluster_steps.py").write_text(STEPS_MODULE)
    keys = [random.Random(row).randrange(_KEYS) for row in range(_ROWS)]
    with PStreamWriter(places.of_test("source"), _SCHEMA) as writer:
        writer.append(pa.table([keys, range(_ROWS)], schema=_SCHEMA))
    for name, text in _PIPELINES.items():
        (directory / f"{name}.yaml").write_text(text)
        _run_with_kills(_Driver(master, name, directory, places), kills[name], say)
    middle = PStreamReader(places.of_test("middle")).read().to_pydict()
    assert sorted(middle["n"]) == list(range(_ROWS)), "a row was lost or came twice"
    assert middle["k"] == [keys[n] for n in middle["n"]]
    assert middle["twice"] == [2 * n for n in middle["n"]]
    assert _newest(middle["k"], middle["n"]) == (newest := {key: n for n, key in enumerate(keys)})
    sink = PStreamReader(places.of_test("sink")).read().to_pydict()
    assert sink["k"] == [keys[n] for n in sink["n"]]
    assert sink["twice"] == [2 * n for n in sink["n"]]
    assert _newest(sink["k"], sink["n"]) == newest


def _newest(keys: list[int], numbers: list[int]) -> dict[int, int]:
    """Return the last number of each key; its numbers rise."""
    last: dict[int, int] = {}
    for key, number in zip(keys, numbers, strict=True):
        assert number > last.get(key, -1), f"key {key} went back or came twice"
        last[key] = number
    return last


@dataclass
class _Driver:
    """The driver of one pipeline: how it starts, and what it has done."""

    master: str
    name: str
    directory: Path
    places: Places

    def start(self) -> None:
        settings = {**SETTINGS, **self.places.settings}
        conf = [f"--conf={name}={value}" for name, value in settings.items()]
        command = [
            sys.executable,
            "-m",
            "penstock.cli",
            "run",
            f"{self.name}.yaml",
            f"--master={self.master}",
        ]
        locations = {name.upper(): self.places.of_pipelines(name) for name in PLACES}
        paths = {"PYTHONPATH": f"{self.directory / 'modules'}:{ROOT}", "PYSPARK_PYTHON": sys.executable}
        environment = {**os.environ, **paths, **locations, **self.places.environment}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, *conf], cwd=self.directory, env=environment, stdout=log, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> list[int]:
        """Kill the driver and all that it started; return their numbers."""
        return kill_all(self._process)

    def wait_for_commits(self, goal: int) -> None:
        self._wait_until(lambda: self.commits >= goal)
        assert self._process.poll() is None, f"the driver ended early: {self._said}"

    def wait_for_end(self) -> None:
        self._wait_until(lambda: False)
        assert self._process.returncode == 0, self._said

    def _wait_until(self, is_there: Callable[[], bool]) -> None:
        """Wait until a condition holds or the driver ends; start it again if the machine was too busy."""
        for _ in range(_STARTS):
            there = until(lambda: is_there() or self._process.poll() is not None, _PATIENCE_S)
            assert there, f"no progress: {self._said}"
            if self._process.poll() in (None, 0) or _BUSY not in self._said:
                return
            self.kill()
            self.start()
        raise AssertionError(f"Spark was too slow {_STARTS} times: {self._said}")

    @property
    def _log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def commits(self) -> int:
        return len(list(self.directory.glob(f"{self.name}/queries/results/commits/[0-9]*")))

    @property
    def _said(self) -> str:
        return self._log.read_text()[-3_000:]


def _run_with_kills(driver: _Driver, kill: Callable[[], int], say: Callable[[str], None]) -> None:
    driver.start()
    try:
        driver.wait_for_commits(2)
        killed_of_cluster = kill()
        assert killed_of_cluster
        driver.wait_for_commits(driver.commits + 1)
    finally:
        killed = driver.kill()
    before = driver.commits
    driver.start()
    try:
        driver.wait_for_end()
    finally:
        driver.kill()
    say(
        f"{driver.name}: {killed_of_cluster} processes of the cluster killed, and the driver ({len(killed)}) "
        f"after {before} of {driver.commits} micro-batches"
    )
