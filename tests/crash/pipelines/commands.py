"""Commands of Penstock that run as a user starts them, and are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.checkpointing.p_stream import PStream
from tests.crash.harness import ROOT, kill_all, random_moment
from tests.servers.processes import until

SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 1)
RUN_S = 900.0  # a bound that a machine under load keeps; a command that ends early fails at once


class Commands:
    """Commands in one directory, with one environment.

    Parameters
    ----------
    directory : Path
        Where they run.
    **environment : str
        The variables of the pipeline.
    """

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        self._environment = (
            os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"} | environment
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``penstock`` with arguments, in a session of its own."""
        with (self.directory / "log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-c", "from penstock.cli import main; main()", *arguments],
                cwd=self.directory, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command until the end of the block, then kill all its processes."""
        command = self.start(*arguments)
        try:
            yield command
        finally:
            kill_all(command)

    def finish(self, *arguments: str) -> None:
        """Run a command to its end."""
        with self.running(*arguments) as command:
            assert command.wait(RUN_S) == 0, self.log()

    def log(self) -> str:
        """Return the end of the commands' output."""
        lines = (self.directory / "log").read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith('{"ts"'))[-3000:]

    def wait_for(self, command: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds while the command runs."""
        assert until(lambda: command.poll() is not None or condition(), RUN_S), self.log()
        assert command.poll() is None, self.log()


def kill_some(command: subprocess.Popen[str], draw: random.Random) -> None:
    """Kill a command at a random moment: the driver alone, or all its processes at once."""
    random_moment(draw)
    if draw.random() < 0.5:
        command.send_signal(signal.SIGKILL)
        command.wait()
    kill_all(command)


def stream_rows(place: Path) -> int:
    """Return how many rows a p-stream has; 0 if it does not exist."""
    return PStream(place).end if (place / "p-stream").exists() else 0
