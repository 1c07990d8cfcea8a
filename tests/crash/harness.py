"""Kill a whole job (driver, JVM and Python workers) repeatedly, and check that nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.crash.workload import add_steps, steps, verify
from tests.servers import processes
from tests.spark.queries import Place

ROOT = Path(__file__).parents[2]

TRACE = "trace.jsonl"

FILE_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing.File{}BasedCheckpointFileManager"
"""Spark's ways to write checkpoints: by Hadoop's ``FileContext``, which is the default, or ``FileSystem``."""

_RUN_S = 300.0


def processes_of(session: int) -> list[int]:
    """Return the processes of a session (of ``start_new_session``), however they are grouped."""
    return [process.id for process in processes.running() if process.session == session]


def kill_all(job: subprocess.Popen[str]) -> list[int]:
    """Kill all processes that `job` started, at once; return them."""
    killed: set[int] = set()
    while alive := processes_of(job.pid):
        processes.kill(alive)
        killed.update(alive)
    job.wait()
    return sorted(killed)


@contextlib.contextmanager
def started(directory: Path, program: str = "job.py", **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program in its own process session and wait until it runs; kill all its processes afterwards.

    All that it does with the protocol goes into the trace `TRACE` in the directory.
    """
    log = (directory / "job.log").open("a")
    job = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "crash" / program), str(directory)],
        stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable,
                           "PENSTOCK_TRACE": str(directory / TRACE)} | environment,
    )  # fmt: skip
    assert job.stdout is not None
    try:
        assert job.stdout.readline() == "started\n", why(job, directory)
        yield job
    finally:
        kill_all(job)
        job.stdout.close()
        log.close()


def random_moment(draw: random.Random) -> None:
    """Let up to a second pass, so that the kill comes at any moment."""
    time.sleep(draw.uniform(0.0, 1.0))  # nothing is waited for


def commits(place: Place) -> int:
    """Return how many micro-batches the checkpoint has committed."""
    return len(list((place.checkpoint / "commits").glob("[0-9]*")))


def count_batches(checkpoints: Path) -> int:
    """Return how many micro-batches the queries below a directory have committed, by the newest of each.

    Spark deletes old entries of its logs, so they cannot be counted.
    """
    newest: dict[Path, int] = {}
    for path in checkpoints.glob("**/commits/[0-9]*"):
        if path.name.isdecimal():
            newest[path.parent] = max(newest.get(path.parent, 0), 1 + int(path.name))
    return sum(newest.values())


def run_with_kills(directory: Path, seed: int, kills: int, *, say: Callable[[str], None] = print) -> None:
    """Kill the job `kills` times at moments drawn from `seed`, each time after some progress; verify.

    Input comes in steps, one or two before each start. After each kill the sink is checked, and at the
    end that it holds the newest update of every key.

    Raises
    ------
    AssertionError
        If anything was lost, went back, came twice, or the job failed by itself.
    """
    draw = random.Random(seed)
    place = Place(directory)
    plan = [draw.randint(1, 2) for _ in range(kills + 1)]
    batches = steps(seed, sum(plan))
    added = 0
    for kill, count in enumerate(plan[:-1], 1):
        add_steps(place, batches[added : added + count])
        added += count
        goal = commits(place) + draw.choice([0, 1, 1, 2])
        begin = time.monotonic()
        with started(place.directory) as job:
            up = time.monotonic() - begin
            _run_to(job, place, goal)
            random_moment(draw)
            killed = kill_all(job)
        committed = commits(place)
        say(f"kill {kill} of {kills}: {len(killed)} processes after batch {committed - 1}; up in {up:.1f} s")
        verify(place, batches[:added], drained=False, deletes=True)
    add_steps(place, batches[added:])
    with started(place.directory) as job:
        assert processes.until(lambda: job.poll() is not None, _RUN_S), "the last run did not end"
        assert job.returncode == 0, why(job, place.directory)
    verify(place, batches, drained=True, deletes=True)


def _run_to(job: subprocess.Popen[str], place: Place, goal: int) -> None:
    """Let `job` run until the checkpoint has `goal` commits, or all is done."""
    assert processes.until(lambda: commits(place) >= goal or job.poll() is not None, _RUN_S), "no progress"
    assert job.poll() in (None, 0), why(job, place.directory)


def why(job: subprocess.Popen[str], directory: Path) -> str:
    """Kill the rest of a program; return the output of the program and its children."""
    kill_all(job)
    assert job.stdout is not None
    tail = (directory / "job.log").read_text()[-2000:]
    return f"it said: {job.stdout.read()[-3000:]}\n{tail}"


def partitions_to_run() -> int:
    """Take ``--partitions N`` from the command line; return N, by default 1."""
    if "--partitions" not in sys.argv:
        return 1
    place = sys.argv.index("--partitions")
    number = int(sys.argv[place + 1])
    del sys.argv[place : place + 2]
    return number


def repeat_kills(module: str, run: Callable[[Path, int, int], None], kills: int, options: str = "") -> None:
    """Run the number of kills that the command line says, in workloads of at most 25.

    Parameters
    ----------
    module : str
        The module that is the command; it is printed with the arguments that repeat each workload.
    run : callable
        Takes a directory, a seed and a number of kills.
    kills : int
        The number of kills if the command line has none. A seed may follow it there.
    options : str
        Options of the command, which repeat what `run` does.
    """
    left = int(sys.argv[1]) if len(sys.argv) > 1 else kills
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 10**6
    while left > 0:
        count = min(left, 25)
        print(f"python -m {module} {count} {seed} {options}".rstrip(), flush=True)
        with tempfile.TemporaryDirectory() as place:
            run(Path(place), seed, count)
        left, seed = left - count, seed + 1
