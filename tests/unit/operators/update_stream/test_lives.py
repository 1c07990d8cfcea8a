"""The options of a time to live: their checks, and their use in graphs and pipelines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock.conf.pipeline import Pipeline
from penstock.dataflow import graph
from penstock.dataflow.shape import shape
from penstock.errors import InvalidUsageError
from penstock.operators.queues.expiry import Lives
from penstock.operators.queues.key_records import ForgetRule, KeyRecords
from penstock.operators.queues.repartition import merge_states, read_state
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.lives import life_steps, silent_rows
from penstock.operators.update_stream.operator_options import QueueOptions
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, enqueue, served_of, through_bytes

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.float64()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl": True}, "a time to live is not a duration: option=ttl got=True"),
        ({"ttl": "soon"}, "duration"),
        ({"ttl": "0 s"}, "a time to live is not positive: option=ttl"),
        ({"ttl": "1 s", "delete_ttl": -1}, "a time to live is not positive: option=delete_ttl got=-1"),
        ({"ttl": "1 s", "on_silent": "rows"}, "unknown value: option=on_silent got=rows"),
        ({"on_silent": "row"}, "on_silent needs ttl"),
        ({"ttl": "1 s", "semantics": "append"}, "only queues of update semantics: option=ttl"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        QueueOptions(**options)


def test_a_time_to_live_is_in_steps_of_the_time() -> None:
    assert life_steps("ttl", None, pa.int64()) is None
    assert life_steps("ttl", 7, pa.int64()) == 7
    assert life_steps("ttl", "2 s", pa.timestamp("us", "UTC")) == 2_000_000
    assert life_steps("ttl", timedelta(days=2), pa.date32()) == 2
    assert life_steps("ttl", "2 s", pa.int64(), "ms") == 2000
    for life, kind, message in (
        (7, pa.timestamp("us"), "a number is the time to live of an integer time"),
        ("7 s", pa.int64(), "a duration has no meaning for an integer time"),
        ("7 s", pa.float64(), "the time column has an unsupported type"),
    ):
        with pytest.raises(InvalidUsageError, match=message):
            life_steps("ttl", life, kind)


def test_a_silent_row_has_only_its_key_its_time_and_its_marks() -> None:
    output = pa.schema([*SCHEMA, ("deleted", pa.bool_()), ("silent", pa.bool_())])
    rows = silent_rows(output, ["k"], [pa.array(["a", "b"])], "t", pa.array([4, 5]))
    assert rows.to_pylist()[1] == {"k": "b", "t": 5, "v": None, "deleted": False, "silent": True}


def test_a_graph_has_the_column_and_the_lengths_may_change_at_a_restart() -> None:
    def queue(**options: Any) -> Any:
        return graph("g").source("s", SCHEMA).update_queue("k", "t", **options)

    made = queue(ttl=10, on_silent="row")
    assert made.schema.names == ["k", "t", "v", "silent"]
    assert made.root.describe().endswith("ttl 10, silent rows")
    shapes = [shape(one.plan()) for one in (made, queue(ttl=20, on_silent="row"), queue(ttl=20), queue())]
    assert shapes[0] == shapes[1] != shapes[2] == shapes[3]
    with pytest.raises(InvalidUsageError, match="delete_ttl is for streams with deletes"):
        queue(delete_ttl=3)
    assert queue(delete_ttl=3, delete_when="v < 0").schema.names[-1] == "deleted"
    silent = SCHEMA.append(pa.field("Silent", pa.bool_()))
    with pytest.raises(InvalidUsageError, match="the stream has this column already"):
        graph("g").source("s", silent).update_queue("k", "t", ttl=10, on_silent="row")


def test_a_pipeline_has_the_options() -> None:
    source = {"type": "files", "format": "csv", "path": "in", "schema": "k STRING, t TIMESTAMP, v DOUBLE"}
    queue = {"key": "k", "time": "t", "ttl": "1 day", "delete_ttl": "1 h", "on_silent": "row"}
    sink, query = {"type": "memory"}, {"name": "q"}
    made = Pipeline.model_validate({"source": source, "queue": queue, "sink": sink, "query": query})
    assert made.queue is not None
    assert (made.queue.ttl, made.queue.delete_ttl, made.queue.on_silent) == ("1 day", "1 h", "row")
    with pytest.raises(ValueError, match="too small"):
        Pipeline.model_validate({"source": source, "queue": queue | {"ttl": 0}, "sink": sink, "query": query})


def windows(**options: Any) -> Any:
    given = {"size": "4 s", "unit": "s", "mode": "lazy"} | options
    return graph("g").source("s", SCHEMA).window("t", **given).group_by("k").agg(n="count(*)")


def test_windows_of_graphs_have_the_column_and_the_time_to_live_may_change_at_a_restart() -> None:
    made = windows(ttl="10 s", on_silent="row")
    assert made.schema.names == ["k", "window", "n", "silent"]
    assert made.root.inputs[0].describe() == "4 s by 4 s over t, lazy, in_place, ttl 10 s, silent rows"
    others = (windows(ttl="20 s", on_silent="row"), windows(ttl="20 s"), windows())
    shapes = [shape(one.plan()) for one in (made, *others)]
    assert shapes[0] == shapes[1] != shapes[2] == shapes[3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_silent": "row"}, "on_silent needs ttl.*node=window"),
        ({"ttl": "soon"}, "'soon' is not a duration: .*node=window"),
        ({"ttl": 5}, "not a duration"),
        ({"ttl": "1 s", "mode": "append"}, "append mode do not take this option: option=ttl node=window"),
        ({"ttl": "1 s", "budget": 3}, "windows with a budget have no ttl: node=window"),
        ({"ttl": "1 s", "size": "3 rows"}, "the keys of windows of rows do not leave: .*node=window"),
    ],
)
def test_windows_of_graphs_refuse_wrong_lives(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        windows(**options)


def test_the_state_really_becomes_smaller_and_copies_of_it_have_no_keys_that_left() -> None:
    queue = UpdateQueue(STREAM, Policy.IN_PLACE)
    units, before = [], 0
    for time, keys in ((0, 20_000), (100, 10_000)):
        enqueue(queue, [Update(time * 1000 + key, time, key) for key in range(keys)], time)
        served_of(queue, keys - (time == 100), time)
        before = queue.size_bytes
        units.append(through_bytes(queue.delta()))
    expired = queue.expire(100, Lives(key=50))
    assert (len(expired), queue.keys) == (20_000, 10_000)
    units.append(through_bytes(queue.delta()))
    assert queue.size_bytes < 0.7 * before
    (snapshot,) = queue.snapshot()
    assert snapshot.blocks["cells"].num_rows == 10_000
    state = read_state(units, ["key"])
    assert (state.records.num_rows, state.waiting.num_rows) == (10_000, 1)
    merged = merge_states([state.select(0, 2), state.select(1, 2)], 1.0)
    assert (merged.meta["rows"], merged.meta["horizon"]) == (10_000, 50)
    copy = UpdateQueue(STREAM, Policy.IN_PLACE)
    copy.restore(merged.units())
    assert copy.keys == 10_000
    assert enqueue(copy, [Update(5, 50, 0), Update(6, 51, 0)], 200) == (2, 0, 1)


def test_a_key_that_returns_has_the_record_of_a_new_key() -> None:
    columns = {"gone": 0, "emitted": -1, "interval_us": 2.5}
    records = KeyRecords(STREAM, columns, ["emitted"], ForgetRule())
    keys = STREAM.codec.encode([pa.array([7, 8], STREAM.schema.field("key").type)])
    ids = records.find_or_add(keys)
    records["interval_us"][ids] = 40.0
    records.remove(ids[:1])
    assert records.keys == 1
    assert records.find_or_add(keys).tolist() == ids.tolist()
    assert records.keys == 2
    assert {name: records[name][ids].tolist() for name in columns} == {
        "gone": [0, 0], "emitted": [-1, -1], "interval_us": [2.5, 40.0]
    }  # fmt: skip
