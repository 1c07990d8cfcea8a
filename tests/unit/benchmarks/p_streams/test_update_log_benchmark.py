"""The benchmark of update logs still runs: tiny inputs, times of no interest."""

from __future__ import annotations

import pytest

from benchmarks.p_streams.update_log import KINDS, report

pytestmark = pytest.mark.bench


def test_the_report_has_a_line_for_each_kind() -> None:
    lines = list(report(2_000, 10))
    assert [line.split("  ")[0] for line in lines[-2:]] == list(KINDS)
