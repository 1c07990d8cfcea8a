"""Kill the driver, the JVM or a worker of a graph of windows at random, and compare window for window."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.streams import REAL
from tests.crash.harness import kill_all, processes_of, random_moment, started, why
from tests.crash.p_streams.p_stream_kills import is_worker, verify_trace
from tests.oracles.table3 import expected, found, same
from tests.servers.processes import until
from tests.spark.queries import Input

PATIENCE_S = 300.0
FILE_S = 8
KINDS = ("all", "driver", "jvm", "worker")


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


@dataclass(frozen=True)
class Workload:
    """A job that is killed.

    Parameters
    ----------
    job : str
        A program of this directory; its graph reads the directory ``files`` and writes the p-stream ``out``.
    table : callable
        From a seed and seconds to all rows of all files, in order.
    expected : callable
        From these to the windows that come out.
    group_rows : int, optional
        Rows of the files' row groups.
    """

    job: str
    table: Callable[[int, int], pa.Table]
    expected: Callable[[pa.Table], list[dict[str, Any]]]
    group_rows: int | None = None


JOINED = Workload("graphs/window_job.py", readings, lambda table: expected("SG3", {"smart_grid": table}))
"""Two kinds of windows and their join, behind a p-stream."""


def run_with_kills(
    directory: Path,
    seed: int,
    kills: int,
    *,
    workload: Workload = JOINED,
    say: Callable[[str], None] = print,
) -> None:
    """Kill `kills` times, of each kind, at moments drawn from `seed`; compare what came out.

    Files come while the job runs and while it does not. A job whose worker is killed goes on for a while;
    then, as after every kill, all that is left of it is killed, too.

    Raises
    ------
    AssertionError
        If a window is missing, came twice or is another, or the job ended by itself.
    """
    draw = random.Random(seed)
    kinds = [kind for _ in range(-(-kills // len(KINDS))) for kind in draw.sample(KINDS, len(KINDS))]
    files = 3 * (kills + 1)
    table = workload.table(seed, FILE_S * files)
    bounds = sorted(draw.randrange(table.num_rows) for _ in range(files - 1))
    pieces = [table.slice(a, b - a) for a, b in zip([0, *bounds], [*bounds, table.num_rows], strict=True)]
    source = Input(directory / "files")
    commits = directory / "checkpoint" / "queries" / "results" / "commits"

    def committed() -> int:
        return len(list(commits.glob("[0-9]*")))

    def add(*some: pa.Table) -> None:
        source.add(*some, group_rows=workload.group_rows)

    add(*pieces[:3])
    for kill, kind in enumerate(kinds[:kills], 1):
        with started(directory, workload.job) as job:
            goal = committed() + draw.choice([0, 1, 1, 2])
            add(*pieces[3 * kill : 3 * kill + 2])
            until(lambda job=job, goal=goal: committed() >= goal or job.poll() is not None, PATIENCE_S)  # type: ignore[misc]
            assert committed() >= goal, f"no progress: {why(job, directory)}"
            random_moment(draw)
            assert job.poll() is None, why(job, directory)
            if kind != "all":
                kill_one(job, kind, draw)
                random_moment(draw)
            assert kind != "worker" or job.poll() is None, why(job, directory)
            killed = kill_all(job)
            # A driver whose JVM is gone may have ended with an error.
            assert kind == "jvm" or job.returncode == -signal.SIGKILL
        add(pieces[3 * kill + 2])
        say(f"kill {kill} of {kills}: {kind}, {len(killed)} processes after {committed()} micro-batches")
    with started(directory, workload.job) as job:
        (directory / "finished").touch()
        assert until(lambda: job.poll() is not None, PATIENCE_S), f"no end: {why(job, directory)}"
        assert job.returncode == 0, why(job, directory)
    wanted = workload.expected(table)
    assert wanted
    same(found(directory / "out"), wanted)
    say(f"{table.num_rows} rows in, {len(wanted)} rows of windows out, as without kills")
    verify_trace(directory, say)


def kill_one(job: subprocess.Popen[str], kind: str, draw: random.Random) -> None:
    """Kill a worker, the JVM, or the driver alone."""
    known: dict[str, Callable[[int], bool]] = {
        "driver": lambda one: one == job.pid,
        "jvm": _is_jvm,
        "worker": is_worker,
    }
    found = [process for process in processes_of(job.pid) if known[kind](process)]
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(found), signal.SIGKILL)


def _is_jvm(process: int) -> bool:
    with contextlib.suppress(OSError):
        return b"java" in Path(f"/proc/{process}/cmdline").read_bytes().partition(b"\0")[0]
    return False
