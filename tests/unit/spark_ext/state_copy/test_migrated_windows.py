"""Windows over migrated state go on as if the columns of their input had been so wide from the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock._clock import SimulatedClock
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import decompose
from penstock.operators.aggregates.moments import to_settings
from penstock.operators.scan.spec import Fragments
from penstock.operators.scheduling.serve import Budget, Query, serve
from penstock.operators.update_stream.operator_options import WindowOptions
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.spark_ext.api.update_window import TIME
from penstock.spark_ext.border.window_packing import add_rows, row_fragmenter
from penstock.spark_ext.state_copy.migrated_windows import convert_windows, widen_windows
from penstock.spark_ext.worker.count_windows import (
    CountWindowPlan,
    RowOrderPacker,
    arriving_rows,
    row_fragments,
)
from penstock.spark_ext.worker.stateful import columns_of
from penstock.spark_ext.worker.time_windows import (
    DELETES,
    DeletingWindowPlan,
    SessionWindowPlan,
    TimeWindowPlan,
    deleting_fragments,
    session_fragments,
)
from penstock.spark_ext.worker.window_plan import WindowPlan, partials_of_values, value_names
from penstock.sql.evaluate import project
from penstock.sql.expression import Expression
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.checkpoints.bucket_states import Buckets, restored
from tests.long_tests import long_but
from tests.sketches import needs_sketches

pytestmark = pytest.mark.usefixtures("unsynced")

AGGS = {
    "n": "count(*)",
    "known": "count(v)",
    "total": "sum(v)",
    "least": "min(v)",
    "most": "max(v + 1)",
    "first": "first(v)",
    "last": "last(V)",
    "mean": "avg(v)",
    "spread": "stddev(v)",
    "kinds": "count(DISTINCT v)",
    "others": "max(w)",
}
KEYS = ("k",)
SIZE_MS, SLIDE_MS, DELAY_MS = 8000, 4000, 3000


class Windows:
    """One bucket of windows over an input with a type of the column ``v``."""

    def __init__(self, kind: str, mode: str, value: pa.DataType) -> None:
        self.input = pa.schema({"k": pa.string(), "t": pa.int64(), "v": value, "w": pa.date32()})
        split = decompose(AGGS, "t", KEYS).add_count(KEYS)
        self.values = {name: Expression.parse(text) for text, name in value_names(split.partials).items()}
        rows = project(self.input.empty_table(), self._projection)
        deletes = [(DELETES, pa.int64())] if kind == "deletes" else []
        self.rows = pa.schema([*rows.schema, *deletes])
        partials = partials_of_values(split.partials)
        self.fragments = {
            "time": Fragments(SLIDE_MS, TIME, "s", KEYS, partials),
            "session": session_fragments(2000, TIME, "s", KEYS, partials),
            "rows": row_fragments("s", KEYS, partials),
            "deletes": deleting_fragments(SLIDE_MS, "s", KEYS, partials),
        }[kind]
        whole = kind in ("rows", "deletes")
        self.arriving = arriving_rows(self.rows, TIME, KEYS)
        made = row_fragmenter(self.arriving if whole else self.rows, self.fragments).schema
        common: Mapping[str, Any] = {
            "fragments": self.fragments, "decomposition": split, "schema": made, "output": StructType(),
            "delay_ms": DELAY_MS, "local": False, "options": WindowOptions(mode=mode),
        }  # fmt: skip
        in_time: dict[str, Any] = {"size_ms": SIZE_MS, "slide_ms": SLIDE_MS}
        plans: dict[str, Callable[[], WindowPlan]] = {
            "time": lambda: TimeWindowPlan(**common, **in_time),
            "session": lambda: SessionWindowPlan(**common, gap_ms=2000),
            "rows": lambda: CountWindowPlan(**common, size_rows=6, slide_rows=2, arriving=self.arriving),
            "deletes": lambda: DeletingWindowPlan(**common, **in_time, arriving=self.arriving),
        }
        self.plan = plans[kind]()
        columns = columns_of(from_arrow_schema(self.rows))
        self.operator = self.plan.operator(columns)
        self.specification = {"buckets": 1, **self.operator.specification()}
        self.whole = whole

    @property
    def _projection(self) -> dict[str, Expression]:
        own = {TIME: Expression.parse("t"), "k": Expression.parse("k")}
        return own | {name: one.resolve(self.input.names) for name, one in self.values.items()}

    def run(self, state: Any, batch: int, clock: SimulatedClock) -> list[str]:
        """Let a state take in a micro-batch; return the windows and the number of late rows."""
        rng = np.random.default_rng(batch)
        count = 50
        table = pa.table(
            {
                "k": pa.array([f"key {n}" if n else None for n in rng.integers(0, 9, count)]),
                "t": pa.array(8 * batch + rng.integers(-16, 8, count)),
                "v": pa.array(rng.integers(-99, 99, count), mask=rng.integers(0, 6, count) == 0),
                "w": pa.array(rng.integers(0, 999, count), pa.int32()).cast(pa.date32()),
            }
        ).cast(self.input)
        rows = project(table, self._projection)
        if DELETES in self.rows.names:
            rows = rows.append_column(DELETES, pa.array((rng.integers(0, 5, count) == 0).astype(np.int64)))
        (arriving,) = rows.cast(self.rows).combine_chunks().to_batches()
        packer = self.plan.packer(1)
        if self.whole:
            (made,) = RowOrderPacker(self.rows, TIME, packer, "error")._chunks([arriving], np.zeros(1))
        else:
            fragmenter = row_fragmenter(self.rows, self.fragments)
            add_rows(fragmenter, self.fragments, arriving)
            made = fragmenter.finish()
        entries = packer._to_pane_partials(made)
        watermark = packer._newest(made, entries) - self.operator.delay
        if isinstance(state, UpdateWindows):
            query = Query(None, self.plan.layout.window, ())
            batches, metrics = serve(
                state, WindowArrivals([entries], watermark), query=query, budget=Budget(), clock=clock
            )
            late = metrics.late
        else:
            done = state.run([entries], watermark)
            batches, late = done.windows, done.late
        return [*sorted(repr(row) for one in batches for row in one.to_pylist()), f"late {late}"]


CASES = [
    *(("time", mode) for mode in ("append", "lazy", "eager")),
    ("session", "append"),
    *(("rows", mode) for mode in ("append", "lazy")),
    *(("deletes", mode) for mode in ("append", "eager")),
]
INTEGERS, FLOATS = (pa.int16(), pa.int64()), (pa.float32(), pa.float64())


@pytest.mark.parametrize(
    ("kind", "mode", "was", "now"),
    long_but(
        [(*case, *types) for case in CASES for types in (INTEGERS, FLOATS)],
        *((*CASES[place], *INTEGERS) for place in (1, 3, 4, 7)),
        (*CASES[0], *FLOATS),
    ),
)
def test_windows_go_on_as_if_a_column_had_been_wider_from_the_start(
    tmp_path: Path, kind: str, mode: str, was: pa.DataType, now: pa.DataType
) -> None:
    old, new = Windows(kind, mode, was), Windows(kind, mode, now)
    bucket, whole, clock = (
        Buckets(tmp_path, 1, old.operator.new_state),
        new.operator.new_state(),
        SimulatedClock(0),
    )
    found, expected = [], []
    for batch in range(3):
        old.run(bucket.states[0], batch, clock)
        bucket.commit()
        new.run(whole, batch, clock)
        whole.delta()
    columns = from_arrow_schema(pa.schema([*new.input, ("more", pa.string())]))
    widened = widen_windows(old.specification, columns)
    assert old.specification | {"schema": widened.schema} == new.specification
    # A sum of a float and an integer is a double.
    assert set(widened.arguments) == ({"v", "V", "v + 1"} if was == pa.int16() else {"v", "V"})
    copied = convert_windows(bucket.copied(), old.specification, widened.types)
    (state,) = restored([copied(0)], new.operator.new_state)
    for batch in range(3, 7):
        found += new.run(state, batch, clock)
        expected += new.run(whole, batch, clock)
        whole.delta()
        state.delta()
    assert found == expected
    assert len(found) > 12 and any(one.startswith("late ") and one != "late 0" for one in found)


def test_a_wide_sum_stays_and_unknown_types_are_left_to_spark(tmp_path: Path) -> None:
    old, new = Windows("time", "append", pa.int32()), Windows("time", "append", pa.int64())
    columns = from_arrow_schema(new.input)
    types = widen_windows(old.specification, columns).types
    assert set(types.values()) == {pa.int64(), pa.list_(pa.int64())}
    assert not {"sum_v", "count_v", "rows"} & types.keys()
    partials = [*old.specification["aggregates"], ["max", "some_function(v)", "max_x"]]
    schema = [*old.specification["schema"], f"{RESERVED_PREFIX}value_{len(old.values)} struct<a:int>"]
    widened = widen_windows({**old.specification, "aggregates": partials, "schema": schema}, columns)
    assert widened.schema[-1] == schema[-1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"v": None}, "columns are missing in the new schema: columns=.'V', 'v'"),
        ({"k": None}, "columns are missing in the new schema: columns=.'k'"),
        ({"k": pa.int64()}, "type of a key column cannot change: column=k was=string now=bigint"),
        ({"v": pa.int16()}, "cannot hold all old values exactly: column=v was=int32 now=int16"),
        ({"v": pa.float64()}, "cannot hold all old values exactly: column=v was=int32 now=double"),
        ({"w": pa.timestamp("us", "UTC")}, "column=w .*use timestamp_ntz"),
    ],
)
def test_other_columns_of_windows_are_refused(columns: dict[str, Any], message: str) -> None:
    old = Windows("time", "append", pa.int32())
    kinds = dict(zip(old.input.names, old.input.types, strict=True)) | columns
    schema = pa.schema([(name, kind) for name, kind in kinds.items() if kind is not None])
    with pytest.raises(InvalidUsageError, match=message):
        widen_windows(old.specification, from_arrow_schema(schema))


@needs_sketches
def test_sketches_of_a_wider_column_are_refused() -> None:
    split = decompose({"few": "approx_count_distinct(v)", "most": "max(v)"}, "t", KEYS).add_count(KEYS)
    names = value_names(split.partials).values()
    specification = {
        "key": ["k"],
        "aggregates": [to_settings(one) for one in split.partials],
        "schema": [
            f"{TIME} bigint",
            "k string",
            *(f"{one} {kind}" for one, kind in zip(names, ("bigint", "int"), strict=True)),
        ],
    }
    wider = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.int64()})
    with pytest.raises(InvalidUsageError, match="values of approx_count_distinct cannot become wider"):
        widen_windows(specification, from_arrow_schema(wider))
