"""Deletes in windows on real Spark: a window has the rows behind its newest delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidUsageError
from tests.spark.queries import Input, Place

pytestmark = pytest.mark.spark

SCHEMA = "k string, t long, v int, op string, nth long"
AGGS = {
    "n": "count(*)",
    "known": "count(v)",
    "total": "sum(v)",
    "mean": "avg(v)",
    "kinds": "count(DISTINCT v)",
}

_WINDOWS = """
with pieces as (
    select input.*, begins
    from input, (select unnest(range(-4, 64, 4)) as begins) where begins <= t and t < begins + 8
), cut as (
    select *, max(case when op = 'd' then t * 1000000 + nth end) over (partition by k, begins) as deleted
    from pieces
)
select k, begins, count(*) filter (kept), count(v) filter (kept), sum(v) filter (kept), avg(v) filter (kept),
    count(distinct v) filter (kept)
from (select *, deleted is null or t * 1000000 + nth > deleted as kept from cut)
where begins + 8 <= (select max(t) - 5 from input) group by k, begins
"""


def changes(batch: int) -> pa.Table:
    rng = np.random.default_rng(batch)
    count = 60
    return pa.table(
        {
            "k": pa.array([f"key {n}" if n else None for n in rng.integers(0, 12, count)]),
            "t": pa.array(np.maximum(10 * batch + rng.integers(-5, 10, count), 0)),
            "v": pa.array(rng.integers(0, 9, count), pa.int32(), mask=rng.integers(0, 5, count) == 0),
            "op": pa.array(rng.choice(np.array(["i", "d", None], object), count, p=[0.6, 0.2, 0.2])),
            "nth": pa.array(np.arange(count) + 1000 * batch),
        }
    )


def test_windows_with_deletes_are_those_of_duckdb_also_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, tables = Place(tmp_path), [changes(batch) for batch in range(4)]

    def made(**more: Any) -> DataFrame:
        return penstock.update_window(
            place.input.frame(spark, SCHEMA), "k", "t", "8 s", "4 s", AGGS, unit="s", buckets=2,
            watermark_delay="5 s", delete_when="op = 'd'", state_location=place.state, **more,
        )  # fmt: skip

    for half in (tables[:2], tables[2:]):
        place.input.add(*half)
        place.run(made())
    with duckdb.connect() as database:
        # Rows that are 15 behind the newest one are late; there are none.
        database.register("input", pa.concat_tables(tables))
        expected = {row[:2]: row[2:] for row in database.sql(_WINDOWS).fetchall()}
    found = {}
    for table in place.batches().values():
        for row in table.to_pylist():
            name = row["k"], int(row["window"]["start"].timestamp())
            assert name not in found
            values = tuple(row[one] for one in AGGS)
            assert not row["deleted"] or values == (None,) * 5
            found[name] = (0, 0, None, None, 0) if row["deleted"] else values
    assert found == expected
    assert any(values[0] == 0 for values in found.values())
    waiting = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="rows").collect()
    assert {row["k"] for row in waiting} <= {row["k"] for row in changes(3).to_pylist()} and waiting
    with pytest.raises(InvalidUsageError, match="have no deletes"):
        penstock.update_window(
            Input(place.input.directory).frame(spark, SCHEMA), "k", "t", session="5 s", aggs=AGGS, unit="s",
            delete_when="op = 'd'", state_location=place.state,
        )  # fmt: skip
