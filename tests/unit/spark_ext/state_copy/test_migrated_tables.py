"""Own operators continue over a copy of their tables with more or wider columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from typer.testing import CliRunner

import penstock
from penstock._clock import Clock, SimulatedClock
from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import LocalFiles, open_files
from penstock.cli import app
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.own.state import OperatorState
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.own.apply import plan_operator
from penstock.spark_ext.state_copy.migrate import migrate_state
from penstock.spark_ext.state_copy.own_tables import OwnBuckets
from penstock.spark_ext.state_reader.own_view import own_view
from penstock.spark_ext.state_reader.spark_state import read_pointer_files
from penstock.spark_ext.state_reader.state_view import Stored
from penstock.spark_ext.worker.bucket_task import BucketTask
from penstock.spark_ext.worker.stateful import Stateful
from penstock.state_store.bucket_store import BucketStore
from penstock.state_store.descriptions import read_description
from tests.checkpoints.bucket_states import Buckets
from tests.checkpoints.stopped_queries import tree, write_checkpoint

pytestmark = pytest.mark.usefixtures("unsynced")

BUCKETS = 2
INPUT = "k STRING, `the time` BIGINT, v INT"
TABLES = {"last": "k string, note string, n bigint"}


class Counts(penstock.Operator):
    """Counts rows by key in 32 bits."""

    output = "k STRING, n BIGINT"
    kind = pa.int32()

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def restore(self, tables: Any) -> None:
        self.counts = dict(zip(tables["last"]["k"].to_pylist(), tables["last"]["n"].to_pylist(), strict=True))

    def run(self, batch: pa.Table, clock: Clock) -> pa.Table:
        for key in batch["k"].to_pylist():
            self.counts[key] = self.counts.get(key, 0) + 1
        schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
        return pa.Table.from_pylist([{"k": key, "n": n} for key, n in self.counts.items()], schema)

    def snapshot(self) -> dict[str, pa.Table]:
        # A large string is an Arrow type that DDL cannot name.
        keys = pa.array(list(self.counts), pa.large_string())
        last = pa.table({"k": keys, "n": pa.array(list(self.counts.values()), self.kind)})
        return {"last": last, "rows": pa.table({"rows": pa.array([sum(self.counts.values())])})}

    def waiting(self) -> int:
        return len(self.counts)


class NotedCounts(Counts):
    """Counts in 64 bits, with a note on each key."""

    output = "k STRING, n BIGINT, note STRING"
    kind = pa.int64()

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, str | None] = {}

    def restore(self, tables: Any) -> None:
        last = tables["last"]
        assert last.schema.types == [pa.large_string(), pa.string(), pa.int64()]
        super().restore(tables)
        self.notes = dict(zip(last["k"].to_pylist(), last["note"].to_pylist(), strict=True))


class Made:
    """A query with an own operator that was stopped."""

    def __init__(self, place: Path) -> None:
        self.checkpoint, self.state, self.to = place / "checkpoint", place / "state", place / "new"
        place_of = Stateful("apply", BUCKETS, BUCKETS, str(self.state), 2)
        task = task_of(place_of, Counts(), INPUT)
        operator = open_files(self.state).child("old").child("apply")
        operator.publish("operator.punit", encode(PUnit("operator", task.specification())))
        self.buckets = Buckets(Path(operator.location), BUCKETS, lambda: OperatorState(Counts()))
        for bucket, state in enumerate(self.buckets.states):
            state.operator.run(pa.table({"k": [f"{bucket} {n % 3}" for n in range(5)]}), SimulatedClock(0))
        self.buckets.commit()
        labels = bucket_labels(BUCKETS)
        pointers = {labels[n]: handle.pointer for n, handle in enumerate(self.buckets.handles)}
        write_checkpoint(self.checkpoint, [pointers], waits=True)

    def copied(self) -> tuple[list[OperatorState], Any]:
        """Return the states that the copy's tasks would load, and the copy's specification."""
        query = json.loads((self.to / "metadata").read_text())["id"]
        labels = bucket_labels(BUCKETS)
        held = read_pointer_files(LocalFiles(self.to / "state"), 0, labels)
        assert held is not None
        files, states = open_files(self.state).child(query).child("apply"), []
        for label in labels:
            states.append(OperatorState(NotedCounts()))
            pointer = held[0][label]
            BucketStore(files.child(f"{labels.index(label):05d}")).load(pointer, states[-1])
        return states, read_description(files)


def task_of(place: Stateful, operator: penstock.Operator, schema: str) -> BucketTask[Any]:
    columns = from_arrow_schema(parse_schema(schema), prefer_timestamp_ntz=True)
    planned = plan_operator(columns, operator, "k", "the time", place)
    return BucketTask("apply", place.state_location, planned.operator, place.buckets, place.parallel)


def test_tables_get_null_in_added_columns_and_keep_all_other_values(tmp_path: Path) -> None:
    made = Made(tmp_path)
    before = tree(tmp_path)
    done = migrate_state(
        made.checkpoint, made.state, made.to, schema=f"{INPUT.replace('v INT', 'v BIGINT')}, more DOUBLE",
        tables=TABLES,
    )  # fmt: skip
    assert (done.added, done.widened) == (("last.note",), ("last.n",))
    assert tree(tmp_path).items() >= before.items()
    states, specification = made.copied()
    for bucket, state in enumerate(states):
        counts = {f"{bucket} 0": 2, f"{bucket} 1": 2, f"{bucket} 2": 1}
        operator: Any = state.operator
        assert operator.counts == counts and operator.notes == dict.fromkeys(counts)
        assert state.tables["rows"].to_pylist() == [{"rows": 5}]
        assert next(state.snapshot()).meta["waiting"] == 3
    assert specification["schema"] == ["k string", "the time bigint", "v bigint", "more double"]


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({}, "the new columns are missing.*its tables, one schema"),
        ({"tables": {"first": "k string"}}, "the operator has no such table"),
        ({"tables": {"last": "k string"}}, "columns are missing"),
        ({"tables": {"last": "k string, n smallint"}}, "cannot hold all old values exactly"),
        ({"tables": {"last": "k string, n int, m int NOT NULL"}}, "does not allow nulls"),
        ({"tables": {"last": "k binary, n int"}}, "the type of a key or time column cannot change"),
        ({"schema": INPUT.replace("k STRING", "k BIGINT")}, "the type of a key or time column cannot change"),
        ({"schema": INPUT.replace("BIGINT", "DOUBLE")}, "the type of a key or time column cannot change"),
        ({"schema": "k STRING, `the time` BIGINT"}, "a column is missing in the new schema"),
        ({"schema": "k STRING, v INT, the STRING"}, "column is missing.*column=the time bigint"),
        ({"schema": {"left": INPUT}}, "only a join has several schemas"),
    ],
)
def test_other_changes_of_tables_are_refused_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], fact: str
) -> None:
    made = Made(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(InvalidUsageError, match=fact):
        migrate_state(made.checkpoint, made.state, made.to, **given)
    assert tree(tmp_path) == before


def test_wider_fields_of_a_table_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Counts.snapshot

    def with_struct(self: Counts) -> dict[str, pa.Table]:
        tables = snapshot(self)
        values = pa.array([{"a": 1}] * tables["last"].num_rows, pa.struct([("a", pa.int32())]))
        return tables | {"last": tables["last"].append_column("s", values)}

    monkeypatch.setattr(Counts, "snapshot", with_struct)
    made = Made(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(InvalidUsageError, match="cannot hold all old values exactly: column=s"):
        migrate_state(
            made.checkpoint, made.state, made.to, tables={"last": "k string, n int, s struct<a:bigint>"}
        )
    assert tree(tmp_path) == before


def test_the_command_migrates_tables(tmp_path: Path) -> None:
    made = Made(tmp_path)
    given = [str(made.checkpoint), "--state", str(made.state), "--to", str(made.to)]
    twice = ["--table", f"last={TABLES['last']}", "--table", "last =k string"]
    bad = CliRunner().invoke(app, ["state", "migrate", *given, *twice])
    assert bad.exit_code == 2 and "two --table options have the same table: table=last" in bad.output
    bad = CliRunner().invoke(app, ["state", "migrate", *given, "--table", "last"])
    assert bad.exit_code == 2 and "--table last" in bad.output
    done = CliRunner().invoke(app, ["state", "migrate", *given, "--table", f"last={TABLES['last']}"])
    assert done.exit_code == 0, done.output
    assert "added last.note, widened last.n, continues after micro-batch 0" in done.output


@pytest.mark.parametrize(
    ("schema", "operator", "accepted"),
    [
        (f"{INPUT}, more DOUBLE", Counts(), True),
        (f"more DOUBLE, {INPUT}", NotedCounts(), True),
        (INPUT, NotedCounts(), True),
        (f"{INPUT}, more DOUBLE NOT NULL", Counts(), False),
        (INPUT.replace("v INT", "v INT NOT NULL"), Counts(), True),
        (INPUT.replace("v INT", "v BIGINT"), Counts(), False),
        ("k STRING, `the time` BIGINT", Counts(), False),
    ],
)
def test_a_restart_may_add_columns_to_the_input_and_the_results(
    tmp_path: Path, schema: str, operator: penstock.Operator, accepted: bool
) -> None:
    made = Made(tmp_path)
    place = Stateful("apply", BUCKETS, BUCKETS, str(made.state), 2)
    new, old = task_of(place, operator, schema), task_of(place, Counts(), INPUT)
    # The operator's class is fixed.
    theirs = {**old.specification(), "operator": new.specification()["operator"]}
    if accepted:
        assert set(new.check_same(theirs, "here")) <= {"schema", "output"}
    else:
        with pytest.raises(InvalidUsageError, match="was made with another schema"):
            new.check_same(theirs, "here")


def test_buckets_with_other_types_are_refused_by_table_and_column(tmp_path: Path) -> None:
    buckets = Buckets(tmp_path, 2, lambda: OperatorState(Counts()))
    for bucket, state in enumerate(buckets.states):
        state.operator.counts = {("b", "a")[bucket]: 1}
    first, second = (state.operator.snapshot()["last"] for state in buckets.states)
    buckets.states[0].operator.snapshot = lambda: {"last": first.set_column(1, "n", pa.array(["1"]))}
    buckets.states[1].operator.snapshot = lambda: {"last": second}
    buckets.commit()
    old = OwnBuckets(buckets.copied(), {"key": ["k"], "buckets": 2, "schema": ["k string"]})
    with pytest.raises(InvalidUsageError, match=r"do not fit together: table=last column=n types=.*Hint"):
        old.rescale(0, 1)


def test_buckets_with_different_columns_are_divided_and_read(tmp_path: Path) -> None:
    buckets = Buckets(tmp_path, 2, lambda: OperatorState(Counts()))
    for bucket, state in enumerate(buckets.states):
        state.operator.counts = {("b", "a")[bucket]: bucket + 1}
    snapshot = buckets.states[1].operator.snapshot

    def with_note() -> dict[str, pa.Table]:
        last = snapshot()["last"].append_column("note", pa.array(["new"]))
        return {"last": last.select(["note", "k", "n"])}

    buckets.states[0].operator.snapshot = lambda: {"last": snapshot_of(buckets.states[0])}
    buckets.states[1].operator.snapshot = with_note
    buckets.commit()
    specification = {"key": ["k"], "buckets": 2, "schema": ["k string"]}
    written = OwnBuckets(buckets.copied(), specification).rescale(0, 1)
    assert written is not None
    assert written.parts[0].blocks["last"].to_pylist() == [
        {"k": "b", "n": 1, "note": None},
        {"k": "a", "n": 2, "note": "new"},
    ]
    units = [next(state.snapshot()) for state in buckets.states]
    view = own_view(Stored({}, lambda: units[1], large=False), None)
    shown = [view.rows(state, unit) for state, unit in zip(buckets.states, units, strict=True)]
    assert [[column.to_pylist() for column in rows or []] for rows in shown] == [
        [[None], ["b"], [1]],
        [["new"], ["a"], [2]],
    ]


def snapshot_of(state: OperatorState) -> pa.Table:
    return Counts.snapshot(state.operator)["last"]  # type: ignore[arg-type]  # it is an operator of this class
