"""Cut the power of the disks under six kinds of queries repeatedly, and check that nothing is lost.

The disks are real: ext4 on a loop device, shut down without a flush and mounted again, so that what was not
synced is gone, or an empty file. What runs is either a driver, of which all processes are killed, or the
queries of a session that stays, whose Python workers are killed; that takes less time.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from tests.crash.harness import FILE_MANAGERS, count_batches, kill_all, random_moment, started, why
from tests.crash.power.disk import Disk, disks, file_systems
from tests.crash.power.power_job import BROKEN, CHECKPOINTS, FILE_MANAGER, STREAMS, Queries
from tests.crash.power.power_source import Source
from tests.servers.processes import until
from tests.spark.queries import fresh_workers

__all__ = ["Place", "a_driver", "a_session", "run_with_cuts"]

_MAX_COMMITS = 30
_PATIENCE_S = 180.0
"""The wait for progress."""
_START_S, _CUT_S = 600.0, 120.0
"""The time that a run may take in all, and for each cut more."""


class Running(Protocol):
    """The runner of the queries."""

    def check(self) -> None:
        """Fail if a query has failed."""

    def cut(self) -> None:
        """Cut the power, and end whatever uses the disks."""


class Place:
    """The disks, and where checkpoints and p-streams lie on them."""

    def __init__(self, directory: Path, disks: list[Disk]) -> None:
        self.directory = directory
        self.checkpoints = disks[0].place / "checkpoints"
        self.streams = disks[-1].place / "streams"
        self._disks = disks

    def stop(self) -> None:
        """Cut the power: first of p-streams, so that none takes anything after checkpoints have stopped."""
        for disk in reversed(self._disks):
            disk.stop()

    def restart(self) -> None:
        """Mount the disks again."""
        for disk in self._disks:
            disk.restart()

    def commits(self) -> int:
        """Return how many micro-batches all queries have committed."""
        return count_batches(self.checkpoints)


Start = Callable[[Place], AbstractContextManager[Running]]


def a_driver(seed: int, broken: str = "") -> Start:
    """Return a function that starts a driver in its own process."""

    @contextlib.contextmanager
    def start(place: Place) -> Iterator[Running]:
        environment = {
            CHECKPOINTS: str(place.checkpoints),
            STREAMS: str(place.streams),
            FILE_MANAGER: FILE_MANAGERS.format("System" if seed % 2 else "Context"),
            BROKEN: broken,
        }
        with started(place.directory, "power/power_job.py", **environment) as job:

            class Driver:
                def check(self) -> None:
                    assert job.poll() is None, why(job, place.directory)

                def cut(self) -> None:
                    kill_all(job)
                    place.stop()

            yield Driver()

    return start


def a_session(spark: SparkSession, broken: str = "") -> Start:
    """Return a function that starts the queries in a session."""

    @contextlib.contextmanager
    def start(place: Place) -> Iterator[Running]:
        queries = Queries(spark, place.checkpoints, place.streams, broken)

        class Session:
            check = queries.check

            def cut(self) -> None:
                place.stop()
                queries.stop()
                # What is in memory is lost, too.
                spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]

        try:
            queries.start()
            yield Session()
        finally:
            queries.stop()
            with fresh_workers(spark):
                pass

    return start


def run_with_cuts(
    directory: Path,
    seed: int,
    cuts: int,
    start: Start,
    *,
    count: int = 2,
    say: Callable[[str], None] = print,
    limit_s: float | None = None,
) -> None:
    """Cut the power `cuts` times at moments drawn from `seed`; compare what came out.

    Checkpoints and state lie on the first of `count` disks, p-streams on the last. Rows come before each
    start and while the queries run. By default the whole takes at most ten minutes, and two for each cut.

    Raises
    ------
    AssertionError
        If a row is missing, came twice or is another, or the time is over.
    """
    draw = random.Random(seed)
    wait = _Waits(_START_S + cuts * _CUT_S if limit_s is None else limit_s)
    with ExitStack() as stack:
        kinds = draw.choices(file_systems(), k=count)
        place = Place(directory, stack.enter_context(disks(directory, kinds)))
        source = Source(place.streams)
        for cut in range(1, cuts + 1):
            source.add(draw.randint(4, 12))
            with start(place) as running:
                goal = place.commits() + draw.randint(0, _MAX_COMMITS)
                comes = partial(_comes_to, goal, place, source, running)
                assert wait.until(comes), f"no progress: {source.progress()}"
                random_moment(draw)
                running.check()
                running.cut()
            place.restart()
            say(f"cut {cut} of {cuts}: {source.rows} rows in, {source.progress()} out")
            source.check(finished=False)
        source.add(4)
        source.close_windows()
        with start(place) as running:
            while missing := source.missing():
                moves = partial(_has_moved, missing, source, running)
                assert wait.until(moves), f"no progress, and not all came out: {missing}"
        source.check(finished=True)
        say(f"{source.rows} rows in; all that came out is as without cuts, on {' and '.join(kinds)}")


class _Waits:
    """Waits for progress, all of which together take at most `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._end = time.monotonic() + limit_s

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until `condition` holds; say whether it did within `_PATIENCE_S`.

        Raises
        ------
        AssertionError
            If the time of all waits is over.
        """
        left = self._end - time.monotonic()
        assert left > 0, f"the run takes longer than {self._limit_s:.0f} s"
        return until(condition, min(_PATIENCE_S, left))


def _comes_to(goal: int, place: Place, source: Source, running: Running) -> bool:
    """Say whether that many micro-batches are committed; until then rows come."""
    running.check()
    source.keep_ahead()
    return place.commits() >= goal


def _has_moved(missing: dict[str, int], source: Source, running: Running) -> bool:
    """Return whether the missing results have changed."""
    running.check()
    return source.missing() != missing
