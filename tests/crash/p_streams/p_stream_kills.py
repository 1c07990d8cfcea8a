"""Kill the writer, a worker or the driver of a chain of p-streams at random, and compare tuple for tuple."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from penstock.checkpointing.p_stream import PStream, PStreamReader
from tests.crash.harness import TRACE, kill_all, processes_of, random_moment, started, why
from tests.crash.p_streams.p_stream_writer import SCHEMA
from tests.models.replay import replay, trace_in
from tests.servers.processes import until

_PATIENCE_S = 300.0
_DRIVER, _WRITER = "p_streams/p_stream_job.py", "p_streams/p_stream_writer.py"
_KINDS = ("writer", "worker", "driver", "worker", "writer")


class Chain:
    """A writer's process and a driver's, which go on in new processes after each kill."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[str, tuple[subprocess.Popen[str], ExitStack]] = {}

    def __enter__(self) -> Chain:
        self.start(_WRITER)
        self.start(_DRIVER)
        return self

    def __exit__(self, *error: object) -> None:
        for _, stack in self._running.values():
            stack.close()

    def start(self, program: str) -> None:
        """Start a program again."""
        with ExitStack() as stack:
            job = stack.enter_context(started(self.directory, program))
            self._running[program] = (job, stack.pop_all())

    def is_alive(self, program: str) -> bool:
        return self._running[program][0].poll() is None

    def check(self) -> None:
        """Check that no process ended by itself."""
        for program, (job, _) in self._running.items():
            assert self.is_alive(program), f"{program}: {why(job, self.directory)}"

    def stuck(self) -> str:
        """Return the output of a driver that makes no progress."""
        return f"no progress: {why(self._running[_DRIVER][0], self.directory)}"

    def kill(self, kind: str, draw: random.Random) -> int:
        """Kill one process, or all that a driver started; return their number."""
        program = _WRITER if kind == "writer" else _DRIVER
        job, stack = self._running[program]
        if kind == "worker":
            workers = [process for process in processes_of(job.pid) if is_worker(process)]
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(workers), signal.SIGKILL)
            return min(1, len(workers))
        killed = kill_all(job)
        assert job.returncode == -signal.SIGKILL
        stack.close()
        self.start(program)
        return len(killed)

    def finish(self) -> None:
        """Let the writer end, then the driver."""
        for name, program in (("finish", _WRITER), ("finished", _DRIVER)):
            (self.directory / name).touch()
            job, _ = self._running[program]
            assert until(partial(_has_ended, job), _PATIENCE_S), (
                f"{program} did not end: {why(job, self.directory)}"
            )
            assert job.returncode == 0, why(job, self.directory)

    def committed(self) -> int:
        """Return how many micro-batches Spark has committed."""
        return len(list((self.directory / "checkpoint" / "queries" / "results" / "commits").glob("[0-9]*")))

    def has_committed(self, goal: int) -> bool:
        return self.committed() >= goal


def _has_ended(job: subprocess.Popen[str]) -> bool:
    return job.poll() is not None


def is_worker(process: int) -> bool:
    """Say whether a process is a Python worker of Spark."""
    with contextlib.suppress(OSError):
        # Those of data sources have PySpark's own daemon, the others ours.
        return b".daemon\0pyspark." in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def run_with_kills(directory: Path, seed: int, kills: int, *, say: Callable[[str], None] = print) -> None:
    """Kill `kills` times, of each kind, at moments drawn from `seed`; compare what came out.

    Raises
    ------
    AssertionError
        If anything was lost, came twice, is in another order, or a process ended by itself.
    """
    draw = random.Random(seed)
    kinds = [_KINDS[kill % len(_KINDS)] for kill in range(kills)]
    draw.shuffle(kinds)
    PStream(directory / "source", SCHEMA, direct_io=bool(seed % 2))
    with Chain(directory) as chain:
        for kill, kind in enumerate(kinds, 1):
            goal = chain.committed() + draw.choice([0, 1, 1, 2])
            assert until(partial(chain.has_committed, goal), _PATIENCE_S), chain.stuck()
            random_moment(draw)
            chain.check()
            begin = time.monotonic()
            killed = chain.kill(kind, draw)
            say(
                f"kill {kill} of {kills}: {kind}, {killed} processes after batch {chain.committed() - 1}; "
                f"up in {time.monotonic() - begin:.1f} s"
            )
        chain.finish()
    verify(directory, say)


def verify(directory: Path, say: Callable[[str], None] = print) -> None:
    """Compare the sink with what an uninterrupted run gives, tuple for tuple, in order."""
    source = PStream(directory / "source")
    count = source.end
    assert count == source.log.writers["numbers"].clock["n"], "the writer wrote a row twice, or lost one"
    sink = PStreamReader(directory / "sink").read()
    assert sink.column_names == ["n", "square", "text"]
    found = list(zip(*(sink[name].to_pylist() for name in sink.column_names), strict=True))
    assert found == expected(count), "the sink differs from an uninterrupted run"
    say(f"{count} rows in, {len(found)} rows out, as without kills; rows from {source.start} on are kept")
    verify_trace(directory, say)


def verify_trace(directory: Path, say: Callable[[str], None] = print) -> None:
    """Replay the traces of all processes through the model of the protocol."""
    made = replay(trace_in(directory / TRACE))
    say(f"the model allows all {sum(made.counts.values())} steps: {dict(made.counts)}")


def expected(count: int) -> list[tuple[Any, ...]]:
    """Return the query's results for the first `count` numbers."""
    return [(n, n * n, f"TEXT {n}" if n % 5 else None) for n in range(count) if n % 3]
