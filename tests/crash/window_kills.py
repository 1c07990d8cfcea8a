"""Kill the driver or a worker of windows and their join at random, and compare window for window."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.streams import REAL
from tests.crash.harness import kill_all, processes_of, random_moment, started, why
from tests.crash.p_stream_kills import is_worker
from tests.processes import until
from tests.spark.queries import Input
from tests.table3 import expected, found, same

_PATIENCE_S = 300.0
_JOB = "window_job.py"
_FILE_S = 8


def readings(seed: int, seconds: int) -> pa.Table:
    """Return readings of some plugs: several of each a second, some of them absent."""
    draw = np.random.default_rng(seed)
    plugs = [(house, household, plug) for house in range(4) for household in range(2) for plug in range(3)]
    rows = [
        (second, plugs[at]) for second in range(seconds) for at in draw.choice(len(plugs), 30) if at % 7 != 3
    ]
    names = REAL["smart_grid"].columns
    columns = {
        "timestamp": [1_377_986_401 + second for second, _ in rows],
        # Quarters, of which sums are exact.
        "value": draw.integers(0, 400, len(rows)) / 4,
        "property": np.ones(len(rows), np.int32),
        "plug": [plug for _, (_, _, plug) in rows],
        "household": [household for _, (_, household, _) in rows],
        "house": [house for _, (house, _, _) in rows],
    }
    return pa.table({name: pa.array(columns[name]).cast(kind) for name, kind in names.items()})


def run_with_kills(directory: Path, seed: int, kills: int, *, say: Callable[[str], None] = print) -> None:
    """Kill `kills` times, a driver or a worker in turn, at moments drawn from `seed`; compare what came out.

    Raises
    ------
    AssertionError
        If a window is missing, came twice or is another, or the job ended by itself.
    """
    draw = random.Random(seed)
    files = 3 * (kills + 1)
    table = readings(seed, _FILE_S * files)
    bounds = sorted(draw.randrange(table.num_rows) for _ in range(files - 1))
    pieces = [table.slice(a, b - a) for a, b in zip([0, *bounds], [*bounds, table.num_rows], strict=True)]
    source = Input(directory / "files")
    commits = directory / "checkpoint" / "queries" / "results" / "commits"

    def committed() -> int:
        return len(list(commits.glob("[0-9]*")))

    source.add(*pieces[:3])
    for kill in range(1, kills + 1):
        with started(directory, _JOB) as job:
            goal = committed() + draw.choice([0, 1, 1, 2])
            source.add(*pieces[3 * kill : 3 * kill + 2])
            until(lambda job=job, goal=goal: committed() >= goal or job.poll() is not None, _PATIENCE_S)  # type: ignore[misc]
            assert committed() >= goal, f"no progress: {why(job, directory)}"
            random_moment(draw)
            assert job.poll() is None, why(job, directory)
            if kill % 2 == 0:
                _kill_worker(job.pid, draw)
                random_moment(draw)
            killed = kill_all(job)
            assert job.returncode == -signal.SIGKILL
        source.add(pieces[3 * kill + 2])
        say(f"kill {kill} of {kills}: {len(killed)} processes after {committed()} micro-batches")
    with started(directory, _JOB) as job:
        (directory / "finished").touch()
        assert until(lambda: job.poll() is not None, _PATIENCE_S), f"no end: {why(job, directory)}"
        assert job.returncode == 0, why(job, directory)
    wanted = expected("SG3", {"smart_grid": table})
    assert wanted
    same(found(directory / "out"), wanted)
    say(f"{table.num_rows} rows in, {len(wanted)} rows of windows out, as without kills")


def _kill_worker(job: int, draw: random.Random) -> None:
    workers = [process for process in processes_of(job) if is_worker(process)]
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(workers), signal.SIGKILL)
