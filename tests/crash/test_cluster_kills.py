"""A query on a cluster whose executors and workers are killed and stalled, with speculation on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.crash.cluster import run_with_kills

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 1)


def test_a_query_on_a_cluster_ends_with_the_newest_update_of_every_key(tmp_path: Path) -> None:
    print(f"replay: script/crash {_KILLS} {_SEED}")
    run_with_kills(tmp_path, _SEED, _KILLS)
