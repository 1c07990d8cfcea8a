"""Without an extra, features that need it raise a one-line error that names it; the rest works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock._extras import need_extra
from penstock.errors import InvalidUsageError

BLOCKED = """
import sys
sys.modules["matplotlib"] = sys.modules["datasketches"] = None  # no import finds them
from penstock.cli import main
sys.argv[0] = "penstock"
main()
"""
PIPELINE = """
source: {type: files, format: parquet, path: in, schema: "time timestamp, user string"}
window: {time: time, size: 1 minute}
aggregates: {users: "AGGREGATE"}
sink: {type: noop}
"""


def penstock(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        ("demo",),
    ],
)
def test_what_draws_asks_for_the_plot_extra_before_it_begins(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = penstock(tmp_path, *command)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs matplotlib" in line
    assert "pip install 'penstock[plot]'" in line


def test_an_approximate_count_asks_for_the_sketch_extra(tmp_path: Path) -> None:
    file = tmp_path / "users.yaml"
    file.write_text(PIPELINE.replace("AGGREGATE", "approx_count_distinct(user)"))
    done = penstock(tmp_path, "check", "users.yaml")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'penstock[sketch]'" in line


@pytest.mark.parametrize(
    "arguments", [("--help",), ("explain", "users.yaml"), ("check", "market")], ids=lambda given: given[0]
)
def test_all_else_works_without_extras(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "users.yaml").write_text(PIPELINE.replace("AGGREGATE", "count(DISTINCT user)"))
    done = penstock(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr


def test_a_worker_without_sketches_says_so() -> None:
    program = """
import sys
sys.modules["datasketches"] = None
import numpy as np, pyarrow as pa
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.sketches import estimates
try:
    estimates(pa.array([], pa.binary()), np.zeros(0, np.int64), np.zeros(0, np.int64), 5)
except InvalidUsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "penstock[sketch]" in done.stdout


def test_several_missing_packages_are_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._extras.has_extra", lambda extra: False)
    with pytest.raises(InvalidUsageError, match="needs starlette and uvicorn, which are not installed"):
        need_extra("dashboard", "the dashboard")
