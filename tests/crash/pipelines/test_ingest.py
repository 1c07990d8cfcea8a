"""`penstock ingest` is killed in the middle of a file, again and again; the stream has its rows once each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.checkpointing.p_stream import PStream, PStreamReader
from tests.crash.harness import ROOT
from tests.long_tests import long_but
from tests.servers.processes import until

pytestmark = pytest.mark.crash

_ROWS = 50_000
_TEXT = "t" * 2000
"""So that the file has a dozen of the chunks of 8 MiB that the command reads."""

_RUN_S = 300.0
_POINTS = (
    "state.before_write",
    "state.after_write",
    "state.after_fsync",
    "state.after_publish",
    "p_stream.after_segments",
    "p_stream.after_commit",
)


def start(place: Path, file: Path, kind: str, **environment: str) -> subprocess.Popen[bytes]:
    options = ["--from", kind, "--interval", "0ms", "--goal", "fast", "--quiet"]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from penstock.cli import main; main()",
            "ingest",
            str(place),
            str(file),
            *options,
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


def entries(place: Path) -> int:
    return PStream(place).log.number if (place / "p-stream").exists() else 0


@pytest.mark.parametrize(
    ("kind", "points"), long_but([("csv", _POINTS), ("json", _POINTS[-1:])], ("json", _POINTS[-1:]))
)
def test_a_killed_ingest_goes_on_where_its_last_commit_was(
    tmp_path: Path, kind: str, points: tuple[str, ...]
) -> None:
    place, file = tmp_path / "stream", tmp_path / f"rows.{kind}"
    if kind == "csv":
        file.write_text("n,text\n" + "".join(f"{number},{_TEXT}{number}\n" for number in range(_ROWS)))
    else:
        rows = ",\n".join(f'{{"n": {number}, "text": "{_TEXT}{number}"}}' for number in range(_ROWS))
        file.write_text(f"[{rows}]\n")
    ends = [0]
    for point in points:
        marker = tmp_path / point
        process = start(place, file, kind, PENSTOCK_FAILPOINTS=f"{point}=kill@{marker}")
        assert process.wait(_RUN_S) == -signal.SIGKILL, point
        assert marker.exists(), point
        ends.append(PStream(place).end if (place / "p-stream").exists() else 0)
    for _ in range(2):
        before = entries(place)
        process = start(place, file, kind)
        # A session's begin, and at least one commit.
        assert until(lambda: entries(place) > before + 1 or process.poll() is not None, _RUN_S)  # noqa: B023
        process.kill()
        assert process.wait(_RUN_S) == -signal.SIGKILL, "the file is too short to be killed in its middle"
        ends.append(PStream(place).end)
    assert ends == sorted(ends)
    assert 0 < ends[-2] < ends[-1] < _ROWS
    assert start(place, file, kind).wait(_RUN_S) == 0
    table = PStreamReader(place).read()
    assert table["n"].to_pylist() == list(range(_ROWS))
    assert table["text"].to_pylist() == [f"{_TEXT}{number}" for number in range(_ROWS)]
