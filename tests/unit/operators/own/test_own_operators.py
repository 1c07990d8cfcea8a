"""Own operators: exactly-once state in tables, restarts, crashes, waiting keys, and clear errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.checkpointing.files import open_files
from penstock.conf.document import PipelineError
from penstock.conf.pipeline import load_pipeline
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.jobs.checks.checking import check_pipeline
from penstock.jobs.cluster.modules import pipeline_modules
from penstock.operators.own.abc import load_operator
from penstock.operators.own.state import OperatorState, stored_schemas
from penstock.state_store.bucket_store import BucketStore, Handle
from tests.documents import ROOT
from tests.samples.operators import Silence, Totals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.testing.plugin import OpenPipeline

pytest_plugins = ["penstock.testing.plugin"]

TOTALS = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v DOUBLE"}
filter: v > 0
operator: {class: "tests.samples.operators:Totals", key: k, time: ts, buckets: 2, arguments: {factor: 2.0}}
results: {filter: n > 1}
sink: {type: console}
"""
SILENCE = """
source: {type: files, format: json, path: nowhere, schema: "k STRING, ts TIMESTAMP, v DOUBLE"}
operator: {class: "tests.samples.operators:Silence", key: k, buckets: 1}
sink: {type: console}
"""


def row(key: str | None, second: int, value: float) -> dict[str, Any]:
    return {"k": key, "ts": f"2026-01-01T00:00:{second:02}Z", "v": value}


@pytest.fixture
def totals(tmp_path: Path) -> str:
    (tmp_path / "totals.yaml").write_text(TOTALS)
    return str(tmp_path / "totals.yaml")


def naive(rows: list[dict[str, Any]], factor: float) -> dict[str | None, list[tuple[int, float]]]:
    found: dict[str | None, list[tuple[int, float]]] = defaultdict(list)
    for one in rows:
        n, total = found[one["k"]][-1] if found[one["k"]] else (0, 0.0)
        found[one["k"]].append((n + 1, total + factor * one["v"]))
    return found


def test_state_survives_restarts_and_crashes_exactly_once(
    totals: str, penstock_pipeline: OpenPipeline
) -> None:
    test = penstock_pipeline(totals)
    sent, got = [], defaultdict(list)
    for batch, point in enumerate((None, "plan", "write", "commit", None)):
        rows = [
            row(key, 10 - place, batch + place + 1.0) for place, key in enumerate(["a", None, "b", "a", "c"])
        ]
        test.send([*rows, row("a", 1, -1.0)])
        if point is not None:
            test.crash(point)  # type: ignore[arg-type]  # a literal
        else:
            test.restart()
        sent += sorted(rows, key=lambda one: str(one["ts"]))
        for one in test.rows():
            got[one["k"]].append((one["n"], one["total"]))
    assert got == {key: values[1:] for key, values in naive(sent, 2.0).items()}
    assert {key: len(values) for key, values in got.items()} == {"a": 9, None: 4, "b": 4, "c": 4}
    assert test.metrics[-1]["rows_in"] == 5


def test_keys_that_wait_run_without_rows_at_the_times_of_the_record(
    tmp_path: Path, penstock_pipeline: OpenPipeline
) -> None:
    (tmp_path / "s.yaml").write_text(SILENCE)
    test = penstock_pipeline(tmp_path / "s.yaml")
    test.send([row("a", 1, 1), row("b", 1, 1)])
    assert test.rows() == []
    test.advance("3 s")
    test.send([row("b", 1, 1)])
    assert test.rows() == []
    assert test.waiting_keys == 2
    test.restart()
    test.advance("2 s")
    assert [(one["k"], one["last"].second) for one in test.rows()] == [("a", 0)]
    test.clock.advance(4_000_000)
    # The micro-batch that died heard the time; the one after it hears the same.
    test.crash("write")
    test.clock.advance(60_000_000)
    assert [(one["k"], one["last"].second) for one in test.rows()] == [("b", 3)]
    test.trigger()
    assert test.waiting_keys == 0


def test_only_tables_that_change_are_written(tmp_path: Path) -> None:
    state, store = OperatorState(Totals()), BucketStore(open_files(tmp_path))
    state.operator.run(pa.table({"k": ["a"], "v": [1.0]}), lambda: 0)
    handle = store.commit(state, Handle())
    state.operator.run(pa.table({"k": pa.array([], "string"), "v": pa.array([], "double")}), lambda: 0)
    unit = state.delta()
    assert (list(unit.meta["tables"]), dict(unit.blocks)) == (["totals", "seen"], {})
    assert stored_schemas(unit)["totals"].names == ["k", "n", "total"]
    assert handle.pointer is not None
    other = OperatorState(Totals())
    store.load(handle.pointer, other)
    other.operator.run(pa.table({"k": pa.array([], "string"), "v": pa.array([], "double")}), lambda: 0)
    assert not other.delta().blocks
    other.operator.run(pa.table({"k": ["a"], "v": [2.0]}), lambda: 0)
    assert sorted(other.delta().blocks) == ["seen", "totals"]
    assert other.rows == 2


class Shape(Totals):
    """Returns what a test wants."""

    tables: Any = None
    result: Any = None

    def snapshot(self) -> Any:
        return self.tables

    def run(self, batch: Any, clock: Any) -> Any:
        if self.result == "raise":
            raise KeyError("a user's value")
        return clock() if self.result == "clock" else self.result


def test_tables_may_come_and_go_and_have_any_types(tmp_path: Path) -> None:
    types = pa.table(
        {
            "nested": pa.array([[{"a": 1}], None], pa.list_(pa.struct([("a", pa.int64())]))),
            "text": pa.chunked_array([["x"], [None]], pa.string()),
            "time": pa.array([1, None], pa.timestamp("us", "UTC")),
            "bytes": pa.array([b"\0", b""], pa.binary()),
        }
    )
    shape, store, handle = Shape(), BucketStore(open_files(tmp_path)), Handle()
    state = OperatorState(shape)
    for tables in ({"one": types}, {"one": types, "none": types.slice(0, 0)}, {"none": types}, {}):
        state.operator.tables = tables  # type: ignore[attr-defined]  # of Shape
        handle = store.commit(state, handle)
        assert handle.pointer is not None
        other = OperatorState(Recorder())
        store.load(handle.pointer, other)
        assert {name: table.to_pylist() for name, table in other.tables.items()} == {
            name: table.to_pylist() for name, table in tables.items()
        }
        assert all(table.schema == types.schema for table in other.tables.values())


class Picky(Totals):
    """Refuses a factor."""

    def __init__(self, factor: float) -> None:
        if factor > 1:
            raise ValueError("factor is above 1")


class Recorder(Totals):
    """Restores anything."""

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        pass


@pytest.mark.parametrize(
    ("tables", "fact"),
    [
        ([], "does not return tables by name"),
        ({1: pa.table({"a": [1]})}, "not a word"),
        ({"a b": pa.table({"a": [1]})}, "not a word"),
        ({"a": {"a": [1]}}, "no pyarrow table"),
        ({"a": pa.table({})}, "without columns"),
        ({"a": pa.Table.from_arrays([pa.array([1])] * 2, ["x", "x"])}, "two of one name"),
    ],
)
def test_a_wrong_snapshot_is_an_error(tables: Any, fact: str) -> None:
    shape = Shape()
    shape.tables = tables
    with pytest.raises(InvalidUsageError, match=fact):
        OperatorState(shape).delta()


def test_a_unit_that_lacks_a_table_is_damaged() -> None:
    state = OperatorState(Totals())
    state.operator.run(pa.table({"k": ["a"], "v": [1.0]}), lambda: 0)
    unit = state.delta()
    unit.blocks.pop("seen")  # type: ignore[attr-defined]  # a dict
    with pytest.raises(CorruptDataError, match="lacks a table"):
        OperatorState(Totals()).restore([unit])


@pytest.mark.parametrize(
    ("result", "fact"),
    [
        (None, "no pyarrow table"),
        (pa.table({"k": ["a"], "n": [1]}), "other columns than its output"),
        (pa.table({"k": ["a"], "n": [1], "total": [1.0], "more": [1]}), "other columns than its output"),
        (pa.table({"k": ["a"], "n": ["x"], "total": [1.0]}), "other types than its output"),
        (
            "raise",
            r"run of an operator raised an error: \S+:Shape error=\w+ at=test_own_operators.py:\d",
        ),
        ("clock", "asked for the time without uses_clock"),
    ],
)
def test_a_wrong_result_is_an_error_without_values(
    totals: str, penstock_pipeline: OpenPipeline, monkeypatch: pytest.MonkeyPatch, result: Any, fact: str
) -> None:
    monkeypatch.setattr(Shape, "result", result)
    test = penstock_pipeline(totals, ["operator.class=tests.unit.operators.own.test_own_operators:Shape"])
    test.send([row("a", 1, 1)])
    with pytest.raises(InvalidUsageError, match=fact) as raised:
        test.rows()
    assert "a user's value" not in str(raised.value)


def test_rows_of_a_state_that_cannot_be_stored_do_not_come_out(
    totals: str, penstock_pipeline: OpenPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = penstock_pipeline(totals)
    test.send([row("a", 1, 1), row("a", 2, 2)])
    with monkeypatch.context() as patch:
        patch.setattr(Totals, "snapshot", lambda operator: 1 / 0)
        with pytest.raises(InvalidUsageError, match="snapshot of an operator raised an error"):
            test.trigger()
    assert test.rows() == []
    test.restart()
    test.trigger()
    assert [(one["n"], one["total"]) for one in test.rows()] == [(2, 6.0)]


@pytest.mark.parametrize(
    ("section", "hidden"),
    [
        ("queue: {key: k, time: ts}", True),
        ('operator: {class: "tests.samples.operators:Totals", key: k, buckets: 1}', False),
        ("aggregates: {n: count(*)}", True),
        ("aggregates: {own: \"1 + own('tests.samples.aggregates:Spread', v)\"}", False),
        ("aggregates: {own: own()}", None),
        ("aggregates: {own: sum(}", None),
    ],
)
def test_pandas_is_not_hidden_from_users_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, hidden: bool | None
) -> None:
    hides: list[bool] = []
    monkeypatch.setattr("penstock.jobs.local.first_row.skip_pandas", lambda: hides.append(True))
    lines = [TOTALS.splitlines()[1], section, "sink: {type: noop}", "engine: local"]
    if section.startswith("aggregates"):
        lines.append("window: {time: ts, size: 20 s}")
    (tmp_path / "p.yaml").write_text("\n".join(lines))
    with nullcontext() if hidden is not None else pytest.raises(PipelineError, match=r"p\.yaml:2"):
        check_pipeline(str(tmp_path / "p.yaml"), [], own_process=True)
    assert hidden is None or bool(hides) == hidden


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("tests.samples.operators:Totals", "tests.samples.operators:Nothing", "has no attribute 'Nothing'"),
        ("tests.samples.operators:Totals", "tests.samples.operators:pa", "this is no operator"),
        ("tests.samples.operators:Totals", "Totals", "module:function"),
        ("{factor: 2.0}", "{fctor: 2.0}", "unexpected keyword argument 'fctor'"),
        ("tests.samples.operators:Totals", f"{__name__}:Picky", "factor is above 1: .*error=ValueError"),
        ("key: k", "key: q", "there is no column 'q'"),
        ("time: ts", "time: q", "there is no column 'q'"),
        ("time: ts", "tme: ts", "tme"),
        ("results: {filter: n > 1}", "results: {filter: m > 1}", "there is no column 'm'"),
        ("results:", "queue: {key: k, time: ts}\nresults:", "cannot be in one pipeline with operator"),
    ],
)
def test_what_is_wrong_in_yaml_is_told_with_its_place(tmp_path: Path, old: str, new: str, fact: str) -> None:
    (tmp_path / "w.yaml").write_text(TOTALS.replace(old, new))
    with (
        pytest.raises(PipelineError, match=rf"(?s)w\.yaml:\d.*{fact}"),
        penstock.testing.pipeline(tmp_path / "w.yaml"),
    ):
        pass


def test_graphs_explain_an_operator_and_check_it() -> None:
    flow = penstock.graph("g").source("clicks", "k STRING, ts TIMESTAMP, v DOUBLE")
    made = flow.apply(Totals(), "K", time="ts", buckets=2)
    assert made.schema.names == ["k", "n", "total"]
    assert (
        "tests.samples.operators:Totals by k, in the order of ts"
        in made.where("n > 1").sink("noop").explain()
    )
    with pytest.raises(InvalidUsageError, match="nulls"):
        flow.apply(Totals(), "k", nulls="drop")  # type: ignore[call-arg]  # the point of the test
    with pytest.raises(InvalidUsageError, match="this is no operator"):
        flow.apply(Totals, "k")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(InvalidUsageError, match="needs a key"):
        flow.apply(Totals(), ())

    class Silent(Totals):
        output = None  # type: ignore[assignment]  # the point of the test

    with pytest.raises(InvalidUsageError, match="has no output"):
        flow.apply(Silent(), "k")


def test_a_restart_with_another_class_or_key_is_refused(totals: str, penstock_pipeline: OpenPipeline) -> None:
    test = penstock_pipeline(totals)
    test.send([row("a", 1, 1)])
    test.rows()
    test._pipeline = load_pipeline(totals, ["operator.arguments.factor=3.0", "engine=local"])
    test.restart()
    test.send([row("a", 1, 1)])
    assert [one["total"] for one in test.rows()] == [5.0]
    for change in ("operator.class=tests.unit.operators.own.test_own_operators:Recorder", "operator.key=v"):
        test._pipeline = load_pipeline(totals, [change, "engine=local"])
        with pytest.raises(InvalidUsageError, match="belongs to another graph"):
            test.restart()


def test_modules_of_operators_and_aggregates_go_to_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_operators.py").write_text("import my_helpers\n")
    (tmp_path / "my_helpers.py").write_text("")
    (tmp_path / "t.yaml").write_text(TOTALS.replace("tests.samples.operators:", "my_operators:"))
    assert pipeline_modules(load_pipeline(tmp_path / "t.yaml")).packed == {"my_helpers", "my_operators"}


@pytest.mark.parametrize("waiting", [-1, "x", None, 1.5])
def test_what_is_no_number_of_waiting_keys_is_refused(
    totals: str, penstock_pipeline: OpenPipeline, monkeypatch: pytest.MonkeyPatch, waiting: Any
) -> None:
    monkeypatch.setattr(Totals, "waiting", lambda operator: waiting)
    test = penstock_pipeline(totals)
    test.send([row("a", 1, 1)])
    with pytest.raises(InvalidUsageError, match=r"waiting of an operator returned no number of keys"):
        test.trigger()


def test_the_command_shows_the_error_of_users_code(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text('{"k": "a", "ts": "2026-01-01T00:00:01Z", "v": 1}')
    (tmp_path / "broken.py").write_text(
        "import penstock\n\n\nclass Broken(penstock.Operator):\n    output = 'k STRING'\n\n"
        "    def restore(self, tables):\n        pass\n\n    def snapshot(self):\n        return {}\n\n"
        "    def run(self, batch, clock):\n        return batch['senser']\n"
    )
    text = SILENCE.replace("tests.samples.operators:Silence", "broken:Broken").replace("nowhere", "in")
    (tmp_path / "p.yaml").write_text(f"engine: local\n{text}query: {{trigger: available_now}}\n")
    command = [sys.executable, "-m", "penstock.cli", "run", "p.yaml"]
    place = os.environ | {"PYTHONPATH": f".:{ROOT}"}
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=place)
    assert ran.returncode == 1, ran.stderr
    assert "operator=broken:Broken error=KeyError at=broken.py:14" in ran.stderr
    assert "Caused by KeyError: " in ran.stderr
    assert "senser" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_operator_that_overrides_waiting_may_wait() -> None:
    made = load_operator("tests.samples.operators:Silence", {"gap": "1 s"})
    assert isinstance(made, Silence)
    assert (made.may_wait, Totals().may_wait) == (True, False)
