"""Graphs and procedures under test: rows and a clock in, rows, metrics and tables out."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock import abort
from penstock.errors import InvalidUsageError
from penstock.testing import AggregateTests, OperatorTests, plugin
from tests.documents import ROOT
from tests.samples.aggregates import Spread, WeightedMean
from tests.samples.operators import Totals

if TYPE_CHECKING:
    from penstock.testing.plugin import OpenDatabaseTest, OpenGraph

pytest_plugins = ["penstock.testing.plugin"]

COLUMNS = "k STRING, ts TIMESTAMP, v DOUBLE"


def row(key: str, second: int, value: float, name: str = "v") -> dict[str, Any]:
    return {"k": key, "ts": f"2026-01-01T00:00:{second:02}Z", name: value}


def test_a_queue_of_python_waits_for_the_clock_and_survives(penstock_graph: OpenGraph) -> None:
    flow = penstock.graph("g").source("quotes", COLUMNS).where("v > 0")
    test = penstock_graph(flow.update_queue("k", "ts", policy="in_place", budget=1), trigger="2 s")
    test.send([row("a", 1, 1), row("b", 1, 2), row("a", 2, 3), row("c", 1, -1)])
    assert [one["v"] for one in test.rows()] == [3.0]
    test.crash("write")
    test.restart()
    test.advance("4 s")
    assert [one["v"] for one in test.rows()] == [2.0]
    assert (test.waiting_keys, test.metrics[-1]["operator"]) == (0, "update_queue")


def test_windows_joins_and_lookups_of_python(penstock_graph: OpenGraph) -> None:
    left = penstock.graph("g").source("left", COLUMNS)
    right = penstock.graph("g").source("right", "k STRING, ts TIMESTAMP, ask DOUBLE")
    joined = left.join(right, on="k", time="ts", within="5 s", updates=True)
    test = penstock_graph(joined)
    test.send([row("a", 1, 1)], to="left")
    test.send([row("a", 2, 9, "ask")], to="right")
    assert [(one["v"], one["ask"]) for one in test.rows()] == [(1.0, 9.0)]
    with pytest.raises(InvalidUsageError, match="several sources"):
        test.send([row("a", 1, 1)])
    windows = left.window("ts", size="10 s").group_by("k").agg(n="count(*)", total="sum(v)")
    test = penstock_graph(windows)
    test.send([row("a", 1, 1), row("a", 2, 4)])
    test.restart()
    test.send([row("a", 12, 1)])
    assert [(one["n"], one["total"]) for one in test.rows()] == [(2, 5.0)]
    table = penstock.graph("g").source("s", COLUMNS)

    for names in (pa.schema([("k", pa.string()), ("name", pa.string())]), "k STRING, name STRING"):
        test = penstock_graph(
            table.lookup("names", names, on="k"), tables={"names": [{"k": "a", "name": "Anna"}]}
        )
        test.send([row("a", 1, 1), row("b", 1, 1)])
        assert [one["name"] for one in test.rows()] == ["Anna"]


def test_late_rows_of_a_graph_stay_in_the_test(penstock_graph: OpenGraph, tmp_path: Path) -> None:
    flow = penstock.graph("g").source("quotes", COLUMNS)
    test = penstock_graph(flow.update_queue("k", "ts", late_to=tmp_path / "late"))
    test.send([row("a", 5, 1)])
    assert (len(test.rows()), test.late_rows()) == (1, [])
    test.send([row("a", 3, 2)])
    assert [(one["v"], one["reason"]) for one in test.late_rows()] == [(2.0, "late")]
    assert test.late_rows() == []
    assert list(tmp_path.iterdir()) == []


def test_an_own_operator_behind_a_p_stream(penstock_graph: OpenGraph) -> None:
    flow = penstock.graph("g").source("s", COLUMNS).update_queue("k", "ts")
    test = penstock_graph(flow.apply(Totals(), "k"), persist={"update_queue": "always"})
    test.send([row("a", 1, 1), row("a", 2, 2)])
    test.trigger()
    assert [(one["n"], one["total"]) for one in test.rows()] == [(1, 2.0)]


BANK = penstock.database("bank_of_tests")
ACCOUNTS = BANK.table("accounts", "id bigint, balance bigint", key="id")


@BANK.procedure(event="source bigint, target bigint, amount bigint")
def transfer(e, accounts):  # type: ignore[no-untyped-def]  # compiled
    source = accounts[e.source]
    if source.balance < e.amount:
        abort("short")
    source.balance -= e.amount
    accounts[e.target].balance += e.amount


def test_procedures_give_results_rejections_and_tables(penstock_database: OpenDatabaseTest) -> None:
    test = penstock_database(BANK)
    test.load("accounts", [{"id": 1, "balance": 10}, {"id": 2, "balance": 0}])
    assert test.call("transfer", source=1, target=2, amount=7) == {"rejected": None}
    assert test.run("transfer", [{"source": 1, "target": 2, "amount": 7}])[0]["rejected"] == "short"
    test.restart()
    dead = test._db
    test.crash("transfer", source=2, target=1, amount=5)
    with pytest.raises(InvalidUsageError, match="could not be stored"):
        dead.checkpoint()
    assert sorted((one["id"], one["balance"]) for one in test.table("accounts")) == [(1, 8), (2, 2)]
    assert test.rejections == [{"procedure": "transfer", "rejected": "short"}]


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {plugin.__name__: plugin.__name__}
    assert {"penstock_pipeline", "penstock_graph", "penstock_database"} <= vars(plugin).keys()


class TestTotals(OperatorTests):
    """An operator that keeps its contract."""

    @pytest.fixture
    def operator(self) -> penstock.Operator:
        return Totals()

    @pytest.fixture
    def batches(self) -> list[pa.Table]:
        return [pa.table({"k": ["a", "b"], "v": [1.0, float(at)]}) for at in range(3)]


class TestSpread(AggregateTests):
    """An aggregate that keeps its contract."""

    @pytest.fixture
    def aggregate(self) -> type[penstock.Aggregate]:
        return Spread


class TestWeightedMean(AggregateTests):
    """An aggregate of two values that keeps its contract."""

    values = ((3.0, 1.0), (1.0, 2.0), (2.0, 0.0), (8.0, 4.0))

    @pytest.fixture
    def aggregate(self) -> type[penstock.Aggregate]:
        return WeightedMean


class Forgetful(Totals):
    """Keeps a number that is in no table."""

    calls = 0

    def run(self, batch: pa.Table, clock: Any) -> pa.Table:
        self.calls += 1
        rows = super().run(batch, clock)
        return rows.set_column(1, "n", pa.array([self.calls] * rows.num_rows, pa.int64()))


class Overwriting(Spread):
    """Merges by replacing."""

    @staticmethod
    def merge(state: Any, other: Any) -> None:
        state[:] = other


class Returnless(Spread):
    """Returns no result."""

    @staticmethod
    def finish(state: Any) -> None:
        pass


class Listing(Totals):
    """Returns a list."""

    def run(self, batch: pa.Table, clock: Any) -> Any:
        return batch.to_pylist()


def test_what_breaks_its_contract_is_found() -> None:
    batches = [pa.table({"k": ["a"], "v": [1.0]})] * 2
    with pytest.raises(AssertionError):
        OperatorTests().test_a_restart_before_each_micro_batch_changes_nothing(Forgetful(), batches)
    with pytest.raises(InvalidUsageError, match="returned no pyarrow table: returned=list"):
        OperatorTests().test_a_micro_batch_without_rows_has_the_columns_of_the_output(Listing(), batches)
    with pytest.raises(InvalidUsageError, match=r"cannot be compiled: .*method=finish"):
        AggregateTests().test_the_compiled_methods_give_the_result_of_plain_python(Returnless)
    with pytest.raises(AssertionError):
        AggregateTests().test_any_split_gives_the_same_result(Overwriting)
    with pytest.raises(AssertionError):
        AggregateTests().test_an_empty_state_changes_nothing(Overwriting)
