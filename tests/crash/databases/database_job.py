"""A process that is killed: runs rounds of a random workflow in a database that a directory keeps.

Usage: ``python -m tests.crash.databases.database_job DIRECTORY SEED PARTITIONS``. This is a server that forks
a process for each line of its input, so that a start takes milliseconds, and kills it. Each process appends a
line to the file ``acknowledged`` in the directory for each call that returned. A process has at most so many
partitions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

from penstock import _failpoints
from penstock.procedures.compiler.program import Program, event_schema
from penstock.procedures.databases import Database
from penstock.procedures.in_process.command_log import CommandLog
from penstock.procedures.in_process.write_ahead_log import WriteAheadLog
from penstock.procedures.partitions.design import PartitionDesign
from penstock.procedures.partitions.partitioned_tables import State
from tests.transactions.procedures import interpreted
from tests.transactions.workflows import Drawn, state_bytes, workflows

ACKNOWLEDGED = "acknowledged"
Recovery = Literal["weak", "strong"]
Armed = Mapping[str, str]
"""Fail points by the phase of a job that arms them: create, open, load, run, checkpoint, close."""

_EXAMPLES = 12


@functools.cache
def workload(seed: int) -> tuple[Database, Program]:
    """Return a random workflow, with a kernel that Python runs."""
    made: list[Drawn] = []

    @hypothesis_seed(seed)
    @settings(
        max_examples=_EXAMPLES, phases=[Phase.generate], database=None, suppress_health_check=[*HealthCheck]
    )
    @given(drawn=workflows())
    def draw(drawn: Drawn) -> None:
        made.append(drawn)

    draw()
    programs = [one.flow.program() for one in made]
    # A round of one transaction cannot break off in its middle.
    database, program = max(
        (
            (one.database, program)
            for one, program in zip(made, programs, strict=True)
            if isinstance(program, Program)
        ),
        key=lambda found: len(found[1].transactions),
    )
    database.table("loaded", "round bigint, text string", key="round")
    program.__dict__["kernel"] = interpreted(program)
    return database, program


def events_of(seed: int, number: int, program: Program) -> pa.RecordBatch:
    """Return the events of a round."""
    draw = random.Random(f"{seed} {number}")
    rows = [
        {"round": number, "k": draw.choice([None, 0, 1, 2, 3]), "v": draw.choice([None, *range(-3, 12)]),
         "s": draw.choice([None, "a", "b", f"text {number}"])}
        for _ in range(draw.choice([1, 1, 2, 4]))
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=event_schema(program.event))


def loads(seed: int, number: int) -> dict[str, list[Any]] | None:
    """Return the rows to load before a round, if any."""
    if random.Random(f"load {seed} {number}").random() < 0.7:
        return None
    return {"round": [number], "text": [f"text {number % 5}"]}


def digest(value: object) -> str:
    """Return a short digest of values."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def state_digest(state: State, database: Database) -> str:
    """Return a short digest of a state, without the loaded table."""
    return digest([item for item in sorted(state_bytes(state, database).items()) if item[0] != "loaded"])


def run(place: str, seed: int, attempt: int, rounds: int, armed: Armed, partitions: int = 1) -> None:
    """Run rounds from where the last process stopped, then close. For armed phases see `Armed`."""
    database, program = workload(seed)
    directory, draw = Path(place), random.Random(f"{seed} {attempt}")
    CommandLog.calls_for_checkpoint = draw.choice([3, 10, 1 << 14])
    WriteAheadLog.bytes_before_room = draw.choice([1, 1 << 17])
    WriteAheadLog.part_bytes = 1 << 14

    def arm(phase: str) -> None:
        point = armed.get(phase)
        _failpoints._ARMED = {} if point is None else {point: f"kill@{directory / phase}-{point}"}

    out = os.open(directory / ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    arm("open" if (directory / "db" / "tables").exists() else "create")
    recovery: Recovery = draw.choice(["weak", "strong"])
    if partitions > 1:  # what strong recovery has logged is repeated in one partition
        recovery, partitions = "weak", draw.randint(1, partitions)
    if partitions > 1 and draw.random() < 0.5:  # the rows move to the partitions of another design
        by_column = {spec.name: draw.choice([None, *spec.key]) for spec in database.tables.values()}
        design = PartitionDesign(database.name, partitions, by_column)
        db = database.open(directory / "db", recovery=recovery, design=design)
    else:
        db = database.open(directory / "db", recovery=recovery, partitions=partitions)
    done = db._state.transactions
    last = done + rounds
    rows = db.table("loaded").to_pylist()
    loaded = {row["round"] for row in rows}
    if any(row["text"] != f"text {row['round'] % 5}" for row in rows):
        raise AssertionError("a loaded row has changed")
    tell("opened", done, state_digest(db._state, database), ",".join(map(str, sorted(loaded))))
    while done < last:
        columns = loads(seed, done + 1)
        if columns is not None and done + 1 not in loaded:
            arm("load")
            db.load("loaded", columns)
            tell("loaded", done + 1)
        count = min(draw.choice([1, 1, 1, 3]), last - done)
        parts = [events_of(seed, number, program) for number in range(done + 1, done + 1 + count)]
        arm("run")
        results = db.run("flow", pa.Table.from_batches(parts), batch="round")
        done += count
        tell("ran", done, digest(results.slice(len(results) - parts[-1].num_rows).to_pylist()))
        if draw.random() < 0.4:
            arm("checkpoint")
            db.checkpoint()
    arm("close")
    db.close()
    arm("")
    tell("closed", done)


def _lines(place: str) -> int:
    file = Path(place, ACKNOWLEDGED)
    return file.read_bytes().count(b"\n") if file.exists() else 0


def serve(place: str, seed: int, partitions: int) -> None:
    """Fork a process for each line of input; answer with its exit code once it has ended."""
    with tempfile.TemporaryDirectory() as other:
        run(other, seed, 0, 2, {})  # imports and loads what each process would
    if threading.active_count() > 1:
        raise AssertionError(f"threads do not survive a fork: {threading.enumerate()}")
    print("started", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        process = os.fork()
        if process == 0:
            code = 1
            try:
                run(place, seed, job["attempt"], job["rounds"], job["armed"], partitions)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        handle = os.pidfd_open(process)
        wanted = _lines(place) + job["kill_after_lines"]
        while _lines(place) < wanted and not select.select([handle], [], [], 0.005)[0]:
            pass
        select.select([handle], [], [], job["kill_after_s"])
        os.kill(process, signal.SIGKILL)  # not waited for yet, so that the id is still its own
        os.close(handle)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
