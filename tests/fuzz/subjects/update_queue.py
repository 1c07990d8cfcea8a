"""Random streams, cut into random micro-batches, through an update queue and through a plain model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

import penstock
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
from penstock.spark_ext.border.types import spark_schema
from tests.fuzz.case import Case
from tests.oracles.naive import NaiveQueue, Update
from tests.spark.model import LONGS, Model, random_batches, updates_table
from tests.spark.queries import PATIENCE_S, Input, Place, fresh_workers

_SCHEMA = pa.schema(
    {"k": pa.int64(), "t": pa.int64(), "v": pa.int64(), "at": pa.timestamp("us", "UTC"), "w": pa.float64()}
)


def check(case: Case) -> None:
    """Run a queue over random updates, and compare what it serves, and in which order, with a model's."""
    (_check_micro_batches if case.random.random() < 0.5 else _check_order)(case)


def _check_order(case: Case) -> None:
    """Run a queue in a graph, over a DataFrame or a p-stream; both serve keys in the same order."""
    draw = case.random
    policy, arrival = draw.choice(["in_place", "fifo", "linecutting"]), draw.random() < 0.5
    options: dict[str, Any] = {"arrival": "at"} if arrival else {}
    budget = draw.choice([None, 7, 40])
    read = penstock.graph("g").source("in", _SCHEMA).where("v >= 0")
    graph = read.update_queue("k", "t", policy=policy, budget=budget, buckets=1, **options)
    model, expected = NaiveQueue(policy), list[tuple[int, int, int]]()
    over = draw.choice(["DataFrame", "p-stream"])
    files, stream, out = Input(case.directory / "files"), case.directory / "stream", case.directory / "out"
    for batch in random_batches(case.seed, 2, draw.choice([5, 60, 400]), draw.choice([3, 24])):
        updates = [replace(update, arrival=draw.randint(1, 50) if arrival else None) for update in batch]
        rows = _timed_table(updates)
        if over == "p-stream":
            with PStreamWriter(stream, _SCHEMA, unit_rows=50, threads=1) as writer:
                writer.append(rows)
        else:
            files.add(rows)
        running = penstock.start(
            graph.sink("pstream"), case.spark, case.directory / "checkpoint",
            sources={"in": stream if over == "p-stream" else files.frame(case.spark, spark_schema(_SCHEMA))},
            sink=lambda results: results.writeStream.format("pstream").option("path", str(out)),
            available_now=True, persist="never",
        )  # fmt: skip
        with running:
            assert running.await_termination(PATIENCE_S), running.status()
        assert running.state == "finished", running.status()
        model.enqueue(updates, 1_000_000)
        expected += [(one.key, one.time, one.value) for one, _ in model.dequeue(len(model.order), 1_000_000)]
        served = PStreamReader(out).read().select(["k", "t", "v"]) if out.exists() else None
        found = [] if served is None else list(zip(*served.to_pydict().values(), strict=True))
        told = f"{over}, {policy}, arrival {arrival}, budget {budget}"
        if policy == "linecutting":  # whose order follows the clock
            assert sorted(found) == sorted(expected), told
        else:
            assert found == expected, told


def _timed_table(updates: Sequence[Update]) -> pa.Table:
    rows = updates_table(updates)
    at = pa.array([update.arrival or 0 for update in updates], _SCHEMA.field("at").type)
    return rows.append_column("at", at).append_column("w", pa.array([1.0] * rows.num_rows)).cast(_SCHEMA)


def _check_micro_batches(case: Case) -> None:
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
