"""A chain of p-streams whose processes are killed at random moments has the results of an undisturbed run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.crash.p_streams.p_stream_kills import run_with_kills

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 2)


@pytest.mark.long
def test_what_comes_out_is_the_same_tuple_for_tuple(tmp_path: Path) -> None:
    print(f"replay: script/crash {_KILLS} {_SEED}")
    run_with_kills(tmp_path, _SEED, _KILLS)
