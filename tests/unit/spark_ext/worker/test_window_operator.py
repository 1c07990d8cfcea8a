"""Windows served by key, from rows to their bucket's task without Spark: weights reach the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock._clock import SimulatedClock
from penstock.dataflow import graph
from penstock.dataflow.nodes import Window
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.scan.spec import WEIGHT, Fragments
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.spark_ext.border.parcels import from_parcel
from penstock.spark_ext.border.window_packing import RowPacker, row_fragmenter
from penstock.spark_ext.worker import bucket_task
from penstock.spark_ext.worker.bucket_task import BucketTask, Parcel
from penstock.spark_ext.worker.time_windows import TimeWindowPlan
from penstock.spark_ext.worker.window_operator import WindowOperator
from penstock.spark_ext.worker.window_plan import WindowPlan
from penstock.state_store.bucket_store import Pointer
from penstock.state_store.cache import StateCache

ROWS = pa.schema([("t", pa.int64()), ("k", pa.string()), ("w", pa.int32()), ("x", pa.float64())])
UPDATES = {"t": [0, 0, 0, 0, 9], "k": ["a", "b", "c", "d", "end"], "w": [1, 4, 9, 1, 1], "x": [1.0] * 5}
BY_KEY = {"c": 9, "b": 4.0}


def plan_of(weight: object) -> WindowPlan:
    """Return windows of 4 s over `ROWS`, not served by key yet."""
    aggregates = {"n": "count(*)"} | ({WEIGHT: f"last({weight})"} if isinstance(weight, str) else {})
    split = decompose(aggregates, "t", ("k",))
    assert split is not None
    split = split.add_count(("k",))
    fragments = Fragments(4000, "t", "s", ("k",), split.partials)
    schema = row_fragmenter(ROWS, fragments).schema
    return TimeWindowPlan(fragments, split, schema, StructType(), 0, local=False, size_ms=4000, slide_ms=4000)


def of_update_window(weight: Any) -> WindowPlan:
    return plan_of(weight).replace_options(
        WindowOptions(mode="lazy", budget=1, policy="in_place", weight=weight)
    )


def of_graph(weight: Any) -> WindowPlan:
    made = (
        graph("g")
        .source("rows", ROWS)
        .window("t", size="4 s", unit="s", mode="lazy", budget=1, weight=weight)
    )
    assert isinstance(made.root, Window)
    return plan_of(weight).replace_options(made.root.options)


def task_of(plan: WindowPlan, place: object) -> BucketTask[Any]:
    return BucketTask("windows", str(place), plan.operator(()), buckets=1, parallel=1)


def parcels_of(plan: WindowPlan) -> list[Parcel]:
    packer = RowPacker(ROWS, plan.fragments, plan.packer(1), "error")
    packed = packer([pa.RecordBatch.from_pydict(UPDATES, schema=ROWS)])
    return [Parcel(0, from_parcel(row["payload"])) for batch in packed for row in batch.to_pylist()]


@pytest.fixture(autouse=True)
def _other_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bucket_task, "_CACHE", StateCache(1 << 24))
    monkeypatch.setattr(bucket_task, "_CHECKED", set())
    yield


@pytest.mark.parametrize("made", [of_update_window, of_graph])
@pytest.mark.parametrize(("weight", "order"), [("w", "cbad"), (BY_KEY, "cbad"), (None, "abcd")])
def test_with_a_budget_of_one_the_groups_that_matter_most_come_first(
    made: Any, weight: object, order: str, tmp_path: Any
) -> None:
    plan, clock = made(weight), SimulatedClock(1000)
    task, pointer, served = task_of(plan, tmp_path), None, []
    for number in range(4):
        arriving = [] if number else parcels_of(plan)
        pointer, batches, _ = task.run("q", number, 0, pointer, arriving, clock)
        served += [row["k"] for batch in batches for row in batch.to_pylist()]
    assert "".join(served) == order


@dataclass(frozen=True)
class _Older(WindowOperator):
    """As it was before windows had weights."""

    def specification(self) -> dict[str, Any]:
        return {name: value for name, value in super().specification().items() if name != "weight"}


def _restarted(before: BucketTask[Any], after: BucketTask[Any], plan: WindowPlan) -> Pointer | None:
    pointer, _, _ = before.run("q", 0, 0, None, parcels_of(plan), SimulatedClock(1))
    bucket_task._CHECKED.clear()
    return after.run("q", 1, 0, pointer, [], SimulatedClock(2))[0]


@pytest.mark.parametrize(
    ("before", "after", "goes_on"),
    [
        (None, None, True),
        ("w", "w", True),
        (BY_KEY, {"a": 2}, True),
        ("w", None, False),
        (BY_KEY, None, False),
        (None, "w", False),
        (None, BY_KEY, False),
        ("w", BY_KEY, False),
        ("w", "x", False),
    ],
)
def test_weights_neither_come_nor_go_while_a_checkpoint_lives(
    before: object, after: object, goes_on: bool, tmp_path: Any
) -> None:
    first, second = of_update_window(before), of_update_window(after)
    tasks = task_of(first, tmp_path), task_of(second, tmp_path)
    if goes_on:
        assert _restarted(*tasks, first) is not None
    else:
        with pytest.raises(InvalidUsageError, match="made with another weight"):
            _restarted(*tasks, first)


def test_a_checkpoint_from_before_windows_had_weights_goes_on_without(tmp_path: Any) -> None:
    plain, weighted = of_update_window(None), of_update_window("w")
    task = task_of(plain, tmp_path)
    fields = {name: getattr(task.operator, name) for name in WindowOperator.__dataclass_fields__}
    older = replace(task, operator=_Older(**fields))
    with pytest.raises(InvalidUsageError, match="made with another weight"):
        _restarted(older, task_of(weighted, tmp_path), plain)
    assert _restarted(older, task, plain) is not None


def test_other_aggregates_than_in_the_checkpoint_are_shown_as_sql(tmp_path: Any) -> None:
    task = task_of(of_update_window(None), tmp_path)
    stored = {**task.specification(), "aggregates": [["sum", "x", "sum_x"], ["count", "*", "n"]]}
    with pytest.raises(
        InvalidUsageError, match=r"made with other aggregates: .*was=.sum\(x\) AS sum_x, count"
    ):
        task.check_same(stored, "file")
