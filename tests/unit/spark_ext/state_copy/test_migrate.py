"""A query whose input gains columns or wider types continues with its waiting tuples."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.queues.repartition import read_state
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.state_copy.migrate import _convert, _parse, migrate_state
from penstock.spark_ext.state_copy.query_copy import plan_copy
from penstock.spark_ext.state_copy.wider_types import check_wider
from tests.checkpoints.stopped_queries import Made, tree
from tests.samples.streams import through_bytes

pytestmark = pytest.mark.usefixtures("unsynced")

WIDER = "extra double, value bigint, key bigint, text string, time bigint, more array<string>"


def test_added_columns_are_null_and_all_else_is_as_before(tmp_path: Path) -> None:
    made = Made(tmp_path)
    before = tree(tmp_path)
    done = migrate_state(made.checkpoint, made.state, made.to, schema=WIDER)
    assert (done.added, done.widened) == (("extra", "more"), ())
    stream = UpdateStream(parse_schema(WIDER), ("key",), "time")
    found = made.read(made.to, 3, stream)
    old = made.buckets.records()
    assert found.order() == made.buckets.order()
    assert any(waiting for _, waiting in old.values())
    assert {key: (cell, {**waiting}) for key, (cell, waiting) in found.records().items()} == {
        key: (cell, waiting and {**waiting, "extra": None, "more": None})
        for key, (cell, waiting) in old.items()
    }
    assert tree(tmp_path).items() >= before.items()
    # The new query can be copied again, by the new description.
    again = migrate_state(made.to, made.state, tmp_path / "third", schema=f"{WIDER}, last int")
    assert again.added == ("last",)


def test_wider_types_hold_the_same_values() -> None:
    old = parse_schema("k bigint, t bigint, a int, b float, c date, d tinyint, e string")
    new = "k bigint, t bigint, d int, a bigint, b double, c timestamp_ntz, e string"
    count = 50
    draw = np.random.default_rng(1)
    columns: list[pa.Array[Any]] = [
        pa.array(np.arange(count)),
        pa.array(np.arange(count)),
        pa.array(draw.integers(-(1 << 31), 1 << 31, count), pa.int32(), mask=draw.random(count) < 0.2),
        pa.array(draw.random(count).astype(np.float32)),
        pa.array([date(1600 + 9 * n, 1 + n % 12, 1 + n % 28) for n in range(count)]),
        pa.array(draw.integers(-128, 128, count), pa.int8()),
        pa.array([None, *(f"text {n}" for n in range(1, count))]),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=old)
    stream = UpdateStream(old, ("k",), "t")
    queue = UpdateQueue(stream, Policy.IN_PLACE)
    queue.enqueue(Arrivals.from_rows(stream, rows, 0, 0), 0)
    state = _convert(read_state([through_bytes(queue.delta())], ["k"]), _parse(new), {"k"})
    wider = UpdateQueue(UpdateStream(parse_schema(new), ("k",), "t"), Policy.IN_PLACE)
    wider.restore(through_bytes(unit) for unit in state.units())
    served = wider.dequeue(count, 1).rows
    assert served.schema.types == parse_schema(new).types
    expected = rows.to_pylist()
    for row in expected:
        row["c"] = datetime(row["c"].year, row["c"].month, row["c"].day)  # without a zone
    assert served.to_pylist() == [{name: row[name] for name in served.schema.names} for row in expected]


@pytest.mark.parametrize(
    ("schema", "fact"),
    [
        ("value bigint, key bigint, text string", "columns are missing in the new schema"),
        ("value int, key bigint, text string, time bigint", "cannot hold all old values exactly"),
        ("value double, key bigint, text string, time bigint", "cannot hold all old values exactly"),
        ("value bigint, key bigint, text string, time timestamp", "key, time, arrival or weight"),
        ("value bigint, key string, text string, time bigint", "key, time, arrival or weight"),
        (
            "value bigint, key bigint, text string, time bigint, n int NOT NULL",
            "an added column does not allow nulls",
        ),
        ("value bigint key", "the schema is wrong"),
    ],
)
def test_other_changes_are_refused_before_anything_is_written(tmp_path: Path, schema: str, fact: str) -> None:
    made = Made(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(InvalidUsageError, match=fact):
        migrate_state(made.checkpoint, made.state, made.to, schema=schema)
    assert tree(tmp_path) == before


def test_a_column_that_only_newer_buckets_have_must_stay(tmp_path: Path) -> None:
    columns = ["value bigint", "key bigint", "text string", "time bigint"]
    made = Made(tmp_path, schema=[*columns, "added int"])
    with pytest.raises(InvalidUsageError, match=r"a column is missing in the new schema: column=.?added int"):
        migrate_state(made.checkpoint, made.state, made.to, schema=", ".join(columns))
    with pytest.raises(InvalidUsageError, match="cannot hold all old values exactly: column=added"):
        migrate_state(made.checkpoint, made.state, made.to, schema=", ".join([*columns, "added string"]))
    migrate_state(made.checkpoint, made.state, made.to, schema=", ".join([*columns, "added bigint"]))


def test_only_windows_widen_fields_of_structs() -> None:
    was, now = (
        parse_schema(f"s struct<a:int, b:struct<c:{kind}>>").field(0).type for kind in ("int", "bigint")
    )
    with pytest.raises(InvalidUsageError, match="cannot hold all old values exactly: column=s"):
        check_wider("s", was, now)
    check_wider("s", was, now, in_structs=True)
    with pytest.raises(InvalidUsageError, match=r"column=s.b.c was=int64 now=int32"):
        check_wider("s", now, was, in_structs=True)


def test_a_queue_has_no_tables(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with pytest.raises(InvalidUsageError, match=r"only user-defined operators have tables.*pass one schema"):
        migrate_state(made.checkpoint, made.state, made.to, tables={"last": WIDER})
    with pytest.raises(InvalidUsageError, match=r"the new columns are missing.*pass one schema"):
        migrate_state(made.checkpoint, made.state, made.to)


def test_an_unfinished_copy_is_continued_with_its_own_schema_only(tmp_path: Path) -> None:
    made = Made(tmp_path)
    plan_copy(made.checkpoint, made.state, made.to, None, change={"buckets": 3}).begin()
    with pytest.raises(InvalidUsageError, match="an unfinished copy to this place has other arguments"):
        migrate_state(made.checkpoint, made.state, made.to, schema=WIDER)


def test_the_command_migrates(tmp_path: Path) -> None:
    made = Made(tmp_path)
    given = [str(made.checkpoint), "--state", str(made.state), "--to", str(made.to), "--schema", WIDER]
    done = CliRunner().invoke(app, ["state", "migrate", *given])
    assert done.exit_code == 0, done.output
    assert "added extra, more, widened none, continues after micro-batch 3" in done.output
