"""Update streams for tests: schemas, batches of `Update`, and hypothesis strategies for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock.checkpointing import PUnit, decode, encode
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.arrivals import Arrivals
from penstock.operators.update_stream.stream import SOURCE_COLUMN, UpdateStream
from tests.oracles.naive import Update

__all__ = [
    "ARRIVAL_STREAM",
    "STREAM",
    "TEXT_STREAM",
    "UNION_STREAM",
    "WEIGHTED_STREAM",
    "arrivals_of",
    "enqueue",
    "rows_of",
    "served_of",
    "through_bytes",
    "updates",
    "updates_of",
    "weight_of",
]

_FIELDS = [
    pa.field("value", pa.int64()),
    pa.field("key", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("time", pa.int64()),
]
STREAM = UpdateStream(pa.schema(_FIELDS), ("key",), "time")
ARRIVAL_STREAM = UpdateStream(
    pa.schema([*_FIELDS, pa.field("arrival", pa.timestamp("us", "UTC"))]), ("key",), "time", "arrival"
)
WEIGHTED_STREAM = UpdateStream(
    pa.schema([*_FIELDS, pa.field("weight", pa.float64())]), ("key",), "time", weight="weight"
)
TEXT_STREAM = UpdateStream(pa.schema(_FIELDS), ("text", "key"), "time")
UNION_STREAM = UpdateStream(
    pa.schema([*_FIELDS, pa.field(SOURCE_COLUMN, pa.int32())]), ("key",), "time", source=SOURCE_COLUMN
)


def weight_of(update: Update) -> float:
    """Return what the weight column of `WEIGHTED_STREAM` says of an update: skewed, and whole."""
    return float((1 + update.value % 5) ** 2)


def stream_for(*, arrival: bool) -> UpdateStream:
    return ARRIVAL_STREAM if arrival else STREAM


def rows_of(stream: UpdateStream, updates: Sequence[Update]) -> pa.RecordBatch:
    """Return the tuples; their text goes with their value."""
    columns = {
        "value": [u.value for u in updates],
        "key": [u.key for u in updates],
        "text": [f"text {u.value}" for u in updates],
        "time": [u.time for u in updates],
        "arrival": [u.arrival for u in updates],
        "weight": [weight_of(u) for u in updates],
        SOURCE_COLUMN: [u.value % 3 for u in updates],
    }
    arrays = [pa.array(columns[column.name], column.type) for column in stream.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=stream.schema)


def updates_of(rows: pa.RecordBatch) -> list[Update]:
    """Return what `rows_of` was given."""
    assert rows.column("text").to_pylist() == [f"text {value}" for value in rows.column("value").to_pylist()]
    columns = [rows.column(name).to_pylist() for name in ("key", "time", "value")]
    arrival: list[int | None] = [None] * rows.num_rows
    if "arrival" in rows.schema.names:
        arrival = rows.column("arrival").cast(pa.int64()).to_pylist()
    return [Update(*values) for values in zip(*columns, arrival, strict=True)]


def arrivals_of(
    stream: UpdateStream, updates: Sequence[Update], position: int = 0, part: int = 0
) -> Arrivals:
    return Arrivals.from_rows(stream, rows_of(stream, updates), position, part)


def enqueue(queue: KeyedQueue, updates: Sequence[Update], now_us: int) -> tuple[int, int, int]:
    """Return how many tuples came in, were conflated, and were late."""
    entered = queue.enqueue(arrivals_of(queue.stream, updates), now_us)
    return entered.rows_in, entered.conflated, entered.late


def served_of(queue: KeyedQueue, limit: int, now_us: int) -> list[tuple[Update, int]]:
    """Dequeue and deliver; return the tuples and their queue staleness."""
    served = queue.dequeue(limit, now_us)
    queue.deliver(served, now_us)
    return list(zip(updates_of(served.rows), served.staleness_us.tolist(), strict=True))


def through_bytes(unit: PUnit) -> PUnit:
    """Return `unit` as it comes back from a file."""
    return decode(encode(unit), "memory")


def order_of(queue: UpdateQueue) -> list[int]:
    """Return the keys in the order in which they would be served; the queue stays as it is."""
    copy = UpdateQueue(queue.stream, queue.policy, weights=queue.weights)
    copy.restore([through_bytes(queue_content(queue))])
    return [update.key for update, _ in served_of(copy, len(copy), 0)]


def queue_content(queue: KeyedQueue) -> PUnit:
    """Return the whole state without marking it as stored."""
    return next(queue.snapshot())


def assert_same_state(left: KeyedQueue, right: KeyedQueue) -> None:
    a, b = queue_content(left), queue_content(right)
    assert a.meta == b.meta
    for name in ("cells", "rows"):
        assert a.blocks[name].equals(b.blocks[name]), name


def assert_invariants(queue: UpdateQueue) -> None:
    """Check what must hold between the parts of a queue."""
    location = queue.accounts.records["location"][: len(queue.accounts.records)]
    used = location[location >= 0]
    assert len(set(used.tolist())) == len(used) == len(queue) == queue.memory.locations_used
    assert queue.memory.pages_used == len(np.unique(used // queue.memory.page_rows))


def updates(
    *,
    keys: int = 6,
    times: int = 12,
    arrival: st.SearchStrategy[int] | None = None,
    max_size: int = 12,
) -> st.SearchStrategy[list[Update]]:
    """Return micro-batches of updates, out of order, with ties."""
    one = st.builds(
        Update,
        st.integers(0, keys - 1),
        st.integers(0, times),
        st.integers(0, 1 << 40),
        st.none() if arrival is None else arrival,
    )
    return st.lists(one, max_size=max_size)


POLICIES = st.sampled_from(list(Policy))
