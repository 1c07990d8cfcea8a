"""The paper's experiments at a small scale, and the command that draws them."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.paper import figures
from benchmarks.paper.append_queue import AppendQueue
from benchmarks.paper.experiments import EXPERIMENTS, append_stream, make_steady_arrivals
from benchmarks.paper.scale import Scale, in_turn
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation import (
    UNIT_US,
    draw_arrivals,
    simulate,
    update_stream,
    zipf_weights,
)
from penstock.operators.update_stream.arrivals import Arrivals, conflate

SMALL = Scale(
    loads=(1.5, 3.0, 6.0),
    updates=800,
    units_9=1_500,
    variants_9=1,
    thetas=(0.0, 0.9),
    rates=(20, 200),
    deliveries=150,
)


def rows(figure: str) -> list[dict[str, Any]]:
    return EXPERIMENTS[figure](SMALL, in_turn).to_pylist()


@pytest.fixture(scope="module")
def by_load() -> dict[tuple[str, int, float], dict[str, Any]]:
    return {(row["queue"], row["keys"], row["load"]): row for row in rows("7")}


@pytest.mark.parametrize("keys", [1, 10])
@pytest.mark.parametrize("load", SMALL.loads)
def test_update_queues_beat_shedding_which_beats_the_append_queue(
    by_load: dict[tuple[str, int, float], dict[str, Any]], keys: int, load: float
) -> None:
    for measure in ("application_staleness", "queue_staleness"):
        append, shedding, fifo, in_place = (
            by_load[queue, keys, load][measure] for queue in ("AQ", "AQ-RLS", "UQ-FIFO", "UQ-INPLACE")
        )
        assert max(fifo, in_place) < shedding < append
        assert in_place <= fifo


@pytest.mark.parametrize("load", SMALL.loads)
def test_the_queue_explains_application_staleness_up_to_wait_and_cost(load: float) -> None:
    """For one key: wait * cost <= area between the two for a result <= wait * cost + cost**2 / 2."""
    stream = append_stream()
    trace = draw_arrivals(np.ones(1), 1.0, 1_000, seed=1)
    outcome = simulate(UpdateQueue(stream, Policy.IN_PLACE), stream, trace, round(load * UNIT_US))
    area = (outcome.application.area - outcome.queue.area) / outcome.delivered / UNIT_US**2
    wait = outcome.wait_us / UNIT_US
    # The last result of a run can lack a next one: 2 results of rounding in about 170 or more.
    assert wait * load * 0.985 <= area <= (wait * load + load**2 / 2) * 1.015


def test_ten_keys_are_as_much_staler_as_they_wait_for_one_another(
    by_load: dict[tuple[str, int, float], dict[str, Any]],
) -> None:
    """The difference of the two measures stays near the cost, whatever the number of keys (Fig. 5)."""
    one, ten = by_load["UQ-INPLACE", 1, 6.0], by_load["UQ-INPLACE", 10, 6.0]
    assert 6 < ten["queue_staleness"] / one["queue_staleness"] < 11
    for row in (one, ten):
        assert row["application_staleness"] - row["queue_staleness"] == pytest.approx(6.0, rel=0.2)


@pytest.mark.long
def test_linecutting_gains_most_with_about_eight_slow_keys_of_ten() -> None:
    table = rows("9")
    for cost in ("given", "measured"):
        gain = [row["gain"] for row in table if row["cost"] == cost]
        assert len(gain) == 11
        assert gain[0] == pytest.approx(1.0, abs=0.02)
        assert gain[10] == pytest.approx(1.0, abs=0.02)
        assert int(np.argmax(gain)) in {7, 8, 9}
        assert max(gain) > 1.25
        # Noise of a short run: a hundredth or two.
        assert min(gain) > 0.97
        assert all(left < right + 0.05 for left, right in pairwise(gain[:8]))


def test_paging_on_demand_uses_less_memory_than_a_place_for_every_key() -> None:
    for figure, by in (("16", "theta"), ("17", "rate")):
        table = rows(figure)
        assert len({row[by] for row in table}) == 2
        for row in table:
            assert row["on_demand_usage"] < row["naive_usage"] <= 100
            assert row["on_demand_effective"] > 0.85
            assert row["on_demand_effective"] > row["naive_effective"]
    skewed, loaded = rows("16"), rows("17")
    assert skewed[0]["naive_effective"] > skewed[-1]["naive_effective"]
    assert loaded[0]["naive_effective"] < loaded[-1]["naive_effective"]


@pytest.mark.parametrize("policy", [Policy.FIFO, Policy.IN_PLACE])
def test_arrivals_of_one_service_may_enter_together(policy: Policy) -> None:
    trace = draw_arrivals(zipf_weights(10, 0.6), 1.0, 300, seed=2)
    together, each = append_stream(), update_stream()
    left = simulate(UpdateQueue(together, policy), together, trace, 4_000)
    right = simulate(UpdateQueue(each, policy), each, trace, 4_000)
    assert (left.delivered, left.wait_us) == (right.delivered, right.wait_us)
    assert left.queue.area == right.queue.area
    assert left.application.area == right.application.area


def test_a_run_ends_after_so_many_results() -> None:
    stream = append_stream()
    trace = draw_arrivals(np.ones(5), 1.0, 1_000, seed=0)
    outcome = simulate(UpdateQueue(stream, Policy.FIFO), stream, trace, 3_000, deliveries=20)
    assert outcome.delivered == 20


def test_an_idle_server_waits_for_the_next_arrival() -> None:
    stream = append_stream()
    trace = draw_arrivals(np.ones(1), 0.1, 100, seed=0)
    outcome = simulate(UpdateQueue(stream, Policy.FIFO), stream, trace, 3_000)
    assert outcome.delivered == 10
    assert outcome.queue_updates == 0
    assert outcome.application_updates == pytest.approx(10 * 3**2 / 2 / 100)


def test_steady_keys_keep_their_pace() -> None:
    trace = make_steady_arrivals(np.array([0.1, 0.01]), 5_000, seed=4)
    assert np.all(np.diff(trace.times_us) >= 0)
    fast, slow = (trace.times_us[trace.keys == key] for key in (0, 1))
    assert len(fast) == pytest.approx(500, rel=0.05)
    assert len(slow) == pytest.approx(50, rel=0.1)
    assert np.diff(fast).min() >= 4_999
    assert np.diff(fast).max() <= 15_001


def test_drawn_keys_follow_their_weights() -> None:
    trace = draw_arrivals(zipf_weights(4, 0.9), 2.0, 20_000, seed=5)
    assert np.bincount(trace.keys) / len(trace.keys) == pytest.approx(zipf_weights(4, 0.9), abs=0.01)
    assert set(np.diff(trace.times_us)) == {500}


def test_an_append_queue_refuses_a_share_that_is_none_and_conflated_arrivals() -> None:
    stream = update_stream()
    for share in (0.0, 1.5):
        with pytest.raises(InvalidUsageError, match="share"):
            AppendQueue(stream, accept=share)
    batch = pa.RecordBatch.from_pydict({"key": [1, 1], "time": [1, 2]}, schema=stream.schema)
    with pytest.raises(InvalidUsageError, match="not conflated"):
        AppendQueue(stream).enqueue(conflate(stream, Arrivals.from_rows(stream, batch)), 0)


def test_shedding_accepts_its_share() -> None:
    stream = update_stream()
    queue = AppendQueue(stream, accept=0.2, seed=1)
    batch = pa.RecordBatch.from_pydict({"key": [1] * 5_000, "time": range(5_000)}, schema=stream.schema)
    entered = queue.enqueue(Arrivals.from_rows(stream, batch), 0)
    assert (entered.rows_in, entered.rows_in - entered.shed) == (5_000, len(queue))
    assert len(queue) == pytest.approx(1_000, rel=0.1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Scale(thetas=(0.0, 0.9), rates=(20,), deliveries=20)
    monkeypatch.setattr(Scale, "fast", staticmethod(lambda: tiny))


@pytest.mark.usefixtures("small")
def test_the_command_writes_tables_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    assert figures.run(["fig16", "17"], tmp_path / "new" / "out", fast=True, workers=1) == 0
    names = {path.name for path in (tmp_path / "new" / "out").iterdir()}
    assert names == {f"figure-{n}.{kind}" for n in (16, 17) for kind in ("csv", "svg", "png")}
    assert all(path.stat().st_size > 100 for path in (tmp_path / "new" / "out").iterdir())
    shown = capsys.readouterr().out
    assert "Figure 16." in shown
    assert "Figure 17." in shown


@pytest.mark.usefixtures("small")
@pytest.mark.long
def test_numbers_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    for workers in (1, 2):
        figures.run(["16"], tmp_path / str(workers), fast=True, workers=workers)
    one, two = ((tmp_path / name / "figure-16.csv").read_text() for name in ("1", "2"))
    assert one == two


@pytest.mark.parametrize("number", EXPERIMENTS)
def test_every_figure_can_be_drawn_and_shown(number: str, tmp_path: Path) -> None:
    tiny = Scale(
        loads=(2.0,),
        updates=20,
        units_9=40,
        thetas=(0.0,),
        rates=(20, 50),
        deliveries=5,
        variants_9=3,
        sizes_13=(1, 3),
        units_13=40,
        seeds_13=1,
        sizes_14=(2, 3),
        units_14=100,
    )
    table = EXPERIMENTS[number](tiny, in_turn)
    heads, lines = figures.summary(number, table)
    assert lines
    assert all(len(line) == len(heads) for line in lines)
    figures.draw(number, table, tmp_path)
    assert (tmp_path / f"figure-{number}.svg").read_text().count("<svg") == 1


def test_unknown_figures_and_unwritable_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="no such figure"):
        figures.run(["8"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot write the figures"):
        figures.run(["16"], tmp_path / "file" / "out")


def test_the_command_line_does_not_import_matplotlib() -> None:
    code = "import sys, penstock.cli; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
