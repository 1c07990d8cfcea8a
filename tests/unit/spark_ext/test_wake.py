"""The process in which Spark plans the micro-batches of a source."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import importlib.util, sys
from penstock.spark_ext.sources.wake import hide_lost_driver
sys.modules["__main__"].__spec__ = importlib.util.find_spec({program!r})
hide_lost_driver()
try:
    raise ConnectionResetError("the driver is gone")
except ConnectionResetError:
    raise {error}("told")
"""
_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


@pytest.mark.parametrize(
    ("program", "error", "is_told"),
    [
        (_PLANNER, "BrokenPipeError", False),
        (_PLANNER, "ValueError", True),
        ("json.tool", "BrokenPipeError", True),
    ],
)
def test_only_a_lost_driver_is_not_told(program: str, error: str, is_told: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(program=program, error=error)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert (f"{error}: told" in done.stderr) is is_told
    assert bool(done.stderr) is is_told
