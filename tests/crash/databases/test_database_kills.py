"""A database that a directory keeps has all that it acknowledged, once, wherever its process is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock._failpoints import LOG_POINTS, P_STREAM_POINTS
from tests.crash.databases.database_kills import Jobs, run_with_kills
from tests.long_tests import LONG

pytestmark = pytest.mark.crash

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 5)
_FILE_POINTS = ("state.before_write", "state.after_write", "state.after_fsync", "state.after_publish")
_POINTS = {
    "open": (*_FILE_POINTS, *LOG_POINTS),
    "run": (*_FILE_POINTS, *P_STREAM_POINTS, *LOG_POINTS),
}
if LONG:
    _POINTS |= {
        "load": LOG_POINTS,
        "checkpoint": (*_FILE_POINTS, *LOG_POINTS),
        "close": (*_FILE_POINTS, *LOG_POINTS),
    }
_ROUNDS = 4
_MAX_TRIES = 20
"""A process does not come to each phase, for it draws when it loads and checkpoints."""


@pytest.mark.long
def test_each_fail_point_of_log_versions_and_start_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with Jobs(tmp_path, seed=3) as jobs:
        for point in (*_FILE_POINTS, *LOG_POINTS):
            assert jobs.run(rounds=_ROUNDS, armed={"create": point, "open": point}) < 0
            assert jobs.rounds == 0
        for phase, points in _POINTS.items():
            for point in points:
                codes: list[int] = []
                while not (tmp_path / f"{phase}-{point}").exists() and len(codes) < _MAX_TRIES:
                    codes.append(jobs.run(rounds=_ROUNDS, armed={phase: point}))
                if phase != "open" or codes:
                    assert codes[-1] < 0, f"nobody came to {point} in {phase}"
        assert jobs.run(rounds=_ROUNDS) == 0
        assert jobs.run(rounds=0) == 0


def test_random_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    print(f"replay: python -m tests.crash.databases.database_kills {_KILLS} {_SEED}")
    run_with_kills(tmp_path, _SEED, _KILLS)
