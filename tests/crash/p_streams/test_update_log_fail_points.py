"""A process that compacts an update log and dies at any step loses nothing and leaves no garbage for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock._failpoints import COMPACTION_POINTS
from penstock.checkpointing.p_stream import PStream, PStreamReader
from penstock.checkpointing.p_stream.update_log.compaction import compact
from tests.crash.harness import ROOT
from tests.crash.p_streams.update_log_writer import ROWS, updates
from tests.long_tests import long_but

pytestmark = pytest.mark.crash


def _writer(directory: Path, commits: int, **environment: str) -> int:
    program = [
        sys.executable,
        str(ROOT / "tests/crash/p_streams/update_log_writer.py"),
        str(directory),
        str(commits),
    ]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(program, env=given, timeout=120, stdout=subprocess.DEVNULL, check=False).returncode


def _newest(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    newest: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["k"] not in newest or row["t"] >= newest[row["k"]]["t"]:
            newest[row["k"]] = row
    return newest


@pytest.mark.parametrize("point", long_but(COMPACTION_POINTS, COMPACTION_POINTS[0]))
def test_a_compaction_killed_at_a_fail_point_loses_nothing(tmp_path: Path, point: str) -> None:
    marker = tmp_path / "died"
    assert _writer(tmp_path, 20, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}") == -signal.SIGKILL
    assert marker.exists(), f"the compaction did not come to {point}"
    place = tmp_path / "log"
    killed = PStream(place)
    assert (killed.log.compaction is None) == (point == "compaction.after_segments")
    found = PStreamReader(place).read().to_pylist()
    assert _newest(found) == _newest(updates(0, killed.end)), "a reader sees the newest of each key"
    assert _writer(tmp_path, 20) == 0
    after = PStream(place)
    assert after.end == 20 * ROWS
    if after.log.compaction is None or after.log.compaction.end < after.end:
        assert compact(after) is not None
    after.refresh()
    assert {row["k"]: row for row in PStreamReader(place).read().to_pylist()} == _newest(
        updates(0, 20 * ROWS)
    )
    # Unfinished files of a writer go with `penstock gc`.
    left = {one.name for one in after.segments.list() if one.name[0] != "."} - after.log.segments()
    assert not left, "the segments of the dead process are gone"
