"""The state of update queues, and of queues of other semantics, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BooleanType, DoubleType, LongType, StructType

from penstock.checkpointing import PUnit
from penstock.operators.freshness.classes import KeyClasses
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.adaptive_queue import AdaptiveQueue, Semantics
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.weights import KeyWeights
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.stream import RESERVED_PREFIX, SOURCE_COLUMN, UpdateStream, to_times
from penstock.spark_ext.state_reader.state_view import (
    Ours,
    Stored,
    displayed_schema,
    numbers,
    one_of_tables,
)
from penstock.units import NEVER

__all__ = ["QueueView", "queue_view"]

_KEYS, _APPENDED = "keys", "appended"

_STORED = {
    "arrived_us": LongType(),
    "rank": LongType(),
    "seen_us": LongType(),
    "interval_us": DoubleType(),
    "dequeued_us": LongType(),
    "delivered_us": LongType(),
}
"""The columns stored with a tuple, and their types; the first two are set only while the key waits."""

_UNKNOWN = {"seen_us": NEVER, "interval_us": 0, "dequeued_us": 0, "delivered_us": 0}
"""The stored values that mean null."""


@dataclass(frozen=True)
class QueueView:
    """One row for each key ever seen, or for each waiting appended tuple; a `StateView`.

    Parameters
    ----------
    stream, policy, semantics
        See `UpdateQueue` and `AdaptiveQueue`.
    by_key : bool
        Whether the queue has weights by key.
    appended : bool
        Whether to show appended tuples instead of keys.
    schema : StructType
        The columns.
    """

    stream: UpdateStream
    policy: Policy
    semantics: Semantics
    by_key: bool
    appended: bool
    schema: StructType

    def new_state(self) -> KeyedQueue:
        """See `StateView.new_state`."""
        # The stored places include the shares of keys, so the weights themselves are not needed.
        weights = KeyWeights(self.stream, {}) if self.by_key else None
        if self.semantics is Semantics.UPDATE:
            return UpdateQueue(self.stream, self.policy, weights=weights)
        return AdaptiveQueue(self.stream, self.policy, self.semantics, weights=weights)

    def rows(self, state: KeyedQueue, unit: PUnit) -> list[pa.Array[Any]] | None:
        """See `StateView.rows`."""
        if self.appended:
            block = unit.blocks["appended"]
            place = np.arange(unit.meta["first"], unit.meta["first"] + block.num_rows)
            return [pa.array(place), *block.columns]
        key_records, rows = unit.blocks[KEY_BLOCK], unit.blocks["rows"]
        names = ("emitted", *_extra_columns(self.stream, self.policy))
        stored = {name: key_records.column(f"{RESERVED_PREFIX}{name}").to_numpy() for name in names}
        place = np.full(key_records.num_rows, -1, np.int64)
        place[rows.column(OWNER).to_numpy()] = np.arange(rows.num_rows)
        waiting = rows.take(pa.array(place, mask=place < 0))
        return [
            *(key_records.column(name) for name in self.stream.key),
            to_times(stored.pop("emitted"), self.stream.schema.field(self.stream.time).type),
            pa.array(place >= 0),
            *(waiting.column(name) for name in self.stream.payload),
            *(waiting.column(f"{RESERVED_PREFIX}{name}") for name in ("arrived", "rank")),
            *(numbers(values, _UNKNOWN[name]) for name, values in stored.items()),
        ]


def queue_view(stored: Stored, table: str | None) -> QueueView:
    """Return the view of a queue.

    Raises
    ------
    InvalidUsageError
        If the queue has no such table.
    """
    specification = stored.specification
    semantics = Semantics(specification.get("semantics") or Semantics.UPDATE)
    tables = (_KEYS,) if semantics is Semantics.UPDATE else (_KEYS, _APPENDED)
    shown = one_of_tables(tables, table, of=f"a queue of {semantics} semantics")
    columns = stored.columns(specification["schema"], KEY_BLOCK, "rows")
    weight = specification.get("weight")
    stream = UpdateStream(
        stored.arrow(columns),
        tuple(specification["key"]),
        specification["time"],
        specification["arrival"],
        SOURCE_COLUMN if SOURCE_COLUMN in columns.names else None,
        weight if isinstance(weight, str) else None,
        DELETED_COLUMN if specification.get("remembers_deletes") else None,
        KeyClasses("NULL", tuple(specification["classes"])) if specification.get("classes") else None,
        specification.get("cost") is not None,
    )
    policy = Policy(specification["policy"])
    if shown == _APPENDED:
        schema = displayed_schema([Ours("place", LongType()), *columns, Ours("arrived_us", LongType())])
    else:
        newest = "emitted" if semantics is Semantics.UPDATE else "newest"
        schema = displayed_schema([
            *(columns[name] for name in stream.key),
            Ours(newest, columns[stream.time].dataType),
            Ours("waiting", BooleanType()),
            *(columns[name] for name in stream.payload),
            *(Ours(name, _STORED[name]) for name in ("arrived_us", "rank", *_extra_columns(stream, policy))),
        ])  # fmt: skip
    return QueueView(stream, policy, semantics, weight == 1, shown == _APPENDED, schema)


def _extra_columns(stream: UpdateStream, policy: Policy) -> list[str]:
    """Return the columns that an update queue stores for each key, named as in `UpdateQueue`."""
    names = ["seen_us", "interval_us"] if policy.uses_rates else []
    return [*names, "dequeued_us", "delivered_us"] if stream.arrival else names
