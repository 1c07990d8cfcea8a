"""Stored state as rows, without Spark: names that collide, tables, and both sides of joined windows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.checkpointing import PUnit
from penstock.checkpointing.files import open_files
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.scan.spec import PANE, Fragments
from penstock.spark_ext.border.window_packing import add_rows, row_fragmenter
from penstock.spark_ext.graph.window_join import SidesOperator
from penstock.spark_ext.state_reader.state_view import Ours, Stored, displayed_schema, one_of_tables
from penstock.spark_ext.state_reader.window_view import sides_view
from penstock.spark_ext.worker.time_windows import TimeWindowPlan
from penstock.spark_ext.worker.window_plan import WindowPlan
from penstock.state_store.bucket_store import BucketStore, Handle
from penstock.state_store.survey import survey_bucket
from penstock.windows.layout import ENTRY_PANE

ROWS = pa.schema([("t", pa.int64()), ("k", pa.string()), ("x", pa.float64())])


def plan_of(aggregates: dict[str, str], groups: tuple[str, ...], size_ms: int) -> WindowPlan:
    split = decompose(aggregates, "t", groups).add_count(groups)
    fragments = Fragments(2000, "t", "s", groups, split.partials)
    schema = row_fragmenter(ROWS, fragments).schema
    return TimeWindowPlan(
        fragments, split, schema, StructType(), 0, local=False, size_ms=size_ms, slide_ms=2000
    )


def entries(plan: WindowPlan, rows: list[tuple[int, str, float]]) -> pa.RecordBatch:
    """Return the entries of some rows of (t, k, x), as the map side makes them."""
    fragmenter = row_fragmenter(ROWS, plan.fragments)
    columns = [pa.array(values, kind) for *values, kind in zip(*rows, ROWS.types, strict=True)]
    add_rows(fragmenter, plan.fragments, pa.RecordBatch.from_arrays(columns, schema=ROWS))
    made = fragmenter.finish()
    entry = [
        pa.array([at // 2 for at in made[PANE].to_pylist()]) if name == ENTRY_PANE else made[name]
        for name in plan.layout.pane_schema.names
    ]
    return pa.RecordBatch.from_arrays(entry, schema=plan.layout.pane_schema)


def test_each_side_of_a_join_of_windows_has_its_panes(tmp_path: Path) -> None:
    plans = (
        plan_of({"mean": "avg(x)", "newest": "last(x)"}, ("k",), 4000),
        plan_of({"most": "max(x)"}, (), 6000),
    )
    left = [[(t, "ab"[t % 2], t / 2) for t in range(begin, begin + 10)] for begin in (0, 10)]
    right = [[(t, "c", float(t)) for t in range(begin, begin + 8)] for begin in (0, 8)]
    operator = SidesOperator(
        tuple(plan.layout for plan in plans), (0, 0), pa.schema([]),
        {"sides": [plan.settings(["t bigint"]) for plan in plans]},
    )  # fmt: skip
    store, handle, state = BucketStore(open_files(tmp_path)), Handle(), operator.new_state()
    for here, there in zip(left, right, strict=True):
        newest = [some[-1][0] // 2 for some in (here, there)]
        state.run([[entries(plans[0], here)], [entries(plans[1], there)]], newest)
        handle = store.commit(state, handle)
    stored = Stored(
        operator.specification(), lambda: store.read_version(handle.links[-1].pointer)[1], large=False
    )
    assert survey_bucket(open_files(tmp_path)).rows == len(state)
    with pytest.raises(InvalidUsageError, match=r"several tables: .*tables=\['left', 'right'\]"):
        sides_view(stored, None)
    # The right side is behind, at pane 7: windows that end later are open, of 2 panes and of 3.
    found = []
    for name in ("left", "right"):
        view, counts = sides_view(stored, name), Counter[tuple[object, ...]]()
        restored = view.new_state()
        assert handle.pointer is not None
        BucketStore(open_files(tmp_path)).load(handle.pointer, restored)
        for unit in restored.snapshot():
            columns = view.rows(restored, unit)
            if columns is None:
                continue
            assert len(columns) == len(view.schema) - 2
            rows = dict(zip(view.schema.names[2:], (one.to_pylist() for one in columns), strict=True))
            keys = zip(rows.get("k", ["all"] * len(rows["pane_start"])), rows["pane_start"], strict=True)
            for (k, start), count in zip(keys, rows[str(plans[view.side].decomposition.rows)], strict=True):
                counts[k, start.timestamp()] += count
        found.append(counts)
        assert view.schema["pane_start"].dataType.simpleString() == "timestamp"
    assert found[0] == Counter((k, t // 2 * 2) for some in left for t, k, _ in some if t // 2 >= 6)
    assert found[1] == Counter(("all", t // 2 * 2) for some in right for t, _, _ in some if t // 2 >= 5)


def test_a_column_of_ours_gives_way_to_one_of_the_stream_whatever_its_case() -> None:
    made = displayed_schema(
        [StructField("Bucket", StringType()), Ours("rank", LongType()), Ours("t", LongType())]
    )
    assert made.names == ["__penstock_bucket", "version", "Bucket", "rank", "t"]
    assert displayed_schema([StructField("RANK", StringType()), Ours("rank", LongType())]).names[2:] == [
        "RANK",
        "__penstock_rank",
    ]


def test_a_table_is_chosen_where_there_are_several() -> None:
    assert one_of_tables(["keys"], None, of="a queue") == "keys"
    assert one_of_tables(["keys", "held"], "held", of="a join") == "held"
    with pytest.raises(InvalidUsageError, match="several tables: operator=a join"):
        one_of_tables(["keys", "held"], None, of="a join")
    with pytest.raises(InvalidUsageError, match=r"no such table: .*table=hold"):
        one_of_tables(["keys", "held"], "hold", of="a join")


def test_without_a_file_nothing_tells_the_types_of_windows() -> None:
    stored = Stored({"sides": []}, lambda: None, large=False)
    with pytest.raises(InvalidUsageError, match="unknown until something is stored"):
        sides_view(stored, "left")


def test_columns_whose_types_cannot_be_parsed_keep_their_places_though_names_have_spaces() -> None:
    odd = pa.struct([("x y", pa.int64())])
    blocks = {
        "cells": pa.RecordBatch.from_pylist([], pa.schema([("a", pa.int64())])),
        "rows": pa.RecordBatch.from_pylist([], pa.schema([("a b", odd), ("t", pa.int64())])),
    }
    stored = Stored({}, lambda: PUnit("delta", {}, blocks), large=False)
    texts = ["a b struct<x y:bigint>", "a bigint", "t bigint"]
    assert stored.columns(texts, "cells", "rows").names == ["a b", "a", "t"]
