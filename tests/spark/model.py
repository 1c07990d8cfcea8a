"""The expected output of a query with an update queue: one naive queue per bucket, on one thread."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tests.oracles.naive import NaiveQueue, Update, bucket_of, key_words

LONGS = "k long, t long, v long"
"""The schema of `updates_table`."""

_TRIGGER_US = 1_000_000


def updates_table(updates: Sequence[Update]) -> pa.Table:
    """Return updates as rows of `LONGS`."""
    columns = {"k": [u.key for u in updates], "t": [u.time for u in updates], "v": [u.value for u in updates]}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def random_batches(seed: int, batches: int, rows: int, keys: int) -> list[list[Update]]:
    """Return micro-batches of updates, some late, some with equal times."""
    draw = random.Random(seed)
    return [
        [
            Update(
                int(keys * draw.random() ** 2),
                max(batch * 10 + draw.randint(-15, 10), 0),
                draw.randint(0, 999),
            )
            for _ in range(draw.randint(1, rows))
        ]
        for batch in range(batches)
    ]


def newest_of(batches: Sequence[Sequence[Update]]) -> dict[int, int]:
    """Return the newest time of each key."""
    newest: dict[int, int] = {}
    for update in (update for batch in batches for update in batch):
        newest[update.key] = max(update.time, newest.get(update.key, update.time))
    return newest


@dataclass
class Model:
    """A query with one update queue, whose micro-batches have the ids 0, 1, 2, ..."""

    buckets: int
    budget: int | None = None
    policy: str = "in_place"
    cost_us: float | None = None
    batch_id: int = 0
    late: int = 0
    conflated: int = 0
    queues: list[NaiveQueue] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the queues."""
        self.queues = [NaiveQueue(self.policy, self.cost_us) for _ in range(self.buckets)]

    @property
    def waiting(self) -> int:
        """Return the number of keys that wait."""
        return sum(len(queue.order) for queue in self.queues)

    def bucket(self, key: int) -> int:
        """Return the bucket of a key."""
        return bucket_of(key_words(key), self.buckets)

    def run(self, updates: Sequence[Update] = ()) -> dict[int, list[Update]]:
        """Run one micro-batch; return what each bucket emits."""
        now_us = (1 + self.batch_id) * _TRIGGER_US
        emitted: dict[int, list[Update]] = {}
        for bucket, queue in enumerate(self.queues):
            mine = [update for update in updates if self.bucket(update.key) == bucket]
            _, conflated, late = queue.enqueue(mine, now_us)
            self.conflated += conflated
            self.late += late
            share = len(queue.order)
            if self.budget is not None:
                share = (self.budget + (bucket + self.batch_id) % self.buckets) // self.buckets
            served = [update for update, _ in queue.dequeue(share, now_us)]
            if served:
                emitted[bucket] = served
        self.batch_id += 1
        return emitted

    def run_all(self, batches: Sequence[Sequence[Update]]) -> dict[int, dict[int, list[Update]]]:
        """Run `batches` and then triggers without input until nothing waits; return what was emitted."""
        first = self.batch_id
        emitted = dict(enumerate([self.run(updates) for updates in batches], first))
        while self.waiting:
            batch_id = self.batch_id
            emitted[batch_id] = self.run()
        return {batch: buckets for batch, buckets in emitted.items() if buckets}

    def by_bucket(self, rows: Sequence[tuple[int, int, int]]) -> dict[int, list[Update]]:
        """Return rows of (k, t, v) as `run` gives them."""
        found: dict[int, list[Update]] = {}
        for k, t, v in rows:
            found.setdefault(self.bucket(k), []).append(Update(k, t, v))
        return found
