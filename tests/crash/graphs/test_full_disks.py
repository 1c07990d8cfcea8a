"""A graph whose disk is sometimes full has the results of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conformance.test_full_disk import filled, mounted_disk
from tests.crash.graphs.window_kills import FILE_S, JOINED, PATIENCE_S
from tests.crash.harness import random_moment, started, why
from tests.oracles.table3 import found, same
from tests.servers.processes import until
from tests.spark.queries import Input

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.skipif("PENSTOCK_CRASH_KILLS" not in os.environ, reason="script/crash runs it"),
]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)
_FILLS = int(os.environ.get("PENSTOCK_CRASH_KILLS") or 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system with little more space than the graph needs."""
    with mounted_disk(tmp_path / "disk", "64m") as mounted:
        yield mounted


def test_every_window_comes_out_once_and_whole_whenever_the_disk_was_full(
    tmp_path: Path, small_disk: Path
) -> None:
    """P-streams, states, results and Spark's own files are on the small disk; the input is not."""
    print(f"replay: script/crash {_FILLS} {_SEED}")
    draw, source = random.Random(_SEED), Input(tmp_path / "files")
    for name in ("checkpoint", "out"):
        (small_disk / name).mkdir()
        (tmp_path / name).symlink_to(small_disk / name)
    commits = tmp_path / "checkpoint" / "queries" / "results" / "commits"
    table = JOINED.table(_SEED, FILE_S * 3 * (_FILLS + 1))
    step = -(-table.num_rows // (3 * (_FILLS + 1)))
    pieces = [table.slice(at, step) for at in range(0, table.num_rows, step)]

    def goes_beyond(batches: int) -> bool:
        return len(list(commits.glob("[0-9]*"))) > batches or job.poll() is not None

    def failed(before: int) -> bool:
        return job.poll() is not None or _failures(tmp_path) > before

    for fill in range(_FILLS):
        source.add(*pieces[3 * fill : 3 * fill + 2])
        before = len(list(commits.glob("[0-9]*")))
        with started(tmp_path, JOINED.job) as job:
            assert until(partial(goes_beyond, before), PATIENCE_S), f"no progress: {why(job, tmp_path)}"
            assert job.poll() is None, why(job, tmp_path)
            random_moment(draw)
            failures = _failures(tmp_path)
            with filled(small_disk):
                source.add(pieces[3 * fill + 2])
                assert until(partial(failed, failures), PATIENCE_S), f"nothing failed: {why(job, tmp_path)}"
            if job.poll() is None:
                batches = len(list(commits.glob("[0-9]*")))
                until(partial(goes_beyond, batches), 5.0)  # it may have ended while the disk was full
        print(f"full {fill + 1} of {_FILLS}: {_failures(tmp_path)} failures")
    source.add(*pieces[3 * _FILLS :])
    with started(tmp_path, JOINED.job) as job:
        (tmp_path / "finished").touch()
        assert until(lambda: job.poll() is not None, PATIENCE_S), f"no end: {why(job, tmp_path)}"
        assert job.returncode == 0, why(job, tmp_path)
    same(found(tmp_path / "out"), JOINED.expected(table))
    assert "No space left on device" in (tmp_path / "job.log").read_text()


def _failures(directory: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (directory / "job.log").read_text().count("failed: ")
    return 0
