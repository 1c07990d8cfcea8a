"""TPC-C keeps its conditions, and every call that returned, through kills."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.crash.databases.oltp_job import MAX_CALLS, SIZE, TPCC, call, load, without_the_compiler

ROOT = Path(__file__).parents[3]


def kill_after(place: Path, calls: int, partitions: int, delay_s: float = 0.0) -> int:
    """Run the job, kill it some time after a number of calls have returned; return its last number."""
    command = [sys.executable, "-m", "tests.crash.databases.oltp_job", str(place), str(partitions)]
    last = -1
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        for count, line in enumerate(job.stdout, 1):
            last = int(line)
            if count == calls:
                threading.Timer(delay_s, job.kill).start()
        assert job.wait() in (-9, 0)
    return last


def check(place: Path, last: int) -> int:
    """Compare the database with one that was never killed; return how many calls it holds."""
    without_the_compiler()
    with TPCC.database.open(place) as db, TPCC.database.open() as expected:
        calls, rest = divmod(db._state.transactions, SIZE)
        assert rest == 0
        assert last + 1 <= calls
        assert TPCC.broken_conditions(db.snapshot()) == []
        load(expected)
        for number in range(calls):
            call(expected, number)
        for name, spec in TPCC.database.tables.items():
            order = [(column, "ascending") for column in spec.key]
            assert db.table(name).sort_by(order).equals(expected.table(name).sort_by(order)), name
    return calls


def test_tpcc_keeps_what_returned_and_its_conditions_through_a_kill(tmp_path: Path) -> None:
    assert check(tmp_path, kill_after(tmp_path, 7, partitions=2)) >= 7


@pytest.mark.long
def test_tpcc_keeps_its_conditions_through_many_kills(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    last = -1
    for _ in range(20):
        calls, partitions = draw.randint(1, 6), draw.randint(1, 3)
        last = max(last, kill_after(tmp_path, calls, partitions, draw.random() / 20))
        if last + 1 == MAX_CALLS:
            break
        check(tmp_path, last)
    assert last > 20
