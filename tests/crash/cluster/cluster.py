"""A standalone cluster of two workers on this machine. Parts of it are killed or stalled at random."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyspark

from tests.crash.cluster.slow_daemon import DOUBLE_COMMITS
from tests.crash.harness import ROOT, commits, kill_all, processes_of, random_moment, started, why
from tests.crash.p_streams.p_stream_kills import is_worker
from tests.crash.workload import add_steps, steps, verify
from tests.servers.processes import until
from tests.spark.queries import Place

KINDS = ("stall", "executor", "python", "worker", "machine")
"""An executor is stopped for a while, or killed, or one of its Python workers is. The daemon of a worker is
killed, which its executors may outlive for a while, or all that the worker started is killed at once."""

PATIENCE_S = 300.0
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_WORKERS = 2
_STEPS = 2
"""Files of input between two kills, of one micro-batch each or more."""
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """A master and its workers, each in its own process session; all end with the context."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._log = self._stack.enter_context((directory / "cluster.log").open("a"))
        self._master_port, self._master_page, *self._pages = _free_ports(2 + _WORKERS)
        self._workers: list[subprocess.Popen[str]] = []

    @property
    def url(self) -> str:
        """The URL of the master."""
        return f"spark://127.0.0.1:{self._master_port}"

    def __enter__(self) -> Cluster:
        ports = ["--port", str(self._master_port), "--webui-port", str(self._master_page)]
        self._start("master.Master", "127.0.0.1", *ports)
        self._workers = [self._started_worker(number) for number in range(_WORKERS)]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def kill(self, kind: str, draw: random.Random) -> int:
        """Kill or stall processes of a `kind`; return their number."""
        number = draw.randrange(_WORKERS)
        worker = self._workers[number]
        if kind in ("worker", "machine"):
            if kind == "worker":
                killed = [worker.pid]
                worker.kill()
                worker.wait()
            else:
                killed = kill_all(worker)
            self._workers[number] = self._started_worker(number)
            return len(killed)
        found = [one for one in processes_of(worker.pid) if is_worker(one)] if kind == "python" else []
        for process in [draw.choice(found)] if found else [] if kind == "python" else _executors(worker):
            with contextlib.suppress(ProcessLookupError):
                if kind == "stall":
                    os.kill(process, signal.SIGSTOP)
                    random_moment(draw)
                    os.kill(process, signal.SIGCONT)
                else:
                    os.kill(process, signal.SIGKILL)
                return 1
        return 0

    def _started_worker(self, number: int) -> subprocess.Popen[str]:
        home = self._directory / "workers" / str(number)
        return self._start(
            # Spark starts no second attempt on the host of the first.
            "worker.Worker", f"127.0.0.{1 + number}", self.url, "--webui-port", str(self._pages[number]),
            "--cores", "2", "--memory", "1g", "--work-dir", str(home),
        )  # fmt: skip

    def _start(self, program: str, host: str, *arguments: str) -> subprocess.Popen[str]:
        options = f"{_SMALL_JVM} -Dspark.deploy.maxExecutorRetries=-1"
        process = subprocess.Popen(
            [str(_SPARK_CLASS), f"org.apache.spark.deploy.{program}", "--host", host, *arguments],
            stdout=self._log, stderr=self._log, text=True, start_new_session=True, cwd=self._directory,
            env=os.environ | {
                "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": options, "PYTHONPATH": str(ROOT),
                "SPARK_LOCAL_IP": host, "PYSPARK_PYTHON": sys.executable,
            },
        )  # fmt: skip
        self._stack.callback(kill_all, process)
        return process


def _free_ports(count: int) -> list[int]:
    """Return ports that nothing listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _executors(worker: subprocess.Popen[str]) -> list[int]:
    """Return the JVMs of the executors that a worker started."""
    return [one for one in processes_of(worker.pid) if b"CoarseGrainedExecutorBackend" in _command(one)]


def _command(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def run_with_kills(directory: Path, seed: int, kills: int, *, say: Callable[[str], None] = print) -> int:
    """Run the queue of `workload` on a cluster with speculation; kill or stall `kills` times; verify.

    The driver lives on, and its query with it: executors and workers come back by themselves.

    Returns
    -------
    int
        How many versions of state two attempts had committed before Spark chose one.

    Raises
    ------
    AssertionError
        If anything was lost, went back, came twice, or the query failed.
    """
    draw = random.Random(seed)
    place = Place(directory)
    batches = steps(seed, _STEPS * (kills + 1))
    doubles = directory / "double_commits"
    doubles.mkdir()

    def reaches(goal: int) -> bool:
        return commits(place) >= goal or job.poll() is not None

    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(directory))
        environment = {"PENSTOCK_MASTER": cluster.url, DOUBLE_COMMITS: str(doubles)}
        job = stack.enter_context(started(directory, "cluster/cluster_job.py", **environment))
        for kill, kind in enumerate(kinds_of(draw, kills), 1):
            add_steps(place, batches[_STEPS * (kill - 1) : _STEPS * kill])
            goal = commits(place) + 1
            assert until(partial(reaches, goal), PATIENCE_S), f"no progress: {why(job, directory)}"
            random_moment(draw)
            killed = cluster.kill(kind, draw)
            assert job.poll() is None, why(job, directory)
            say(f"kill {kill} of {kills}: {kind}, {killed} processes after batch {commits(place) - 1}")
        add_steps(place, batches[_STEPS * kills :])
        (directory / "finished").touch()
        assert until(partial(reaches, sys.maxsize), PATIENCE_S), f"no end: {why(job, directory)}"
        assert job.returncode == 0, why(job, directory)
    verify(place, batches, drained=True)
    double_commits = len(list(doubles.iterdir()))
    say(f"{commits(place)} micro-batches; {double_commits} versions that two attempts committed")
    return double_commits


def kinds_of(draw: random.Random, kills: int) -> Iterator[str]:
    """Yield kinds at random, each equally often."""
    kinds: list[str] = []
    for _ in range(kills):
        kinds = kinds or draw.sample(KINDS, len(KINDS))
        yield kinds.pop()
