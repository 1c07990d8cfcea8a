"""Queries whose disks lose power at random moments end as if they had not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.crash.disk import can_mount
from tests.crash.power_cuts import run_with_cuts

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_CUTS = int(os.environ.get("PENSTOCK_CRASH_CUTS") or 1)


@pytest.mark.parametrize("disks", [1, 2])
def test_queries_whose_power_is_cut_lose_and_repeat_nothing(tmp_path: Path, disks: int) -> None:
    if not can_mount(tmp_path):
        pytest.skip("only root may mount a disk and cut its power")
    print(f"replay: script/crash 0 {_SEED} {_CUTS}")
    run_with_cuts(tmp_path, _SEED, _CUTS, count=disks)
