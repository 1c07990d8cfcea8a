"""The experiments of S-Store at a small scale; contenders do the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.paper.s_store import clients, linear_road, spark_redis, texts
from benchmarks.paper.s_store.figures import FIGURES, draw, merge, tell
from benchmarks.paper.s_store.scale import Scale
from benchmarks.paper.s_store.served import Served, serving
from penstock.procedures.compiler.program import Program
from tests.long_tests import long_but
from tests.transactions.procedures import interpreted

SMALL = Scale.fast()


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels without the compiler, also in servers."""
    kernels: Callable[[Program], Callable[..., int]] = cache(interpreted)
    monkeypatch.setattr(Program, "__hash__", lambda self: hash(self.source), raising=False)
    monkeypatch.setattr(Program, "kernel", property(kernels))


@pytest.mark.parametrize("number", long_but([number for number in FIGURES if number != "10"], "5", "6", "9a"))
def test_a_figure_is_measured_told_and_drawn(number: str, tmp_path: Path) -> None:
    from benchmarks.harness import pyplot, save

    figure = FIGURES[number]
    points = merge(figure, [figure.run(SMALL)])
    contenders = points[0].keys() - {*figure.at}
    assert {*(figure.ratio or ()), *figure.drawn} <= contenders
    assert all(point[name] > 0 for point in points for name in contenders)
    assert len(tell(figure, points)) == len(points) + 1
    save(draw(figure, points, pyplot()), tmp_path / "figure.svg")


def test_ratios_are_medians_of_those_of_runs() -> None:
    figure = FIGURES["6"]
    above, below = figure.ratio or ("", "")
    runs = [[{"triggers": 1, above: a, below: b}] for a, b in ((10, 1), (40, 2), (60, 10))]
    (point,) = merge(figure, runs)
    assert (point[above], point[below], point[figure.divided]) == (40, 2, 10)


def test_stages_hold_the_same_rows_by_triggers_and_by_calls() -> None:
    with texts.statements(3).open() as driven, texts.trigger_chain(3).open() as triggered:
        for number in range(5):
            driven.call("begin", id=number, value=number)
            for at in range(3):
                driven.call(f"pass_on{at}", id=number)
            triggered.call("begin", id=number, value=number)
        for stage in range(4):
            rows = [db.table(f"stage{stage}").sort_by("id").to_pylist() for db in (driven, triggered)]
            assert rows[0] == rows[1]
            assert rows[0] == [{"id": n, "value": n + 3} for n in range(5 if stage == 3 else 0)]


@pytest.mark.parametrize(("size", "slide"), [(5, 1), (6, 3)])
def test_a_window_by_hand_has_the_same_rows_by_one_and_by_several_calls(size: int, slide: int) -> None:
    with texts.by_hand(size, slide).open() as one, texts.by_hand(size, slide).open() as several:
        for db in (one, several):
            db.load("facts", {"id": [0], "next": [0], "staged": [0]})
        for number in range(20):
            one.call("add", value=number)
            after = several.call("stage", value=number)["next"]
            if several.call("note", next=after)["staged"] == slide:
                several.call("slide", next=after)
                several.call("expire", next=after)
            rows = one.table("rows").sort_by("number").to_pylist()
            assert rows == several.table("rows").sort_by("number").to_pylist()
            active = [row["value"] for row in rows if not row["staged"]]
            slid = (number + 1) // slide * slide
            assert active == list(range(max(slid - size, 0), slid))


@pytest.mark.parametrize("validated", [False, True])
def test_a_leaderboard_has_the_votes_of_the_last_ten_seconds(validated: bool) -> None:
    rng = np.random.default_rng(2)
    seconds = np.sort(rng.integers(0, 40, 300))
    phones, contestants = rng.integers(0, 200, 300), rng.integers(0, 27, 300)
    times = pa.array(seconds * 1_000_000 + 1_700_000_000_000_000, pa.timestamp("us", tz="UTC"))
    cast = pa.table({"ts": times, "phone": phones, "contestant": contestants})
    with spark_redis.board(validated=validated).open() as db:
        results = db.run("vote", cast)
        board = {row["id"]: row["votes"] for row in db.table("board").to_pylist()}
    seen: set[int] = set()
    accepted = []
    for second, phone, contestant in zip(seconds, phones, contestants, strict=True):
        fits = contestant < spark_redis.CONTESTANTS and not (validated and phone in seen)
        seen |= {phone} if fits else set()
        accepted.append((second, contestant) if fits else None)
    assert [why is None for why in results["rejected"].to_pylist()] == [one is not None for one in accepted]
    last = max(one[0] for one in accepted if one is not None)
    counted = Counter(one[1] for one in accepted if one is not None and last - 10 <= one[0] < last)
    assert board == {number: counted[number] for number in range(spark_redis.CONTESTANTS)}


def test_latencies_follow_from_arrivals_and_the_time_that_batches_take() -> None:
    step = linear_road.BATCH_S
    assert linear_road.worst_latency(np.array([0.1, 0.2, 0.1])) == pytest.approx(0.2 + step)
    # The second batch waits for the first one, which takes longer than until the next arrival.
    assert linear_road.worst_latency(np.array([3 * step, step])) == pytest.approx(4 * step)
    assert linear_road.worst_latency(np.full(10, 2 * step)) == pytest.approx(12 * step)


def test_traffic_grows_and_every_vehicle_reports_every_thirty_seconds() -> None:
    reports = linear_road.traffic(4, 20)
    assert (np.diff(reports["batch"]) >= 0).all()
    for vehicle in (0, 17, 300):
        times = reports["time"][reports["vehicle"] == vehicle]
        assert set(np.diff(times)) <= {29, 30, 31}
    by_minute = np.bincount(reports["time"] // 60)
    assert (np.diff(by_minute) > 0).all()
    assert by_minute[-1] == pytest.approx(20 * 60 * 7 / 8, rel=0.1)


@pytest.mark.parametrize(("count", "durable"), [(1200, False), (40, True)])
def test_a_client_that_drives_votes_leaves_the_tables_of_the_workflow(count: int, durable: bool) -> None:
    cast = clients.votes(count)
    digests = []
    for served in (clients.DRIVEN, clients.WORKFLOW):
        with serving(
            Served(served.make, served.procedures, served.loads, served.tables, durable)
        ) as connection:
            before = connection.digest()
            if served is clients.WORKFLOW:
                connection.stream(cast)
            else:
                for number in range(len(cast)):
                    clients.drive_votes(connection, cast, number)
            digests.append(connection.digest())
            assert digests[-1] != before
    assert digests[0] == digests[1]
