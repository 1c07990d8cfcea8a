"""The benchmark of a p-stream's files still runs: tiny inputs, times of no interest."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.p_streams.p_stream_files import ALIGNMENT, WAYS, aligned, report, segments

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", WAYS)
def test_each_way_makes_commits(name: str, tmp_path: Path) -> None:
    steps = WAYS[name](tmp_path, b"abc" * 1000)
    assert len(list(itertools.islice(steps, 5))) == 5
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert sum(content.count(b"abc" * 1000) for content in files.values()) == 5


def test_the_report_has_a_line_for_each_way_and_stream(tmp_path: Path) -> None:
    lines = list(report(2, 4000, tmp_path, sizes=(4096,), unit_rows=1000))
    for name in (*WAYS, "ysb", "nexmark", "market"):
        assert any(line.startswith(name) for line in lines), name


def test_alignment_counts_whole_slots() -> None:
    assert aligned([ALIGNMENT, ALIGNMENT]) == 1
    assert aligned([1, ALIGNMENT - 1]) == 2
    assert segments([1 << 20] * 40) == [32 << 20, 8 << 20]
