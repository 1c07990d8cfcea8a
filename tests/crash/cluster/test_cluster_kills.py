"""A query on a cluster whose executors and workers are killed and stalled, with speculation on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.crash.cluster.cluster import run_with_kills

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.long]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 1)
_KILLS_WITH_DOUBLE_COMMITS = 5
"""A run of so many has a version that two attempts committed: about one for each micro-batch or two."""


def test_a_query_on_a_cluster_ends_with_the_newest_update_of_every_key(tmp_path: Path) -> None:
    print(f"replay: script/crash {_KILLS} {_SEED}")
    double_commits = run_with_kills(tmp_path, _SEED, _KILLS)
    assert double_commits or _KILLS < _KILLS_WITH_DOUBLE_COMMITS
