"""Attempts of transactions that committed tables or wrote results, and were not chosen, change nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.procedures.plain.tables import PlainTables
from penstock.procedures.programs import PROGRAMS
from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from tests.long_tests import long_but
from tests.spark.queries import PATIENCE_S, Place, fresh_workers, limits, settings

pytestmark = pytest.mark.spark

PROGRAM = PROGRAMS["bank"]
EVENTS = [PROGRAM.opening(30), PROGRAM.workload(500, 30, 5)]
PARTS = [EVENTS] if HAS_ADMISSION_CONTROL else [EVENTS[:1], EVENTS[1:]]
"""The events of each run: a run of older Sparks is one micro-batch."""


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    penstock.register(spark)
    return Place(tmp_path)


def run_first(spark: SparkSession, place: Place, **options: int) -> None:
    """Write the events and run them in several micro-batches."""
    for part in PARTS:
        with penstock.PStreamWriter(place.directory / "events", EVENTS[0].schema, unit_rows=100) as writer:
            writer.append(pa.Table.from_batches(part))
        run(spark, place, **options)


def run(spark: SparkSession, place: Place, **options: int) -> None:
    """Run all micro-batches; tasks write the results."""
    rows = spark.readStream.format("pstream").options(reader="test", **options, **limits(maxRows=200))
    writer = penstock.write_transactions(
        rows.load(str(place.directory / "events")),
        PROGRAM.procedure,
        place.sink,
        state_location=place.state,
    )
    query = writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE_S))


def check(spark: SparkSession, place: Place) -> None:
    """Compare results and tables with those of the serial run."""
    plain = PlainTables(PROGRAM.database.tables.values())
    columns = PROGRAM.procedure.program().results
    expected = [row for batch in EVENTS for row in plain.run(PROGRAM.procedure.text, batch, columns)]
    made = penstock.PStreamReader(place.sink).read().select(["transaction", "balance", "rejected"])
    assert [tuple(row.values()) for row in made.to_pylist()] == [
        (number, *row) for number, row in enumerate(expected)
    ]
    for name, table in plain.tables.items():
        stored = penstock.read_state(spark, place.state, checkpoint=place.checkpoint, table=name)
        found = {tuple(row) for row in stored.select(*PROGRAM.database.tables[name].names).collect()}
        assert found == {tuple(row.values()) for row in table.rows.values() if row is not None}


@pytest.mark.parametrize(
    ("point", "action"),
    long_but(
        [("operator.after_commit", "error"), ("sink.after_segments", "kill")], ("sink.after_segments", "kill")
    ),
)
def test_a_task_that_fails_after_its_commit_runs_the_same_transactions_again(
    spark: SparkSession, place: Place, tmp_path: Path, point: str, action: str
) -> None:
    marker = tmp_path / "failed"
    with fresh_workers(spark, PENSTOCK_FAILPOINTS=f"{point}={action}@{marker}"):
        run_first(spark, place)
    assert marker.exists()
    check(spark, place)


@pytest.mark.parametrize("cached", long_but([True, False], True))
def test_a_micro_batch_that_ran_whole_runs_again_elsewhere(
    spark: SparkSession, place: Place, *, cached: bool
) -> None:
    with settings(spark, spark__sql__shuffle__partitions="3"):
        run_first(spark, place, partitions=3)
    last = place.next_batch - 1
    assert last > 0, "an earlier micro-batch made tables"
    for path in (place.checkpoint / "commits").iterdir():
        if path.name.strip(".").removesuffix(".crc") == str(last):
            path.unlink()
    if not cached:
        with fresh_workers(spark):
            run(spark, place, partitions=1)
    else:
        run(spark, place, partitions=2)
    assert place.next_batch == last + 1
    check(spark, place)
