"""The schemes beside TStream's leave the results of one thread, and its figures are measured and drawn."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paper.t_stream.__main__ import FIGURES, Bench, Scale, draw, tell
from benchmarks.paper.t_stream.breakdown import PARTS
from benchmarks.paper.t_stream.cycles import read_cycles
from benchmarks.paper.t_stream.schemes import Timing, run_scheme
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


@pytest.mark.parametrize("scheme", ["No-Lock", "LOCK", "MVLK", "PAT"])
def test_a_timed_scheme_counts_all_its_time_and_begins_nothing_early(scheme: str) -> None:
    accesses = grep_and_sum(40, length=4, reads=0.5, skew=1.5)
    due = np.arange(40) * 20_000
    timing = Timing.plan(2, due, 40, read_cycles())
    values = np.arange(accesses.keys) % 1000 + 1
    run, _, _ = run_scheme(scheme, 2, 1, accesses.offsets, accesses.rows, accesses.writes, values, timing)
    run()
    assert (timing.ended >= due).all()
    useful, sync, enqueue, whole = timing.spent[:, :4].T
    assert (useful > 0).all()
    assert (useful + sync + enqueue <= whole).all()
    assert (enqueue > 0).all() == (scheme != "No-Lock")


@pytest.mark.long
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_measured_told_and_drawn(name: str) -> None:
    scale = Scale(count=60, latency_count=90, repeats=1, punctuations=(20, 60), works_ns=(0,))
    bench = Bench(scale, real_time=False)
    points = bench.figure(name)
    if name == "9":
        for point in points:
            parts = [point[part] for part in PARTS]
            assert sum(parts) == pytest.approx(point["all"])
            assert min(parts) > -0.01 * point["all"]
            assert point["useful"] > 0
    else:
        measured = [value for point in points for value in list(point.values())[1:]]
        assert all(value > 0 for value in measured if isinstance(value, float))
    assert len(tell(points)) == len(points) + 1
    assert draw(name, points, "unit") is not None
