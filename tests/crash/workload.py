"""The stream of the crash tests, the query over it, and the conditions that hold after any interruption."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock
from tests.oracles.naive import Update
from tests.spark.queries import Place

BUCKETS = 4
BUDGET = 18
KEYS = 40

_SCHEMA = "k long, t long, v long, text string"
DELETE_WHEN = "v % 4 = 0"


def steps(seed: int, count: int, rows: int = 60) -> list[list[Update]]:
    """Return micro-batches of updates; no two updates of a key have the same time."""
    draw = random.Random(seed)
    batches = []
    for step in range(count):
        times = draw.sample(range(step * rows, (step + 2) * rows), rows)
        updates = {(draw.randrange(KEYS), 2 * time + step % 2): draw.randrange(10**9) for time in times}
        batches.append([Update(k, t, v) for (k, t), v in updates.items()])
    return batches


def add_steps(place: Place, batches: Sequence[Sequence[Update]], *, text_bytes: int = 40) -> None:
    """Add `batches` to the input of `place`, each row with a text of `text_bytes`."""
    for updates in batches:
        texts = [random.Random(u.value).randbytes(text_bytes // 2).hex() for u in updates]
        columns = [[u.key for u in updates], [u.time for u in updates], [u.value for u in updates], texts]
        place.input.add(pa.table(dict(zip(["k", "t", "v", "text"], map(pa.array, columns), strict=True))))


def query(spark: SparkSession, place: Place, **options: Any) -> DataFrame:
    """Return the query that is interrupted."""
    return penstock.update_queue(
        place.input.frame(spark, _SCHEMA), key="k", time="t", policy="fifo", budget=BUDGET,
        buckets=BUCKETS, state_location=place.state, **options,
    )  # fmt: skip


def expected(batches: Sequence[Sequence[Update]]) -> dict[int, tuple[int, int]]:
    """Return the newest (time, value) of each key."""
    newest: dict[int, tuple[int, int]] = {}
    for update in (update for batch in batches for update in batch):
        if update.key not in newest or update.time > newest[update.key][0]:
            newest[update.key] = (update.time, update.value)
    return newest


def final(place: Place) -> dict[int, tuple[int, int]]:
    """Return the last committed (time, value) of each key."""
    return {k: (t, v) for k, t, v in place.sequence()}


def verify(
    place: Place, batches: Sequence[Sequence[Update]], *, drained: bool, deletes: bool = False
) -> None:
    """Check the rows in the sink.

    1. Every row is an update of the stream, and none comes twice.
    2. The times of a key only grow, so the state never went back.
    3. No trigger gave more rows than its budget.
    4. When drained, the last row of each key is its newest update.
    5. With `deletes`, the rows for which `DELETE_WHEN` holds are marked, and no others.
    """
    updates = {(u.key, u.time, u.value) for batch in batches for u in batch}
    rows = place.rows()
    last: dict[int, int] = {}
    for batch, emitted in rows.items():
        assert len(emitted) <= BUDGET, f"batch {batch} gave {len(emitted)} rows for a budget of {BUDGET}"
        for k, t, v in emitted:
            assert (k, t, v) in updates, f"batch {batch} gave a row that is no update: key {k}, time {t}"
            assert t > last.get(k, -1), f"batch {batch} went back: key {k}, time {t} after {last[k]}"
            last[k] = t
    for batch, table in place.batches().items() if deletes else ():
        marks = table["deleted"].to_pylist()
        assert marks == [v % 4 == 0 for v in table["v"].to_pylist()], f"batch {batch} has wrong marks"
    if drained:
        assert final(place) == expected(batches), "the newest update of some key was never emitted"
