"""Random streams, cut into random micro-batches, through an update queue and through a plain model."""

from __future__ import annotations

import penstock
from tests.fuzz.case import Case
from tests.naive import Update
from tests.spark.model import LONGS, Model, random_batches, updates_table
from tests.spark.queries import Place, fresh_workers


def check(case: Case) -> None:
    """Run a queue over random updates, with a restart, and compare each micro-batch with the model's."""
    draw = case.random
    size, keys = draw.choice([5, 50, 500]), draw.choice([3, 24])
    batches = random_batches(case.seed, draw.randint(2, 5), size, keys)
    buckets = draw.randint(1, 5)
    budget = draw.choice([None, 3, 10, 30])
    policy = draw.choice(["in_place", "fifo"])
    restart = draw.randint(1, len(batches) - 1)
    model = Model(buckets, budget, policy)
    place = Place(case.directory)

    def run() -> None:
        df = penstock.update_queue(
            place.input.frame(case.spark, LONGS), key="k", time="t", policy=policy, budget=budget,
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
        with fresh_workers(case.spark):
            run()
    assert {batch: model.by_bucket(rows) for batch, rows in place.rows().items()} == expected
