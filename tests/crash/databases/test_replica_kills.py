"""Clients see one order of calls, wherever a database or the replica that takes over is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock._failpoints import LOG_POINTS, P_STREAM_POINTS, TAKEOVER_POINTS
from tests.crash.databases.replica_kills import Servers, run_with_cuts, run_with_kills
from tests.crash.power.disk import can_mount
from tests.models.clients import Clients
from tests.servers.processes import until

pytestmark = pytest.mark.crash

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 3)
_FILE_POINTS = ("state.before_write", "state.after_write", "state.after_fsync", "state.after_publish")


def test_random_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    print(f"replay: python -m tests.crash.databases.replica_kills {_KILLS} {_SEED}")
    run_with_kills(tmp_path, _SEED, _KILLS)


@pytest.mark.long
def test_each_fail_point_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        servers.open()
        clients = Clients([servers.call] * 2, 1)
        for point in (*LOG_POINTS, *P_STREAM_POINTS, *_FILE_POINTS):
            before = servers.primary
            servers.open(armed=point)
            servers.follow()
            assert until((tmp_path / point).exists, 120), f"nobody came to {point}: {servers.why()}"
            servers.kill(before)
            servers.kill(servers.primary)
            servers.take_over()
            (tmp_path / point).unlink()
        for point in (*TAKEOVER_POINTS, *LOG_POINTS, "state.before_write"):
            servers.follow(armed=point)
            servers.take_over(dies=True)
            servers.kill(servers.replica)
            assert (tmp_path / point).exists()
            before = servers.primary
            servers.follow()
            servers.take_over()
            servers.kill(before)
        servers.check(clients)


@pytest.mark.long
def test_cut_power_loses_and_repeats_nothing(tmp_path: Path) -> None:
    (tmp_path / "try").mkdir()
    if not can_mount(tmp_path / "try"):
        pytest.skip("only root can mount a disk and cut its power")
    run_with_cuts(tmp_path, _SEED, _KILLS)
