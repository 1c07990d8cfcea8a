"""The benchmark of used predictions runs, and each way does what its name says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from benchmarks.partitions import predictions_used
from benchmarks.partitions.predictions_used import Sizes
from penstock.procedures.compiler.program import Program
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.partitions.predicted import guards, run
from tests.transactions.procedures import interpreted, interpreted_source


def test_the_ways_are_used_and_have_equal_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(program: Program, placements: Mapping[str, Placement], *, undo: bool) -> Callable[..., int]:
        return interpreted_source(guards.guarded_source(program, placements, undo=undo))

    monkeypatch.setattr(run, "load_guarded", load)
    sizes = Sizes(accounts=20, call=30, trace=60, each=4)
    database = predictions_used.branches()
    for procedure in database.procedures.values():
        program = procedure.program()
        assert isinstance(program, Program)
        program.__dict__["kernel"] = interpreted(program)
    lines = list(predictions_used.report(1, 30, sizes, database))
    words = [line.split() for line in lines if line.startswith(predictions_used.PROCEDURES)]
    assert [" ".join(one[1:-5]) for one in words] == [*predictions_used.WAYS] * 2
    shares = [tuple(one[-2:]) for one in words]
    assert shares[4:] == [("0%", "0%"), ("100%", "0%"), ("100%", "100%"), ("100%", "0%")]
    opened = predictions_used.open_ways(database, "settle", sizes)
    tables = []
    for db in opened.values():
        db.run("settle", predictions_used.events(30, sizes, 5))
        tables.append(db.table("accounts").sort_by([("branch", "ascending"), ("n", "ascending")]))
        db.close()
    assert all(table == tables[0] for table in tables)
