"""Windows and sessions write the rows that are late, however a micro-batch is divided and repeated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock._clock import SimulatedClock
from penstock.checkpointing.p_stream import PStreamReader
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.scan.spec import Fragments
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.parcels import from_parcel
from penstock.spark_ext.border.window_packing import RowPacker, WholeRows, row_fragmenter
from penstock.spark_ext.sources.task_rows import LateStream, dropped_columns
from penstock.spark_ext.worker.bucket_task import Parcel, TaskShare
from penstock.spark_ext.worker.time_windows import SessionWindowPlan, TimeWindowPlan, session_fragments
from penstock.spark_ext.worker.window_operator import WindowOperator
from penstock.spark_ext.worker.window_plan import WindowPlan
from tests.oracles.naive_windows import Event, Sessions

pytestmark = pytest.mark.usefixtures("unsynced")

ROWS = pa.schema([("time", pa.int64()), ("k", pa.string())])
WHOLE = pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int64())])
COLUMNS = StructType(
    [StructField("k", StringType()), StructField("t", LongType()), StructField("n", LongType())]
)
QUERY = "00000000-0000-0000-0000-000000000001"
BUCKETS, GAP, SIZE, DELAY = 3, 3, 4, 5
Rows = list[dict[str, Any]]


def plan_of(kind: str) -> tuple[WindowPlan, Fragments]:
    split = decompose({"n": "count(*)"}, "time", ("k",))
    assert split is not None
    split = split.add_count(("k",))
    common: dict[str, Any] = {
        "decomposition": split, "output": StructType(), "delay_ms": 1000 * DELAY, "local": False,
        "dropped": dropped_columns(COLUMNS, LongType()),
    }  # fmt: skip
    if kind == "session":
        fragments = session_fragments(1000 * GAP, "time", "s", ("k",), split.partials)
        schema = row_fragmenter(ROWS, fragments).schema
        return SessionWindowPlan(fragments=fragments, schema=schema, gap_ms=1000 * GAP, **common), fragments
    panes = Fragments(1000 * SIZE, "time", "s", ("k",), split.partials)
    fragments = panes.add_watermark(1000 * DELAY, "time")
    schema = row_fragmenter(ROWS, fragments).schema
    size_ms = 1000 * SIZE
    plan = TimeWindowPlan(fragments=fragments, schema=schema, size_ms=size_ms, slide_ms=size_ms, **common)
    return plan, fragments


def readings(seed: int, batches: int) -> list[Rows]:
    rng = np.random.default_rng(seed)
    return [
        [
            {
                "k": None if rng.random() < 0.1 else f"k{rng.integers(0, 6)}",
                "t": None if rng.random() < 0.05 else int(6 * batch + rng.integers(-18, 8)),
                "n": 100 * batch + n,
            }
            for n in range(60)
        ]
        for batch in range(batches)
    ]


def expected(kind: str, batches: list[Rows]) -> Counter[Any]:
    found, newest, oracle = Counter[Any](), None, Sessions(GAP, DELAY)
    for rows in batches:
        found.update((row["n"], "the time is null", None) for row in rows if row["t"] is None)
        known = [row for row in rows if row["t"] is not None]
        if kind == "session":
            passed = oracle.watermark
            oracle.batch([Event(row["k"], row["t"], row["n"]) for row in known])
            found.update((event.value, "late", passed) for event in oracle.dropped)
            continue
        # A window closes when the watermark, rounded down to a pane, has passed its end.
        passed = None if newest is None else (newest - DELAY) // SIZE * SIZE
        found.update(
            (row["n"], "late", passed)
            for row in known
            if passed is not None and row["t"] // SIZE * SIZE + SIZE <= passed
        )
        newest = max([row["t"] for row in known] + ([] if newest is None else [newest]))
    return found


@pytest.mark.parametrize("kind", ["time", "session"])
def test_late_rows_are_those_of_brute_force_and_are_written_once(tmp_path: Path, kind: str) -> None:
    plan, fragments = plan_of(kind)
    assert plan.dropped is not None
    late = LateStream.open(tmp_path / "late", "one", plan.dropped, str(tmp_path / "state"))
    operator = WindowOperator(
        plan.layout, plan.delay_panes, {}, WindowOptions(nulls="drop"), late=late, steps=plan.steps
    )
    whole = WholeRows(WHOLE, plan.steps, BUCKETS, ("k",))
    packer = RowPacker(ROWS, fragments, plan.packer(BUCKETS), "drop", whole)
    states = [operator.new_state() for _ in range(BUCKETS)]
    counted = 0

    def run(rows: Rows, batch: int, parts: int) -> int:
        parcels: list[list[Parcel]] = [[] for _ in range(BUCKETS)]
        for part in range(parts):
            given = [{**row, "time": row["t"], "key": row["k"]} for row in rows[part::parts]]
            schema = pa.schema([("time", pa.int64()), ("key", pa.string()), *WHOLE])
            table = pa.RecordBatch.from_pylist(given, schema=schema)
            named = pa.RecordBatch.from_arrays(table.columns, ["time", "k", "w0", "w1", "w2"])
            for packed in packer([named]):
                for row in packed.to_pylist():
                    payload = None if row["payload"] is None else from_parcel(row["payload"])
                    place = bucket_labels(BUCKETS).index(row["bucket"])
                    parcels[place].append(Parcel(row["dropped"], payload))
        total = 0
        for bucket, state in enumerate(states):
            share = TaskShare(bucket, BUCKETS, batch, BUCKETS, query_id=QUERY)
            _, metrics = operator.run(state, parcels[bucket], share, SimulatedClock(5))
            total += metrics.late + metrics.dropped
        return total

    batches = readings(7, 6)
    for batch, rows in enumerate(batches):
        before = [list(state.snapshot()) for state in states]
        counted += run(rows, batch, 2)
        after = [list(state.snapshot()) for state in states]
        for again in (before, after):
            states = [operator.new_state() for _ in range(BUCKETS)]
            for state, units in zip(states, again, strict=True):
                state.restore(units)
            if again is before:
                run(rows, batch, 1 + 2 * (batch % 2))
    wanted = expected(kind, batches)
    rows = PStreamReader(tmp_path / "late").read().to_pylist()
    assert Counter((row["n"], row["reason"], row["watermark"]) for row in rows) == wanted
    assert len(rows) == counted > 30
    assert {row["reason"] for row in rows} == {"late", "the time is null"}
