"""The option `delete_when`: its checks, and its place in graphs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.conf.pipeline import Pipeline
from penstock.dataflow import Graph, graph
from penstock.dataflow.nodes import Assemble, Join, PushedScan, UpdateQueue, topological
from penstock.dataflow.shape import shape
from penstock.errors import InvalidUsageError
from penstock.operators.joins.join import UpdateJoin
from penstock.operators.joins.spec import JoinedStream
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.deletes import mark_deletes
from penstock.operators.update_stream.operator_options import QueueOptions
from penstock.operators.update_stream.stream import UpdateStream
from penstock.sql.evaluate import project

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "op": pa.string(), "v": pa.float64()})


def changes(name: str = "changes", schema: pa.Schema = SCHEMA, **options: Any) -> Graph:
    return graph("g").source(name, schema, **options)


def test_a_null_condition_is_no_delete() -> None:
    _, columns = mark_deletes("op = 'd'", ["k", "op"])
    table = project(pa.table({"k": [1, 2, 3], "op": ["d", None, "u"]}), dict(columns))
    assert table.column("deleted").to_pylist() == [True, False, False]


def test_a_column_that_marks_deletes_already_is_replaced() -> None:
    _, columns = mark_deletes("Deleted", ["k", "DELETED", "v"])
    table = project(pa.table({"k": [1, 2], "DELETED": [None, True], "v": [0, 0]}), dict(columns))
    assert table.to_pydict() == {"k": [1, 2], "v": [0, 0], "deleted": [False, True]}


@pytest.mark.parametrize(
    ("delete_when", "message"),
    [
        (True, "delete_when is not an SQL expression: got=True"),
        ("op =", "expression"),
        ("max(op) = 'd'", "delete_when is not a condition on single rows"),
    ],
)
def test_a_wrong_condition_is_refused_with_the_options(delete_when: Any, message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        QueueOptions(delete_when=delete_when)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delete_when": "opp = 'd'"}, "no column 'opp'.*did you mean 'op'"),
        ({"delete_when": "v + 1"}, "delete_when is not a condition: .*type=double"),
        (
            {"delete_when": "op = 'd'", "apply": lambda rows: rows, "output_schema": "k string, v double"},
            "results of apply do not mark the rows that are deletes.*'deleted boolean'",
        ),
        (
            {"delete_when": "op = 'd'", "apply": lambda rows: rows, "output_schema": "k string, deleted int"},
            "results of apply do not mark the rows that are deletes",
        ),
    ],
)
def test_a_graph_refuses_what_does_not_fit_its_columns(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        changes().update_queue("k", "t", **options)
    with pytest.raises(InvalidUsageError, match=message):
        changes().union(changes("more"), key="k", time="t", **options)


def test_another_column_of_the_name_is_refused() -> None:
    schema = SCHEMA.append(pa.field("Deleted", pa.bool_()))
    with pytest.raises(InvalidUsageError, match="has this column already: column=Deleted"):
        changes(schema=schema).update_queue("k", "t", delete_when="op = 'd'")


def test_queues_and_unions_of_graphs_have_the_column_and_the_union_prefers_by_name() -> None:
    queue = changes().update_queue("k", "t", delete_when="op = 'd'")
    union = changes().union(changes("more"), key="k", time="t", prefer="more", delete_when="op = 'd'")
    for made in (queue, union):
        assert made.schema == SCHEMA.append(pa.field("deleted", pa.bool_()))
        assert made.key == ("k",)
    assert queue.update_queue("k", "t", delete_when="deleted").schema == queue.schema


def test_readers_of_a_p_stream_mark_and_conflate() -> None:
    source = changes(kind="p-stream", options={"path": "nowhere"})
    planned = source.update_queue("k", "t", delete_when="op = 'd'").plan(persist="never").root
    scan = next(node for node in topological(planned) if isinstance(node, PushedScan)).scan
    assert scan.latest_by is not None
    assert scan.select is not None
    assert "deleted" in scan.select
    plain = source.update_queue("k", "t")
    assert [type(node) for node in topological(plain.root)][1:] == [UpdateQueue], "without deletes, no step"


def windows(delete_when: str | None = "op = 'd'", **options: Any) -> Graph:
    given = {"size": "2 s", "slide": "1 s", "unit": "s", "mode": "lazy", "delete_when": delete_when} | options
    source = changes(kind="p-stream", options={"path": "nowhere"})
    return source.window("t", **given).group_by("k").agg(n="count(*)")


def test_windows_of_graphs_mark_their_deletes_and_readers_leave_the_rows_whole() -> None:
    made = windows()
    assert made.schema.names == ["k", "window", "n", "deleted"]
    assert made.root.inputs[0].describe() == "2 s by 1 s over t, lazy, in_place, deletes"
    planned = made.plan(persist="never")
    scan = next(node for node in topological(planned.root) if isinstance(node, PushedScan)).scan
    assert scan.fragments is None
    assert set(scan.select or ()) == {"k", "t", "deleted"}
    assert not any(isinstance(node, Assemble) for node in topological(planned.root))
    other = shape(windows("op IN ('d', 'x') AND v IS NULL").plan(persist="never"))
    assert shape(planned) == other, "the condition may change at a restart"
    assert shape(planned) != shape(windows(delete_when=None).plan(persist="never"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delete_when": "opp = 'd'"}, "no column 'opp'.*mean 'op'"),
        ({"delete_when": "v + 1"}, "delete_when is not a condition: .*type=double"),
        ({"delete_when": "max(v) > 1"}, "not a condition on single rows: .*node=window"),
        ({"weight": "v"}, "weight of windows with deletes cannot be a column: .*node=window"),
        ({"ttl": "1 s", "on_silent": "row"}, "windows with deletes have no silent rows: .*node=window"),
        ({"size": "2 rows", "slide": "1 rows"}, "windows of rows have no deletes: .*node=window"),
        (
            {"size": None, "slide": None, "session": "1 s", "mode": "append"},
            "session windows have no deletes: .*node=window",
        ),
    ],
)
def test_windows_of_graphs_refuse_wrong_deletes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        windows(**options)


def test_windows_with_deletes_are_aggregated_by_window_but_not_joined() -> None:
    made = windows(mode="append")
    by_window = made.where("NOT deleted").group_by("window").agg(all="sum(n)")
    assert by_window.schema.names == ["window", "all"]
    with pytest.raises(InvalidUsageError, match="windows with deletes cannot be joined"):
        made.join_windows(by_window)
    with pytest.raises(InvalidUsageError, match="two columns have the same name: column=deleted"):
        changes().window("t", size="1 s", unit="s", delete_when="v < 0").group_by("k").agg(deleted="max(v)")


def test_the_sides_of_a_join_mark_their_deletes() -> None:
    other = changes("more").select("k", "t", w="v")

    def joined(delete_when: Any) -> Graph:
        return changes().join(
            other, on="k", time="t", within="1 s", unit="s", updates=True, delete_when=delete_when
        )

    one = joined({"left": "op = 'd'"})
    assert one.schema.names == ["k", "t", "op", "v", "w", "deleted"]
    assert isinstance(one.root, Join)
    assert one.root.marked == (True, False)
    assert one.root.describe().endswith(", deletes")
    assert [input.schema.names[-1] for input in one.root.inputs] == ["deleted", "w"]
    needed = [set(names) for names in one.root.needs(frozenset({"deleted"}))]
    assert needed == [{"k", "t", "deleted"}, {"k", "t"}]
    with pytest.raises(InvalidUsageError, match="no column 'op'"):
        joined("op = 'd'")
    for wrong in ({}, {"middle": "v < 0"}):
        with pytest.raises(InvalidUsageError, match="other sides than left and right"):
            joined(wrong)
    with pytest.raises(InvalidUsageError, match="delete_when is not a condition: "):
        joined({"right": "w + 1"})


def test_a_join_matches_a_deleted_row_and_keeps_its_mark() -> None:
    sides = [
        UpdateStream(pa.schema({"k": pa.int64(), "t": pa.int64(), name: kind}), ("k",), "t")
        for name, kind in (("left_deleted", pa.bool_()), ("price", pa.float64()))
    ]
    left, right = sides
    join = UpdateJoin(JoinedStream(left, right, 100, 100, None))

    def arrive(stream: UpdateStream, *rows: dict[str, Any]) -> Arrivals:
        return Arrivals.from_rows(stream, pa.RecordBatch.from_pylist(list(rows), stream.schema))

    first = join.join(
        arrive(left, {"k": 1, "t": 1, "left_deleted": False}), arrive(right, {"k": 1, "t": 2, "price": 0.5})
    )
    assert first.rows.to_pylist() == [{"k": 1, "t": 2, "left_deleted": False, "price": 0.5}]
    deleted = join.join(
        arrive(left, {"k": 1, "t": 5, "left_deleted": True}, {"k": 2, "t": 5, "left_deleted": True}), None
    )
    assert deleted.rows.to_pylist() == [{"k": 1, "t": 5, "left_deleted": True, "price": 0.5}], (
        "key 2: no match"
    )


def test_records_of_kafka_are_decoded_before_a_queue_that_reads_deletes_from_them() -> None:
    queue = {"key": "kafka_key", "time": "kafka_offset"}
    pipeline = {
        "source": {
            "type": "kafka",
            "options": {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "changes"},
            "value_format": "debezium",
            "schema": "id INT",
            "kafka_columns": ["key", "offset"],
        },
        "queue": queue,
        "persist": "never",
        "sink": {"type": "noop"},
        "query": {"checkpoint": "checkpoint"},
    }
    marked = pipeline | {"queue": queue | {"delete_when": "deleted"}}
    assert Pipeline.model_validate(pipeline).decodes_late
    assert not Pipeline.model_validate(marked).decodes_late
