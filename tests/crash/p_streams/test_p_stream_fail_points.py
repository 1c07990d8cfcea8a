"""A writer of a p-stream that dies at any step of the protocol loses and repeats no row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock._failpoints import P_STREAM_POINTS, SINK_POINTS
from penstock.checkpointing.p_stream import PStream
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from tests.crash.harness import ROOT
from tests.crash.p_streams.p_stream_writer import rows
from tests.long_tests import long_but
from tests.spark.p_streams import append, numbers, run, stream
from tests.spark.queries import fresh_workers, limits

pytestmark = [pytest.mark.crash, pytest.mark.spark]


def _writer(directory: Path, **environment: str) -> int:
    """Run the writer's process to its end; return its exit code."""
    program = [sys.executable, str(ROOT / "tests/crash/p_streams/p_stream_writer.py"), str(directory)]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(program, env=given, timeout=120, stdout=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize("point", long_but(P_STREAM_POINTS, "p_stream.after_segments"))
def test_a_writer_killed_at_a_fail_point_goes_on_exactly_where_it_was(tmp_path: Path, point: str) -> None:
    marker = tmp_path / "died"
    armed = _writer(tmp_path, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}")
    assert armed == -signal.SIGKILL
    assert marker.exists(), f"the writer did not come to {point}"
    (tmp_path / "finish").touch()
    before = PStream(tmp_path / "source")
    assert len(before.segments.list()) == 1
    assert before.end == (
        0 if point == "p_stream.after_segments" else before.log.writers["numbers"].clock["n"]
    )
    assert _writer(tmp_path) == 0
    after = PStream(tmp_path / "source")
    after.cut_back("numbers")
    assert len(after.segments.list()) == len(after.log.commits), "the orphan is gone"
    assert numbers(tmp_path / "source") == rows(0, after.end)["n"].to_pylist()


@pytest.mark.parametrize("point", long_but(SINK_POINTS, "sink.before_commit"))
def test_a_query_whose_sink_is_killed_at_a_fail_point_writes_all_rows_once(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    source, sink, checkpoint = tmp_path / "source", tmp_path / "sink", tmp_path / "checkpoint"
    marker = tmp_path / "died"
    append(source, 0, 30)
    first = 20 if HAS_ADMISSION_CONTROL else 30  # older Sparks read all rows at once
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}"):
        penstock.register(spark)  # processes on the driver's side get the environment of this moment
        df = stream(spark, source, reader="query", **limits(maxRows=20))
        with pytest.raises(Exception, match=r"crashed|EOF|exited unexpectedly"):
            run(df, sink, checkpoint)
    assert marker.exists(), f"nobody came to {point}"
    assert PStream(sink).end == (first if point == "sink.after_commit" else 0)
    assert not list((checkpoint / "commits").glob("[0-9]*")), "Spark has committed nothing"
    penstock.register(spark)
    append(source, 30, 45)
    run(stream(spark, source, reader="query", **limits(maxRows=20)), sink, checkpoint)
    if not HAS_ADMISSION_CONTROL:  # the run repeated the micro-batch, and ended
        assert numbers(sink) == list(range(30))
        run(stream(spark, source, reader="query"), sink, checkpoint)
    assert numbers(sink) == list(range(45))
