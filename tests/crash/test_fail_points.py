"""A Python worker that dies at any step of the protocol changes nothing in the end."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock._failpoints import STATE_POINTS
from tests.crash.known_bad import KNOWN_BAD
from tests.crash.workload import add_steps, query, steps, verify
from tests.long_tests import long_but
from tests.oracles.naive import Update
from tests.spark.queries import Place, failure, fresh_workers, wait, wait_until_drained

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_WIDE = 40_000
"""Bytes of text a row, so that a few deltas outgrow their snapshot and old versions are released."""


_IN_BACKGROUND = "operator.before_release"
"""The point to which a thread comes that no task waits for."""


def drain(spark: SparkSession, place: Place) -> None:
    running = place.start(query(spark, place))
    try:
        wait_until_drained(running, place)
    finally:
        running.stop()


def interrupt(
    spark: SparkSession,
    place: Place,
    point: str,
    batches: list[list[Update]],
    *,
    broken: str = "",
) -> str:
    """Run a query well, then with workers that die once at `point`, then well; return how it died.

    Workers with a `broken` protocol are new in the end, so that they read the state that was left.
    """
    text_bytes = _WIDE if point == _IN_BACKGROUND else 40
    add_steps(place, batches[:1], text_bytes=text_bytes)
    with fresh_workers(spark, PENSTOCK_KNOWN_BAD=broken) if broken else nullcontext():
        place.run_until(query(spark, place), lambda: bool(place.rows("k")))
    add_steps(place, batches[1:-1], text_bytes=text_bytes)
    marker = place.directory / "died"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}", PENSTOCK_KNOWN_BAD=broken):
        if point == _IN_BACKGROUND:
            error = _killed_in_background(spark, place, marker)
        else:
            error = failure(query(spark, place), place)
    assert marker.exists(), f"no worker came to {point}"
    add_steps(place, batches[-1:], text_bytes=text_bytes)
    with fresh_workers(spark, PENSTOCK_KNOWN_BAD=broken) if broken else nullcontext():
        drain(spark, place)
    return error


def _killed_in_background(spark: SparkSession, place: Place, marker: Path) -> str:
    """Run a query until a worker has died; it fails if that worker had a task then."""
    try:
        place.run_until(query(spark, place), marker.exists)
    except StreamingQueryException as error:
        return str(error)
    return ""


@pytest.mark.parametrize("point", long_but(STATE_POINTS, "operator.after_commit"))
def test_a_worker_killed_at_a_fail_point_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    place = Place(tmp_path)
    # The first run ends after one or more micro-batches. Enough versions are left for the second run to
    # replace a snapshot.
    batches = steps(seed=11, count=16 if point == _IN_BACKGROUND else 3)
    error = interrupt(spark, place, point, batches)
    assert "Python worker exited unexpectedly (crashed)" in error or (point == _IN_BACKGROUND and not error)
    verify(place, batches, drained=True)


@pytest.mark.long
@pytest.mark.parametrize("broken", KNOWN_BAD)
def test_a_broken_protocol_is_found(spark: SparkSession, tmp_path: Path, broken: str) -> None:
    place = Place(tmp_path)
    batches = steps(seed=11, count=3)
    with pytest.raises((AssertionError, StreamingQueryException)) as caught:
        interrupt(spark, place, "operator.after_commit", batches, broken=broken)
        verify(place, batches, drained=True)
    print(f"found: {str(caught.value)[:300]}")
    assert (tmp_path / "died").exists(), "found by what the crash did, not before"
    assert "no worker came" not in str(caught.value)


@pytest.mark.long
def test_a_worker_killed_in_the_middle_of_apply_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    batches = steps(seed=12, count=2)
    alive, dead = tmp_path / "alive", tmp_path / "dead"

    def stuck(table: pa.Table) -> pa.Table:
        if not dead.exists():
            alive.write_text(str(os.getpid()))
            while True:
                signal.pause()  # stays until it is killed
        return table

    add_steps(place, batches[:1])
    df = query(spark, place, apply=stuck, output_schema="k long, t long, v long, text string")
    running = place.start(df)
    try:
        wait(running, lambda: alive.exists() and alive.read_text().isdigit())
        dead.touch()
        os.kill(int(alive.read_text()), signal.SIGKILL)
        with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
            running.awaitTermination()
    finally:
        running.stop()
    add_steps(place, batches[1:])
    drain(spark, place)
    verify(place, batches, drained=True)
