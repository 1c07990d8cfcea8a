"""A task that fails after it committed state, and is tried again, changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from tests.spark.model import LONGS, Model, random_batches, updates_table
from tests.spark.queries import Place, fresh_workers

pytestmark = pytest.mark.spark

_COUNTED = ("batch_id", "rows_in", "conflated", "late", "emitted", "waiting_keys", "buckets")


def test_a_task_that_fails_after_its_commit_leaves_at_most_an_orphan_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = random_batches(seed=8, batches=3, rows=40, keys=20)
    model = Model(buckets=2, budget=6)
    expected = model.run_all(batches)
    counted = {}
    markers = {action: tmp_path / f"failed-{action}" for action in ("error", "kill")}
    armed = {
        action: {"PENSTOCK_FAILPOINTS": f"operator.after_commit={action}@{marker}"}
        for action, marker in markers.items()
    }
    for name, points in {"calm": {}, **armed}.items():
        place = Place(tmp_path / name)
        place.input.add(*map(updates_table, batches))
        with fresh_workers(spark, **points):
            df = penstock.update_queue(
                place.input.frame(spark, LONGS), key="k", time="t", buckets=2, budget=6,
                state_location=place.state,
            )  # fmt: skip
            query = place.run_until_drained(df)
        assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
        counted[name] = [
            {
                field: entry[field]
                for field in ("batch_id", "rows_in", "conflated", "late", "emitted", "buckets")
            }
            for entry in penstock.metrics(query)
        ]
        # Each bucket has one file a version, and until a sweep also the file of the failed attempt.
        versions = [(path.parent.name, path.name.split("-")[0]) for path in place.state_files()]
        assert len(versions) - len(set(versions)) in ((0, 1) if points else (0,))
        assert len(list(place.state.rglob("*"))) == len(versions) + 2 + 3, "two buckets, and their parents"
        assert not points or markers[name].exists()
        assert counted[name] == counted["calm"], name
