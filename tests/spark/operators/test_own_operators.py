"""Own operators on Spark: the same results after restarts, replays and in other workers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from tests.samples.operators import NotedTotals, Totals
from tests.spark.queries import SCHEMA, Place, fresh_workers, quotes

pytestmark = pytest.mark.spark


def test_an_operator_counts_each_row_once_after_a_crash_in_other_workers(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    rows = [(None if at % 5 == 0 else f"k{at % 3}", 40 - at, float(at)) for at in range(40)]
    place.input.add(quotes(rows[:15]), quotes(rows[15:]))

    def results() -> DataFrame:
        frame = place.input.frame(spark)
        return penstock.apply(frame, Totals(2.0), "k", time="t", state_location=place.state)

    query = place.run(results())
    place.forget(1)
    with fresh_workers(spark):
        place.run(results())
    expected: dict[str | None, list[tuple[int, float]]] = defaultdict(list)
    for part in (rows[:15], rows[15:]):
        for key, _, value in sorted(part, key=lambda row: row[1]):
            n, total = expected[key][-1] if expected[key] else (0, 0.0)
            expected[key].append((n + 1, total + 2 * value))
    got: dict[str | None, list[tuple[int, float]]] = defaultdict(list)
    for key, n, total in place.sequence("k", "n", "total"):
        got[key].append((n, total))
    assert got == expected
    assert [metrics["rows_in"] for metrics in penstock.metrics(query)] == [15, 25]
    state = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="totals")
    assert state.columns == ["bucket", "version", "k", "n", "total"]
    kept = {row["k"]: (row["n"], row["total"]) for row in state.collect()}
    assert kept == {key: values[-1] for key, values in expected.items()}


def test_an_operator_goes_on_with_more_columns_of_its_input_and_its_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    wider = f"{SCHEMA}, note string"

    def run(operator: penstock.Operator, schema: str) -> None:
        frame = place.input.frame(spark, schema)
        place.run(penstock.apply(frame, operator, "k", state_location=place.state, buckets=2))

    def noted(rows: list[tuple[str, int, float]], note: str) -> pa.Table:
        return quotes(rows).append_column("note", pa.array([note] * len(rows)))

    place.input.add(quotes([("a", 1, 1.0), ("b", 2, 2.0)]))
    run(NotedTotals(), SCHEMA)
    # The input gains a column, which this operator does not read.
    place.input.add(noted([("a", 3, 3.0)], "second"))
    run(NotedTotals(), wider)
    made = penstock.migrate_state(
        place.checkpoint,
        place.state,
        tmp_path / "new",
        tables={"totals": "k string, n bigint, total double, note string"},
    )
    assert (made.added, made.widened) == (("totals.note",), ())
    place.checkpoint = tmp_path / "new"
    place.input.add(noted([("a", 4, 4.0), ("b", 5, 5.0)], "third"))
    run(NotedTotals(notes=True), wider)
    assert sorted(place.sequence("k", "n", "total")) == [
        ("a", 1, 1.0), ("a", 2, 4.0), ("a", 3, 8.0), ("b", 1, 2.0), ("b", 2, 7.0),
    ]  # fmt: skip
    state = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table="totals")
    assert {(row["k"], row["note"]) for row in state.collect()} == {("a", "third"), ("b", "third")}
