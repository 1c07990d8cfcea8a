"""The benchmark of how windows grow runs, and measures what it says."""

from __future__ import annotations

import pytest

from benchmarks.windows_growth import BATCHES, Case, run


@pytest.mark.parametrize(
    "case", [Case(10, 20, 4000, 10, 10), Case(5, 40, 4000, 30, 1)], ids=["tumbling", "sliding"]
)
def test_a_case_is_measured(case: Case) -> None:
    found = run(case)
    newest = BATCHES * case.seconds - 1
    starts = range(newest - case.size - case.seconds + 1, newest - case.size + 1)
    closed = sum(start % case.slide == 0 for start in starts)
    assert found["windows"] == case.keys * closed
    assert found["million a s"] > 0
    assert found["entries"] >= case.keys
    assert found["delta MB"] > 0
