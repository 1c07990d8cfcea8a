"""Queries whose disks lose power at random moments have the results of an undisturbed run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crash.power.disk import can_mount
from tests.crash.power.power_cuts import a_driver, a_session, run_with_cuts
from tests.crash.power.power_known_bad import DAEMON
from tests.spark.conftest import Sessions

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_CUTS = int(os.environ.get("PENSTOCK_CRASH_CUTS") or 0)
"""The number of power cuts of the long tests; the short test makes one."""


@pytest.fixture(scope="module", autouse=True)
def _can_mount(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not can_mount(tmp_path_factory.mktemp("disk")):
        pytest.skip("only root can mount a disk and cut its power")
    print(f"replay: script/crash 0 {_SEED} {_CUTS}")


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    """Give a session whose workers keep short chains of state."""
    with sessions.session(spark__python__daemon__module=DAEMON) as session:
        yield session


@pytest.mark.long
@pytest.mark.parametrize("disks", [2, 1] if _CUTS else [2])
def test_queries_whose_power_is_cut_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path, disks: int
) -> None:
    run_with_cuts(tmp_path, _SEED, _CUTS // 2 or 1, a_session(spark), count=disks)


@pytest.mark.long
def test_a_run_ends_when_its_time_is_over(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the run takes longer than 0 s"):
        run_with_cuts(tmp_path, _SEED, 1, a_session(spark), limit_s=0)


@pytest.mark.skipif(not _CUTS, reason="each start of a driver takes long")
@pytest.mark.parametrize("disks", [1, 2])
def test_a_driver_whose_power_is_cut_loses_and_repeats_nothing(tmp_path: Path, disks: int) -> None:
    run_with_cuts(tmp_path, _SEED + disks, max(_CUTS // 10, 1), a_driver(_SEED + disks), count=disks)
