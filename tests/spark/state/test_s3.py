"""A query with state in an object store, by Spark's settings of it: failures, restart and inspection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.checkpointing.files import open_files
from penstock.state_store.location import find_operators
from penstock.state_store.survey import survey_bucket
from tests.servers.s3 import KEY, SECRET, Request, S3Server
from tests.spark.queries import Place, fresh_workers, quotes

pytestmark = pytest.mark.spark


@contextmanager
def settings_of(server: S3Server, spark: SparkSession) -> Iterator[None]:
    """Let the application have settings of S3, as if it had started with them."""
    given = {"endpoint": f"http://127.0.0.1:{server.port}", "access.key": KEY, "secret.key": SECRET}
    conf: Any = spark.sparkContext._conf
    for name, value in given.items():
        conf.set(f"spark.hadoop.fs.s3a.{name}", value)
    try:
        yield
    finally:
        for name in given:
            conf._jconf.remove(f"spark.hadoop.fs.s3a.{name}")
        penstock.register(spark)


def test_state_on_s3_outlives_refusals_and_workers_and_can_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    batches = [[(f"k{key}", 10 * batch + key, float(batch)) for key in range(8)] for batch in range(4)]
    with S3Server() as server, settings_of(server, spark):
        location = "s3a://bucket/state"
        queue = place.queue(spark, buckets=2, state_location=location)
        place.input.add(*map(quotes, batches[:2]))
        place.run(queue)
        refused: list[Request] = []

        def refuse(request: Request) -> int | None:
            if request.operation != "PUT" or refused:
                return None
            refused.append(request)
            return 503

        server.refuse = refuse
        place.input.add(*map(quotes, batches[2:]))
        with fresh_workers(spark):
            metrics = penstock.metrics(place.run(place.queue(spark, buckets=2, state_location=location)))
        assert refused
        assert metrics[0]["loads"] == 2
        assert [row for rows in place.rows().values() for row in sorted(rows)] == [
            row for rows in batches for row in rows
        ]
        state = penstock.read_state(spark, location, checkpoint=place.checkpoint)
        assert {(row.k, row.emitted, row.waiting) for row in state.collect()} == {
            (key, time, False) for key, time, _ in batches[-1]
        }
        (operator,) = find_operators(open_files(location))
        found = [survey_bucket(bucket) for bucket in operator.buckets]
        assert [(one.damage, [pointer.version for pointer in one.newest]) for one in found] == [((), [4])] * 2
