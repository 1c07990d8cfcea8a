"""Processes that are killed: servers of a database of counters, and of replicas of it.

Usage: ``python -m tests.crash.databases.replica_job DIRECTORY PARTITIONS``. This process forks a server for
each line of its input that says so, so that a start takes milliseconds, and kills it when told. A server
writes its address into a file ``server N`` of the directory.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path

from penstock import _failpoints
from penstock.procedures.in_process.command_log import CommandLog
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.write_ahead_log import WriteAheadLog
from penstock.procedures.replicas.replica import Replica
from penstock.procedures.served.server import DatabaseServer
from tests.models.clients import counters


def run(place: Path, number: int, partitions: int, *, follow: bool, armed: str) -> None:
    """Serve the database or a replica until the process is killed, at the fail point `armed` or by others."""
    draw = random.Random(f"{place} {number}")
    CommandLog.calls_for_checkpoint = draw.choice([3, 10, 1 << 14])
    WriteAheadLog.bytes_before_room = draw.choice([1, 1 << 17])
    WriteAheadLog.part_bytes = 1 << 14
    if armed and follow:
        _arm(place, armed)  # a replica comes to no point before it takes over
    database = counters()
    if follow:
        made: OpenDatabase | Replica = database.follow(
            place / "db", poll_interval="20ms", partitions=partitions
        )
    else:
        made = database.open(place / "db", partitions=partitions)
    if armed and not follow:
        _arm(place, armed)
    server = DatabaseServer(made)
    unfinished = place / f"unfinished {number}"
    unfinished.write_text(server.uri)
    unfinished.rename(place / f"server {number}")
    signal.pause()


def _arm(place: Path, point: str) -> None:
    _failpoints._ARMED = {point: f"kill@{place / point}"}


def main() -> None:
    """Fork and kill servers as the input tells; print the exit code of each that is killed."""
    place = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as other, counters().open(other) as db:
        db.call("change", id=1, by=1)  # loads what each server would
        db.call("read", id=1)
    if threading.active_count() > 1:
        raise AssertionError(f"threads do not survive a fork: {threading.enumerate()}")
    print("started", flush=True)
    servers: dict[int, int] = {}
    for line in sys.stdin:
        job = json.loads(line)
        number = job["number"]
        if job["act"] == "kill":
            process = servers.pop(number)
            os.kill(process, signal.SIGKILL)  # not waited for yet, so that the id is still its own
            print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
            continue
        servers[number] = os.fork()
        if servers[number] == 0:
            try:
                run(place, number, int(sys.argv[2]), follow=job["act"] == "follow", armed=job["armed"])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        print("forked", flush=True)
    for process in servers.values():
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
