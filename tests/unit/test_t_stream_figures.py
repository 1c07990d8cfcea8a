"""The schemes beside TStream's leave the results of one thread, and its figures are measured and drawn."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paper.t_stream.__main__ import FIGURES, Bench, Scale, draw, tell
from benchmarks.paper.t_stream.schemes import run_scheme
from benchmarks.paper.t_stream.workloads import grep_and_sum


@pytest.mark.parametrize("scheme", ["LOCK", "MVLK", "PAT"])
def test_schemes_leave_the_results_of_one_thread(scheme: str) -> None:
    accesses = grep_and_sum(300, length=4, reads=0.5, skew=1.5)
    runs = []
    for kind, threads in (("No-Lock", 1), (scheme, 3)):
        values = np.arange(accesses.keys) % 1000 + 1
        run, sums, values = run_scheme(
            kind, threads, 1, accesses.offsets, accesses.rows, accesses.writes, values
        )
        run()
        runs.append((sums.tolist(), values.tolist()))
    assert runs[0] == runs[1]


@pytest.mark.long
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_measured_told_and_drawn(name: str) -> None:
    bench = Bench(Scale(count=60, repeats=1, punctuations=(20, 60), works_ns=(0,)), real_time=False)
    points = bench.figure(name)
    assert all(value > 0 for point in points for value in point.values() if isinstance(value, float))
    assert len(tell(points)) == len(points) + 1
    assert draw(name, points, "unit") is not None
