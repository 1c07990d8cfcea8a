"""Kill servers of a database and of its replicas, and check what concurrent clients saw.

python -m tests.crash.databases.replica_kills [KILLS [SEED]] [--partitions N]
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import penstock
from penstock._failpoints import LOG_POINTS, TAKEOVER_POINTS
from penstock.errors import FencedError, InvalidUsageError, PenstockError, UnavailableError
from tests.crash.harness import ROOT, partitions_to_run, repeat_kills
from tests.crash.power.disk import Disk, file_systems
from tests.models.clients import Clients, step
from tests.models.linearizability import keys_that_are_not_linearizable
from tests.servers.processes import until

__all__ = ["Servers", "run_with_cuts", "run_with_kills"]

_PATIENCE_S = 300.0
_CLIENTS = 3


class Servers:
    """A primary that answers clients, and a replica of it.

    Parameters
    ----------
    directory : Path
        The directory of the database and of the addresses.
    partitions : int
        The partitions of the database and its replicas.
    """

    def __init__(self, directory: Path, partitions: int = 1) -> None:
        self.directory = directory
        self._number = 0
        self._log = (directory / "job.log").open("w")
        self._job = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.databases.replica_job", str(directory), str(partitions)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self._answer() == "started", self.why()
        self.uri = ""
        """The address of the primary."""
        self.primary = self.replica = 0

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *error: object) -> None:
        self._job.communicate()
        self._log.close()

    def _answer(self) -> str:
        assert self._job.stdout is not None
        return self._job.stdout.readline().strip()

    def _tell(self, **what: Any) -> str:
        assert self._job.stdin is not None
        self._job.stdin.write(json.dumps(what) + "\n")
        self._job.stdin.flush()
        return self._answer()

    def why(self) -> str:
        """Return the output of the processes."""
        return (self.directory / "job.log").read_text()[-3000:]

    def _start(self, act: str, armed: str) -> int:
        self._number += 1
        number = self._number
        assert self._tell(act=act, number=number, armed=armed) == "forked", self.why()
        assert until((self.directory / f"server {number}").exists, _PATIENCE_S), self.why()
        return number

    def address(self, number: int) -> str:
        """Return the address of a server."""
        return (self.directory / f"server {number}").read_text()

    def open(self, armed: str = "") -> None:
        """Start a primary, which fences the one before."""
        self.primary = self._start("open", armed)
        self.uri = self.address(self.primary)

    def follow(self, armed: str = "") -> None:
        """Start a replica."""
        self.replica = self._start("follow", armed)

    def kill(self, number: int) -> None:
        """Kill a server, unless it has died at its fail point."""
        assert self._tell(act="kill", number=number) == "-9", self.why()

    def take_over(self, *, dies: bool = False) -> None:
        """Let the replica take over; it becomes the primary, or dies at its fail point."""
        uri = self.address(self.replica)
        with penstock.DatabaseClient(uri, timeout=f"{_PATIENCE_S:.0f}s") as client:
            try:
                client.take_over()
            except UnavailableError:
                assert dies, self.why()
                return
            assert not dies, "it did not die"
        self.primary, self.replica, self.uri = self.replica, 0, uri

    def try_to_take_over(self) -> None:
        """Let the replica take over, which may fail in any way."""
        with (
            contextlib.suppress(PenstockError),
            penstock.DatabaseClient(self.address(self.replica), timeout="30s") as client,
        ):
            client.take_over()

    def call(self, id_: str, procedure: str, arguments: dict[str, int]) -> Any:
        """Ask the primary until it answers, always with the same id."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                with penstock.DatabaseClient(self.uri, timeout="1s") as client:
                    return client.call_once(id_, procedure, **arguments)["now"]
            except (FencedError, InvalidUsageError, UnavailableError):
                if time.monotonic() > end:
                    raise

    def check(self, clients: Clients) -> None:
        """Check what the clients saw, and that the next start has the same."""
        clients.finish(_PATIENCE_S)
        assert not clients.errors, (clients.errors, self.why())
        wrong = keys_that_are_not_linearizable(clients.history, step)
        assert not wrong, f"not linearizable: {wrong}"
        for key in {one.key for one in clients.history}:
            changes = sum(one.asked or 0 for one in clients.history if one.key == key)
            assert (self.call(f"end {key}", "read", {"id": int(str(key))}) or 0) == changes


def run_with_kills(
    directory: Path, seed: int, kills: int, partitions: int = 1, *, say: Callable[[str], None] = print
) -> None:
    """Kill `kills` servers at moments drawn from `seed`, and check what the clients saw.

    Raises
    ------
    AssertionError
        If a change is lost or came twice, or the clients saw no possible order.
    """
    draw = random.Random(seed)
    with Servers(directory, partitions) as servers:
        servers.open()
        clients = Clients([servers.call] * _CLIENTS, seed)
        killed = takeovers = 0
        while killed < kills:
            servers.follow()
            goal = len(clients.history) + draw.randint(0, 8)
            assert until(lambda: len(clients.history) >= goal, _PATIENCE_S), servers.why()  # noqa: B023 - waited for here
            time.sleep(draw.uniform(0, 0.05))  # any moment of what it is in
            old, kind = servers.primary, draw.choice(["primary", "zombie", "replica", "point"])
            if kind in ("primary", "point"):
                servers.kill(old)
                killed += 1
            if kind in ("replica", "point"):
                servers.kill(servers.replica)
                point = draw.choice([*TAKEOVER_POINTS, *LOG_POINTS])
                (directory / point).unlink(missing_ok=True)
                servers.follow(armed=point)
                servers.take_over(dies=True)
                servers.kill(servers.replica)
                killed += 1
                servers.follow()
            servers.take_over()
            takeovers += 1
            if kind in ("zombie", "replica"):  # it is fenced, and goes on until now
                servers.kill(old)
                killed += 1
        servers.check(clients)
        say(
            f"{killed} servers were killed, {takeovers} replicas took over; {len(clients.history)} calls of "
            f"{_CLIENTS} clients happened once, in an order that all saw"
        )


def run_with_cuts(directory: Path, seed: int, cuts: int, *, say: Callable[[str], None] = print) -> None:
    """Cut the power `cuts` times of the disk that has the database; what was not synced is lost.

    The cut comes while clients call, or while a replica takes over.

    Raises
    ------
    AssertionError
        As `run_with_kills`.
    """
    draw = random.Random(seed)
    kind = draw.choice(file_systems())
    with Disk(directory / "disk.img", directory / "disk", kind) as disk, Servers(directory) as servers:
        (directory / "db").symlink_to(disk.place)
        servers.open()
        clients = Clients([servers.call] * _CLIENTS, seed)
        in_takeovers = 0
        for _ in range(cuts):
            servers.follow()
            goal = len(clients.history) + draw.randint(0, 8)
            assert until(lambda: len(clients.history) >= goal, _PATIENCE_S), servers.why()  # noqa: B023 - waited for here
            taking = threading.Thread(target=servers.try_to_take_over)
            if draw.random() < 0.6:
                taking.start()
                in_takeovers += 1
            time.sleep(draw.uniform(0, 0.1))  # any moment of what it is in
            disk.stop()
            servers.kill(servers.primary)
            servers.kill(servers.replica)
            if taking.ident is not None:
                taking.join()
            disk.restart()
            servers.open()
        servers.check(clients)
        say(
            f"the power was cut {cuts} times on {kind}, {in_takeovers} times in a takeover; "
            f"{len(clients.history)} calls happened once, in an order that all saw"
        )
        servers.kill(servers.primary)  # before the disk is unmounted


if __name__ == "__main__":
    number = partitions_to_run()
    run = partial(run_with_kills, partitions=number)
    repeat_kills("tests.crash.databases.replica_kills", run, 200, f"--partitions {number}")
