"""The experiments of S-Store at a small scale; contenders do the same work."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from benchmarks.paper.s_store import clients, texts
from benchmarks.paper.s_store.figures import FIGURES, draw, merge, tell
from benchmarks.paper.s_store.scale import Scale
from benchmarks.paper.s_store.served import Served, serving
from penstock.procedures.compiler.program import Program
from tests.procedures import interpreted

SMALL = Scale.fast()


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels without the compiler, also in servers."""
    kernels: Callable[[Program], Callable[..., int]] = cache(interpreted)
    monkeypatch.setattr(Program, "__hash__", lambda self: hash(self.source), raising=False)
    monkeypatch.setattr(Program, "kernel", property(kernels))


@pytest.mark.parametrize("number", FIGURES)
def test_a_figure_is_measured_told_and_drawn(number: str, tmp_path: Path) -> None:
    from benchmarks.harness import pyplot, save

    figure = FIGURES[number]
    points = merge(figure, [figure.run(SMALL)])
    contenders = points[0].keys() - {*figure.at}
    assert {*figure.ratio, figure.divided} <= contenders
    assert all(point[name] > 0 for point in points for name in contenders)
    assert len(tell(figure, points)) == len(points) + 1
    save(draw(figure, points, pyplot()), tmp_path / "figure.svg")


def test_ratios_are_medians_of_those_of_runs() -> None:
    figure = FIGURES["6"]
    above, below = figure.ratio
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
