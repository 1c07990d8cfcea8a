"""Deletes on real Spark: a sink that deletes marked rows holds the newest rows of the other keys."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.run import run_to_end
from tests.oracles.naive_join import Change, DeletingJoin
from tests.spark.queries import Input, Place

pytestmark = pytest.mark.spark

SCHEMA = "k long, t long, op string, nth long"

_NEWEST = """
select k, nth from (
    select *, row_number() over (partition by k order by t desc, nth desc) as place from input
) where place = 1 and op is distinct from 'd' order by k
"""


def change_log(seed: int, batches: int) -> list[pa.Table]:
    """Return micro-batches of changes with increasing times, and some late ones."""
    draw = random.Random(seed)
    tables = []
    for batch in range(batches):
        rows = [
            {
                "k": draw.randrange(20),
                "t": max(batch * 10 + draw.randint(-15, 10), 0),
                "op": draw.choice(["i", "u", "d", None]),
                "nth": batch * 1000 + place,
            }
            for place in range(60)
        ]
        kinds = {"k": pa.int64(), "t": pa.int64(), "op": pa.string(), "nth": pa.int64()}
        tables.append(pa.Table.from_pylist(rows, pa.schema(kinds)))
    return tables


def expected(tables: list[pa.Table]) -> dict[int, int]:
    """Return the surviving rows as DuckDB sees them."""
    with duckdb.connect() as database:
        database.register("input", pa.concat_tables(tables))
        return dict(database.sql(_NEWEST).fetchall())


def fold(sink: dict[int, int], rows: list[dict[str, Any]]) -> None:
    """Apply emitted rows to a sink."""
    for row in rows:
        assert row["deleted"] == (row["op"] == "d")
        if row["deleted"]:
            sink.pop(row["k"], None)
        else:
            sink[row["k"]] = row["nth"]


def test_deletes_reach_the_sink_also_after_a_restart_and_nothing_older_brings_a_key_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    tables = change_log(3, 4)
    sink: dict[int, int] = {}

    def made() -> DataFrame:
        return penstock.update_queue(
            place.input.frame(spark, SCHEMA), key="k", time="t", delete_when="op = 'd'", buckets=2,
            state_location=str(place.state),
        )  # fmt: skip

    assert made().schema["deleted"].dataType.simpleString() == "boolean"
    for part in (tables[:2], tables[2:]):
        place.input.add(*part)
        place.run(made())
    for _, table in sorted(place.batches().items()):
        fold(sink, table.to_pylist())
    assert sink == expected(tables)
    assert 0 < len(sink) < 20


def test_a_pipeline_whose_source_is_persisted_marks_deletes(spark: SparkSession, tmp_path: Path) -> None:
    tables = change_log(4, 3)
    Input(tmp_path / "one").add(pa.concat_tables(tables))
    source = {"type": "files", "format": "parquet", "path": str(tmp_path / "one"), "schema": SCHEMA}
    pipeline = {
        "source": source,
        "queue": {"key": "k", "time": "t", "delete_when": "op = 'd'", "buckets": 2},
        "persist": {"source": "always"},
        "sink": {"type": "memory"},
        "query": {
            "name": "changes",
            "checkpoint": str(tmp_path / "checkpoint"),
            "trigger": "available_now",
        },
    }
    run_to_end(Pipeline.model_validate(pipeline))
    sink: dict[int, int] = {}
    fold(sink, [row.asDict() for row in spark.table("changes").collect()])
    assert sink == expected(tables)


@pytest.mark.parametrize(
    ("delete_when", "message"),
    [
        ("nth + 1", "delete_when is not a condition: .*type=bigint"),
        ("opp = 'd'", "no column 'opp'"),
    ],
)
def test_a_wrong_condition_is_refused_before_the_query_starts(
    spark: SparkSession, tmp_path: Path, delete_when: str, message: str
) -> None:
    df = Place(tmp_path).input.frame(spark, SCHEMA)
    with pytest.raises(InvalidUsageError, match=message):
        penstock.update_queue(
            df, key="k", time="t", delete_when=delete_when, state_location=str(tmp_path / "state")
        )


def test_results_of_apply_must_say_which_rows_are_deletes(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    tables = change_log(5, 1)
    place.input.add(*tables)

    def made(output_schema: str) -> DataFrame:
        return penstock.update_queue(
            place.input.frame(spark, SCHEMA), key="k", time="t", delete_when="op = 'd'",
            apply=lambda rows: rows.select(["k", "op", "deleted", "nth"]), output_schema=output_schema,
            state_location=str(place.state), buckets=2,
        )  # fmt: skip

    with pytest.raises(InvalidUsageError, match="do not mark the rows that are deletes"):
        made("k long, op string")
    place.run(made("k long, op string, deleted boolean, nth long"))
    sink: dict[int, int] = {}
    for table in place.batches().values():
        fold(sink, table.to_pylist())
    assert sink == expected(tables)


def test_a_union_takes_deletes_from_each_input(spark: SparkSession, tmp_path: Path) -> None:
    place, other = Place(tmp_path), Input(tmp_path / "other")
    kinds = pa.schema({"k": pa.int64(), "t": pa.int64(), "op": pa.string(), "nth": pa.int64()})
    inputs = {
        place.input: [(1, 1, "i"), (2, 5, "d"), (3, 1, "d")],
        other: [(2, 3, "i"), (1, 2, "d"), (3, 4, "i")],
    }
    for to, rows in inputs.items():
        to.add(pa.Table.from_pylist([{"k": k, "t": t, "op": op, "nth": t} for k, t, op in rows], kinds))
    frames = [to.frame(spark, SCHEMA) for to in inputs]
    place.run(
        penstock.update_union(
            *frames, key="k", time="t", delete_when="op = 'd'", buckets=1, state_location=str(place.state)
        )
    )
    assert sorted(place.sequence("k", "t", "deleted")) == [(1, 2, True), (2, 5, True), (3, 4, False)]


def _draw_change(draw: random.Random, batch: int) -> Change:
    return Change(draw.randrange(6), 4 * batch + draw.randrange(6), draw.randrange(9), draw.random() < 0.3)


def test_a_table_behind_a_join_loses_the_matches_that_a_side_deletes(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw, model = random.Random(7), DeletingJoin(5, 1000, None)
    place, kinds = Place(tmp_path / "join"), pa.schema({"k": pa.int64(), "t": pa.int64(), "v": pa.int64()})
    sides = Input(tmp_path / "left"), Input(tmp_path / "right")
    table: dict[int, tuple[int, int, int]] = {}

    def start() -> None:
        left, right = (side.frame(spark, "k long, t long, v long") for side in sides)
        joined = penstock.update_join(
            left.withColumnRenamed("v", "a"), right.withColumnRenamed("v", "b"), key="k", time="t",
            within="5 s", unit="s", watermark_delay="1000 s", delete_when={"left": "a < 0", "right": "b < 0"},
            buckets=2, state_location=str(place.state),
        )  # fmt: skip
        assert joined.columns == ["k", "t", "a", "b", "deleted"]
        writer = penstock.upsert(
            joined, to=f"sqlite:///{tmp_path}/pairs.db", table="pairs", key="k", time="t",
            delete_when="deleted", create=True,
        )  # fmt: skip
        penstock.run(writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True))

    for part in range(2):
        for batch in range(3 * part, 3 * part + 3):
            changes = [
                [
                    Change(
                        draw.randrange(6),
                        4 * batch + draw.randrange(6),
                        draw.randrange(9),
                        draw.random() < 0.3,
                    )
                    for _ in range(8)
                ]
                for _ in sides
            ]
            for key, time, a, b, deleted in model.join(changes[0], changes[1]):
                table[key] = (time, a, b)
                if deleted:
                    del table[key]
            for side, rows in zip(sides, changes, strict=True):
                values = [{"k": r.key, "t": r.time, "v": -1 if r.deletes else r.value} for r in rows]
                side.add(pa.Table.from_pylist(values, kinds))
        start()
    with closing(sqlite3.connect(tmp_path / "pairs.db")) as connection:
        found = {key: values for key, *values in connection.execute("SELECT k, t, a, b FROM pairs")}
    assert {key: tuple(values) for key, values in found.items()} == table
    assert 0 < len(table) < 6
    assert penstock.read_state(spark, place.state, table="keys").count() >= len(table)
