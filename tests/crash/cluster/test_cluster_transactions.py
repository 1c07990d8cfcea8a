"""Transactions on a cluster with speculative attempts end as a serial run does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.crash.cluster.cluster_transactions import run_transactions_with_speculation

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_KILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 1)
_KILLS_WITH_DOUBLE_COMMITS = 5
"""A run of so many has a version that two attempts committed."""


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_CRASH_KILLS"), reason="a cluster takes long to start; script/crash runs it"
)
def test_speculative_attempts_of_transactions_count_once(tmp_path: Path) -> None:
    print(f"replay: script/crash {_KILLS} {_SEED}")
    double_commits = run_transactions_with_speculation(tmp_path, _SEED, _KILLS)
    assert double_commits or _KILLS < _KILLS_WITH_DOUBLE_COMMITS
