"""Deletes in windows on real Spark: a window has the rows behind its newest delete."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.run import run_to_end
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


def pipeline(place: Place, **sections: Any) -> Pipeline:
    """Return a pipeline of windows into a table; its keys change after two micro-batches."""
    source = {"type": "files", "format": "parquet", "path": str(place.input.directory), "schema": SCHEMA}
    to = f"sqlite:///{place.directory}/windows.db"
    sink = {
        "type": "upsert",
        "to": to,
        "table": "live",
        "key": ["k", "part"],
        "time": "window_end",
        "create": True,
    }
    metrics = str(place.directory / "metrics.jsonl")
    given: dict[str, Any] = {
        "source": source | {"options": {"maxFilesPerTrigger": 1}} | sections.pop("source", {}),
        "filter": "k IS NOT NULL",
        "projection": ["k", "nth div 2000 AS part", "t", "v", "op"],
        "window": {"time": "t", "size": "8 s", "slide": "4 s", "unit": "s", "watermark_delay": "5 s"},
        "group_by": ["k", "part"],
        "aggregates": {"n": "count(*)", "total": "sum(v)"},
        "query": {"checkpoint": str(place.checkpoint), "trigger": "available_now", "metrics": metrics},
    }
    given["window"] |= {"mode": "lazy"} | sections.pop("window")
    return Pipeline.model_validate({**given, "sink": sink | sections.pop("sink")})


def table_and_expired(place: Place) -> tuple[dict[str, Any], int]:
    """Return the rows of the table by key, and how many keys have left the state."""
    with closing(sqlite3.connect(place.directory / "windows.db")) as connection:
        rows = connection.execute("SELECT k || '/' || part, n, total FROM live").fetchall()
    told = [json.loads(line) for line in (place.directory / "metrics.jsonl").read_text().splitlines()]
    return {row[0]: row[1:] for row in rows}, sum(one["expired"] for one in told)


@pytest.mark.long
def test_a_pipeline_deletes_the_keys_of_a_table_whose_newest_window_is_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, tables = Place(tmp_path), [changes(batch) for batch in range(4)]
    # Keys also leave, which changes no window. The condition may change.
    for half, condition in ((tables[:2], "op = 'd'"), (tables[2:], "op IN ('d', 'x')")):
        place.input.add(*half)
        window = {"delete_when": condition, "ttl": "8 s"}
        run_to_end(pipeline(place, window=window, sink={"delete_when": "deleted"}))
    with duckdb.connect() as database:
        database.register("rows", pa.concat_tables(tables))
        key = "k || '/' || nth // 2000 as k"
        database.execute(f"create view input as select * replace ({key}) from rows where k is not null")
        newest = f"select * from ({_WINDOWS}) qualify begins = max(begins) over (partition by k)"
        windows = {row[0]: (row[2], row[4]) for row in database.sql(newest).fetchall()}
    found, expired = table_and_expired(place)
    assert found == {k: values for k, values in windows.items() if values[0]}
    assert 0 < len(found) < len(windows) and expired > 3


@pytest.mark.long
@pytest.mark.parametrize("reader", ["penstock", pytest.param("spark", marks=pytest.mark.long)])
def test_a_pipeline_deletes_the_keys_of_a_table_that_go_silent(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    place = Place(tmp_path)
    newest: dict[str, int] = {}
    windows: dict[str, Any] = {}
    seen: list[tuple[str, int, int | None]] = []
    left = now = 0
    for half in (range(2), range(2, 5)):
        for batch in half:
            place.input.add(changes(batch))
            rows = [
                (f"{row['k']}/{row['nth'] // 2000}", row["t"], row["v"])
                for row in changes(batch).to_pylist()
                if row["k"] is not None
            ]
            seen += rows
            newest |= {
                k: max(t // 4 * 4, newest.get(k, 0)) for k, t, _ in sorted(rows, key=lambda row: row[1])
            }
            now = max(now, *(t for _, t, _ in rows))
            watermark = (now - 5) // 4 * 4
            complete = sorted((t // 4 * 4 - back, k) for k, t, _ in seen for back in (4, 0))
            for start, k in complete:
                if start + 8 <= watermark and k in newest:
                    values = [v for key, t, v in seen if key == k and start <= t < start + 8]
                    known = [v for v in values if v is not None]
                    windows[k] = len(values), sum(known) if known else None
            gone = [k for k, pane in newest.items() if pane + 4 + 8 <= watermark]
            left += len(gone)
            for k in gone:
                del newest[k], windows[k]
            seen = [row for row in seen if row[0] not in gone]
        window = {"ttl": "8 s", "on_silent": "row"}
        made = pipeline(place, source={"reader": reader}, window=window, sink={"delete_when": "silent"})
        run_to_end(made)
    found, expired = table_and_expired(place)
    assert found == windows
    assert len(found) > 0 and expired == left > 3
