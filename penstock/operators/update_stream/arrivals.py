"""Arrivals: tuples on their way into an update queue, conflated or not.

All tuples of a micro-batch arrive at one moment. If the tuples are conflated, only the newest tuple of each
key reaches the queue, together with the number of the key's tuples and the position of its first tuple. In a
union (`UpdateStream.source`) only one tuple per key and time is kept, and the duplicates are counted
separately. Conflation is associative: it gives the same result before a shuffle, after it, or both (a
property test checks this).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock._kernels import kernel
from penstock.operators.update_stream.stream import RESERVED_PREFIX, Integers, UpdateStream, as_micros, concat
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import Keys

__all__ = ["Arrivals", "conflate", "first_position"]

_COUNT = f"{RESERVED_PREFIX}count"
_FIRST = f"{RESERVED_PREFIX}first"
_LAST = f"{RESERVED_PREFIX}last"
_FIRST_ARRIVAL = f"{RESERVED_PREFIX}first_arrival"
_TIED = f"{RESERVED_PREFIX}tied"


def first_position(part: int) -> int:
    """Return the position within the micro-batch of the first row of a part."""
    return part << 40


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arriving tuples. Each row stands for `count` tuples.

    Attributes
    ----------
    rows : pyarrow.RecordBatch
        The tuples, without nulls in key and time.
    count : int64 array
        Number of tuples of the key that each row stands for.
    first, last : int64 arrays
        Positions within the micro-batch: `first` of the key's first tuple, `last` of the row itself.
    first_arrival_us : int64 array or None
        Earliest arrival time of these tuples; None if the stream has no arrival column.
    tied : int64 array or None
        In a union, the number of other tuples with the same key and time as the row; otherwise None.
    """

    rows: pa.RecordBatch
    count: Integers
    first: Integers
    last: Integers
    first_arrival_us: Integers | None
    tied: Integers | None = None

    @staticmethod
    def from_rows(stream: UpdateStream, rows: pa.RecordBatch, position: int = 0, part: int = 0) -> Arrivals:
        """Return unconflated arrivals.

        Parameters
        ----------
        position : int
            The position of the first row within its part, below 2**40.
        part : int
            The number of the part of the micro-batch that the rows come from, below 2**23. Parts arrive in
            the order of their numbers.
        """
        begin = first_position(part) + position
        first = np.arange(begin, begin + rows.num_rows, dtype=np.int64)
        arrival = as_micros(rows.column(stream.arrival)) if stream.arrival else None
        tied = np.zeros(rows.num_rows, np.int64) if stream.source else None
        return Arrivals(rows, np.ones(rows.num_rows, np.int64), first, first, arrival, tied)

    def __len__(self) -> int:
        return self.rows.num_rows

    def take(self, indices: Integers) -> Arrivals:
        """Return the arrivals at `indices`."""
        return Arrivals(
            self.rows.take(pa.array(indices)),
            self.count[indices],
            self.first[indices],
            self.last[indices],
            None if self.first_arrival_us is None else self.first_arrival_us[indices],
            None if self.tied is None else self.tied[indices],
        )

    @staticmethod
    def concat(parts: Sequence[Arrivals]) -> Arrivals:
        """Concatenate `parts` (at least one)."""
        if len(parts) == 1:
            return parts[0]
        first_arrivals = [part.first_arrival_us for part in parts if part.first_arrival_us is not None]
        tied = [part.tied for part in parts if part.tied is not None]
        return Arrivals(
            concat([part.rows for part in parts]),
            np.concatenate([part.count for part in parts]),
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.last for part in parts]),
            np.concatenate(first_arrivals) if first_arrivals else None,
            np.concatenate(tied) if tied else None,
        )

    def to_batch(self) -> pa.RecordBatch:
        """Pack the arrivals into one batch that can pass a shuffle."""
        extra = {_COUNT: self.count, _FIRST: self.first, _LAST: self.last}
        if self.first_arrival_us is not None:
            extra[_FIRST_ARRIVAL] = self.first_arrival_us
        if self.tied is not None:
            extra[_TIED] = self.tied
        arrays = [*self.rows.columns, *(pa.array(values) for values in extra.values())]
        return pa.RecordBatch.from_arrays(arrays, [*self.rows.schema.names, *extra])

    @staticmethod
    def from_batch(batch: pa.RecordBatch, schema: pa.Schema) -> Arrivals:
        """Unpack a batch from `to_batch`; `schema` is the schema of the rows."""
        rows = pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)
        names = batch.schema.names
        return Arrivals(
            rows,
            batch.column(_COUNT).to_numpy(),
            batch.column(_FIRST).to_numpy(),
            batch.column(_LAST).to_numpy(),
            batch.column(_FIRST_ARRIVAL).to_numpy() if _FIRST_ARRIVAL in names else None,
            batch.column(_TIED).to_numpy() if _TIED in names else None,
        )


@kernel
def _conflate(
    ids: Integers,
    times: Integers,
    arrival: Integers,
    count: Integers,
    first: Integers,
    last: Integers,
    source: Integers,
    tied: Integers,
    winner: Integers,
    total: Integers,
    earliest: Integers,
    earliest_arrival: Integers,
    ties: Integers,
) -> None:
    """Find the newest row, total count and earliest position of each id. `source` may be empty."""
    united = source.shape[0] > 0
    for i in range(ids.shape[0]):
        k = ids[i]
        best = winner[k]
        if best < 0:
            winner[k] = i
            total[k] = count[i]
            earliest[k] = first[i]
            earliest_arrival[k] = arrival[i]
            if united:
                ties[k] = tied[i]
            continue
        total[k] += count[i]
        earliest[k] = min(earliest[k], first[i])
        earliest_arrival[k] = min(earliest_arrival[k], arrival[i])
        if times[i] > times[best]:
            winner[k] = i
            if united:
                ties[k] = tied[i]
        elif times[i] == times[best]:
            if not united:
                if last[i] > last[best]:
                    winner[k] = i
                continue
            ties[k] += 1 + tied[i]
            if source[i] < source[best] or (source[i] == source[best] and last[i] < last[best]):
                winner[k] = i


def conflate(stream: UpdateStream, arrivals: Arrivals, keys: Keys | None = None) -> Arrivals:
    """Return the newest arrival of each key, in the order of the keys' first rows.

    The newest arrival has the greatest time. If times are equal, the later position is newer (UpStream
    §4.1); in a union the tuple of the preferred source is newer (`UpdateStream.source`).

    Parameters
    ----------
    keys : Keys, optional
        The keys of `arrivals`, if already known.
    """
    if len(arrivals) <= 1:
        return arrivals
    index = KeyIndex()
    ids = index.find_or_add(stream.keys(arrivals.rows) if keys is None else keys)
    count = len(index)
    winner = np.full(count, -1, np.int64)
    total, earliest, earliest_arrival = (np.empty(count, np.int64) for _ in range(3))
    known, tied = arrivals.first_arrival_us, arrivals.tied
    ties = np.empty(0 if tied is None else count, np.int64)
    _conflate(
        ids, stream.times(arrivals.rows), arrivals.first if known is None else known,
        arrivals.count, arrivals.first, arrivals.last,
        stream.sources(arrivals.rows), ties if tied is None else tied,
        winner, total, earliest, earliest_arrival, ties,
    )  # fmt: skip
    return Arrivals(
        arrivals.rows.take(pa.array(winner)),
        total,
        earliest,
        arrivals.last[winner],
        None if known is None else earliest_arrival,
        None if tied is None else ties,
    )
