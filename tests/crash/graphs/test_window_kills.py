"""Windows whose job is killed at random moments equal those of an undisturbed run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.crash.graphs.window_kills import run_with_kills

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 1)


@pytest.mark.long
def test_every_window_comes_out_once_and_whole(tmp_path: Path) -> None:
    print(f"replay: script/crash {_KILLS} {_SEED}")
    run_with_kills(tmp_path, _SEED, _KILLS)
