"""Random streams, cut into random micro-batches, through Spark and through a plain model."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from tests.naive import Update
from tests.spark.model import LONGS, Model, random_batches, updates_table
from tests.spark.queries import Place, fresh_workers

pytestmark = pytest.mark.spark

_SEED = int(os.environ.get("PENSTOCK_STREAM_SEED") or time.time_ns() % 10**6)
_EXAMPLES = int(os.environ.get("PENSTOCK_STREAM_EXAMPLES") or 2)


# The seed is no part of the name: processes that share the tests out must agree on the names.
@pytest.mark.parametrize("example", range(_EXAMPLES))
def test_a_random_stream_comes_out_as_the_model_says(
    spark: SparkSession, tmp_path: Path, example: int
) -> None:
    seed = _SEED + example
    print(f"replay: PENSTOCK_STREAM_SEED={seed} PENSTOCK_STREAM_EXAMPLES=1 script/test {__file__}")
    draw = random.Random(seed)
    size, keys = draw.choice([5, 50, 500]), draw.choice([3, 24])
    batches = random_batches(seed, draw.randint(2, 5), size, keys)
    buckets = draw.randint(1, 5)
    budget = draw.choice([None, 3, 10, 30])
    policy = draw.choice(["in_place", "fifo"])
    restart = draw.randint(1, len(batches) - 1)
    model = Model(buckets, budget, policy)
    place = Place(tmp_path)

    def run() -> None:
        df = penstock.update_queue(
            place.input.frame(spark, LONGS), key="k", time="t", policy=policy, budget=budget,
            buckets=buckets, combine=draw.random() < 0.5, state_location=place.state,
        )  # fmt: skip
        if budget is None:
            place.run(df)
        else:
            place.run_until_drained(df)

    expected: dict[int, dict[int, list[Update]]] = {}
    for part in (batches[:restart], batches[restart:]):
        place.input.add(*map(updates_table, part))
        # How many triggers without work there were before the restart depends on the machine.
        model.batch_id = place.next_batch
        expected |= model.run_all(part)
        with fresh_workers(spark):
            run()
    assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
