"""Transactions on a cluster with speculation, parts of which are killed or stalled, as in a serial run."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.crash.cluster.cluster import PATIENCE_S, Cluster, kinds_of
from tests.crash.cluster.cluster_transactions_job import FLOWS as NAMES
from tests.crash.cluster.slow_daemon import DOUBLE_COMMITS
from tests.crash.harness import random_moment, started, why
from tests.crash.transactions.transaction_job import FLOWS, START
from tests.crash.transactions.transaction_kills import Events, callers_of, verify
from tests.servers.processes import until

__all__ = ["run_transactions_with_speculation"]

_ROWS = 250
_STEPS = 2
"""Additions of events between two kills, of one micro-batch each or more."""


def run_transactions_with_speculation(
    directory: Path, seed: int, kills: int, *, say: Callable[[str], None] = print
) -> int:
    """Run a workflow, and a procedure with requests, on a cluster with speculation; kill or stall; compare.

    The driver lives on, and its queries with it, and clients that wait for answers.

    Returns
    -------
    int
        How many versions of tables two attempts had committed before Spark chose one.

    Raises
    ------
    AssertionError
        If a result, an answer or a row of a table is not that of the serial run, or a query failed.
    """
    draw = random.Random(seed)
    flows = {name: FLOWS[name] for name in NAMES}
    doubles = directory / "double_commits"
    doubles.mkdir()
    events = Events(directory, flows, seed, _ROWS)

    def reaches(goals: dict[str, int]) -> bool:
        return job.poll() is not None or all(events.committed(name) >= goal for name, goal in goals.items())

    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(directory))
        callers = callers_of(directory, flows, seed, stack)
        events.add()
        given = {"PENSTOCK_MASTER": cluster.url, DOUBLE_COMMITS: str(doubles), START: str(seed)}
        job = stack.enter_context(started(directory, "cluster/cluster_transactions_job.py", **given))
        for kill, kind in enumerate(kinds_of(draw, kills), 1):
            for _ in range(_STEPS):
                goals = {name: events.committed(name) + 1 for name in flows}
                events.add()
                assert until(partial(reaches, goals), PATIENCE_S), f"no progress: {why(job, directory)}"
            random_moment(draw)
            killed = cluster.kill(kind, draw)
            assert job.poll() is None, why(job, directory)
            batches = events.committed()
            say(f"kill {kill} of {kills}: {kind}, {killed} processes after {batches} micro-batches")
        events.add()
        for one in callers.values():
            one.finish(PATIENCE_S)
        (directory / "finished").touch()
        assert until(lambda: job.poll() is not None, PATIENCE_S), f"no end: {why(job, directory)}"
        assert job.returncode == 0, why(job, directory)
    for name, flow in flows.items():
        verify(directory / name, flow, events.rows[name], callers.get(name), say)
    double_commits = len(list(doubles.iterdir()))
    say(f"{events.committed()} micro-batches; {double_commits} versions that two attempts committed")
    return double_commits
