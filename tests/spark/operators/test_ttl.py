"""Keys that go silent on real Spark: they leave the state, and a row says so."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.conf.pipeline import Pipeline
from penstock.jobs.pipelines.run import run_to_end
from tests.oracles.naive_join import Tuple
from tests.property.operators.joins.test_join_lives import ExpiringModel
from tests.spark.queries import Input, Place

pytestmark = pytest.mark.spark

SCHEMA = "k long, t long, op string, v long"
ARROW = pa.schema({"k": pa.int64(), "t": pa.int64(), "op": pa.string(), "v": pa.int64()})
TTL, DELETE_TTL = 25, 10

Row = tuple[int, int, str, int]


def readings(seed: int, batches: int) -> list[list[Row]]:
    """Return micro-batches in which keys come and go: each talks for a while, and some rows are late."""
    draw = random.Random(seed)
    made = []
    for batch in range(batches):
        rows: list[Row] = []
        for _ in range(20):
            key = draw.randrange(14) + 4 * (batch // 2)
            time = max(batch * 10 + draw.randint(*((-40, -20) if draw.random() < 0.3 else (-5, 9))), 0)
            rows.append((key, time, draw.choice("uuud"), len(rows) + 1000 * batch))
        made.append(rows)
    return made


def tables(batches: Sequence[Sequence[Row]]) -> list[pa.Table]:
    names = ARROW.names
    return [
        pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], ARROW) for rows in batches
    ]


class Model:
    """Newest rows in a dictionary, and a clock."""

    def __init__(self) -> None:
        self.last: dict[int, tuple[int, bool]] = {}
        self.horizons = [-1000, -1000]
        self.clock = -1000
        self.late = 0

    def run(self, rows: Sequence[Row]) -> tuple[set[Any], set[Any]]:
        """Return the rows that are emitted, and the silent keys with their last times."""
        newest: dict[int, Row] = {}
        for row in rows:
            if row[0] not in newest or row[1] >= newest[row[0]][1]:
                newest[row[0]] = row
        emitted = set()
        for key, (_, time, op, value) in newest.items():
            known = self.last.get(key)
            if time < known[0] if known else time <= max(self.horizons):
                self.late += sum(row[0] == key for row in rows)
                continue
            emitted.add((key, time, value, op == "d"))
            self.last[key] = (time, op == "d")
        self.clock = max(self.clock, *(row[1] for row in rows))
        self.horizons = [self.clock - TTL, self.clock - DELETE_TTL]
        gone = {key: at for key, at in self.last.items() if at[0] <= self.horizons[at[1]]}
        for key in gone:
            del self.last[key]
        return emitted, {(key, time) for key, (time, deleted) in gone.items() if not deleted}


def ttl_queue(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    given: dict[str, Any] = {
        "delete_when": "op = 'd'",
        "ttl": TTL,
        "delete_ttl": DELETE_TTL,
        "on_silent": "row",
    }
    return penstock.update_queue(
        place.input.frame(spark, SCHEMA), key="k", time="t", buckets=3, state_location=str(place.state),
        **(given | options),
    )  # fmt: skip


@pytest.mark.parametrize("working_copy", ["memory", "rocksdb"])
def test_silent_keys_leave_the_state_with_a_row_also_after_a_restart(
    spark: SparkSession, tmp_path: Path, working_copy: str
) -> None:
    place, model, batches = Place(tmp_path), Model(), readings(1, 9)
    expected = [model.run(rows) for rows in batches]
    assert model.late > 10
    assert sum(len(silent) for _, silent in expected) > 5
    rows: list[dict[str, Any]] = []
    for part in (tables(batches)[:4], tables(batches)[4:]):
        place.input.add(*part)
        query = place.run(ttl_queue(spark, place, working_copy=working_copy))
        rows += penstock.metrics(query)
    found = place.batches()
    assert len(found) == len(batches)
    for (_, table), (emitted, silent) in zip(sorted(found.items()), expected, strict=True):
        made = table.to_pylist()
        assert {(r["k"], r["t"], r["v"], r["deleted"]) for r in made if not r["silent"]} == emitted
        quiet = [r for r in made if r["silent"]]
        assert {(r["k"], r["t"]) for r in quiet} == silent
        assert all((r["op"], r["v"], r["deleted"]) == (None, None, False) for r in quiet)
    assert rows[-1]["keys"] == len(model.last)
    assert sum(r["expired"] for r in rows) > sum(len(silent) for _, silent in expected)
    assert sum(r["late"] for r in rows) == model.late
    kept = penstock.read_state(spark, place.state).collect()
    assert {(row["k"], row["emitted"]) for row in kept} == {(key, at) for key, (at, _) in model.last.items()}


def test_a_table_loses_the_keys_that_are_deleted_or_silent(spark: SparkSession, tmp_path: Path) -> None:
    place, model, batches = Place(tmp_path), Model(), readings(2, 6)
    table: dict[int, tuple[int, int]] = {}
    for rows in batches:
        emitted, silent = model.run(rows)
        for key, time, value, deleted in emitted:
            table |= {key: (time, value)}
            if deleted:
                del table[key]
        for key, _ in silent:
            del table[key]
    assert 3 < len(table) < 20
    for part in (tables(batches)[:3], tables(batches)[3:]):
        place.input.add(*part)
        queue = ttl_queue(spark, place).select(
            "k", "t", "v", (sf.col("deleted") | sf.col("silent")).alias("gone")
        )
        to = f"sqlite:///{tmp_path}/live.db"
        writer = penstock.upsert(
            queue, to=to, table="live", key="k", time="t", delete_when="gone", create=True
        )
        penstock.run(writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True))
    with closing(sqlite3.connect(tmp_path / "live.db")) as connection:
        found = {key: (time, value) for key, time, value in connection.execute("SELECT k, t, v FROM live")}
    assert found == table


@pytest.mark.long
def test_a_pipeline_over_a_p_stream_has_silent_rows(spark: SparkSession, tmp_path: Path) -> None:
    batches = readings(3, 1)
    Input(tmp_path / "in").add(*tables(batches))
    pipeline = {
        "source": {"type": "files", "format": "parquet", "path": str(tmp_path / "in"), "schema": SCHEMA},
        "queue": {"key": "k", "time": "t", "ttl": 5, "on_silent": "row", "buckets": 3},
        "persist": {"source": "always"},
        "sink": {"type": "memory"},
        "query": {"name": "watched", "checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now"},
    }
    run_to_end(Pipeline.model_validate(pipeline))
    newest: dict[int, int] = {}
    for key, time, _, _ in batches[0]:
        newest[key] = max(time, newest.get(key, time))
    silent = {(key, time) for key, time in newest.items() if time <= max(newest.values()) - 5}
    assert silent
    found = spark.table("watched").collect()
    assert {(row["k"], row["t"]) for row in found if row["silent"]} == silent
    assert {(row["k"], row["t"]) for row in found if not row["silent"]} == set(newest.items())


def test_a_join_tells_which_keys_went_silent_also_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    left, right = (Input(tmp_path / side) for side in ("left", "right"))
    place = Place(tmp_path / "join")
    sides = {left: "a", right: "b"}
    batches = [readings(seed, 6) for seed in (4, 5)]
    ttl, within, delay = 25, 5, 100
    expected: list[set[tuple[int, int]]] = []
    matches: list[set[tuple[int, int]]] = []
    model = ExpiringModel(within, delay, None, ttl)
    for both in zip(*batches, strict=True):
        tuples = [[Tuple(key, time, value) for key, time, _, value in rows] for rows in both]
        newest = max([model.newest or 0, *(one.time for side in tuples for one in side)])
        made, gone = model.run(tuples[0], tuples[1], newest)
        matches.append({(key, time) for key, time, _, _ in made})
        expected.append(set(gone.items()))
    assert sum(map(len, expected)) > 5 < sum(map(len, matches))

    def joined() -> DataFrame:
        bids, asks = (
            side.frame(spark, SCHEMA).selectExpr("k", "t", f"v AS {name}") for side, name in sides.items()
        )
        return penstock.update_join(
            bids, asks, key="k", time="t", within="5 s", unit="s", watermark_delay="100 s", ttl="25 s",
            on_silent="row", buckets=1, state_location=str(place.state),
        )  # fmt: skip

    metrics: list[dict[str, Any]] = []
    for part in (slice(0, 3), slice(3, 6)):
        for side, rows in zip(sides, batches, strict=True):
            side.add(*tables(rows[part]))
        metrics = penstock.metrics(place.run(joined()))
    found = [table.to_pylist() for _, table in sorted(place.batches().items())]
    assert [{(row["k"], row["t"]) for row in rows if row["silent"]} for rows in found] == expected
    assert [{(row["k"], row["t"]) for row in rows if not row["silent"]} for rows in found] == matches
    assert metrics[-1]["keys"] == len(model.updated)
    assert penstock.read_state(spark, place.state, table="keys").count() == len(model.updated)
