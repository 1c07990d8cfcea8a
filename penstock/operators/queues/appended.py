"""The tuples of an append queue, in the order of their arrival."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.update_stream.stream import Integers, concat

__all__ = ["AppendedTuples", "TupleChunk"]


@dataclass(slots=True)
class TupleChunk:
    """Tuples in the order of their arrival.

    Attributes
    ----------
    rows : pyarrow.RecordBatch
        The tuples.
    ids, arrived_us : int64 arrays
        The key number and the arrival of each tuple.
    """

    rows: pa.RecordBatch
    ids: Integers
    arrived_us: Integers

    def cut(self, count: int) -> tuple[TupleChunk, TupleChunk]:
        """Return the first `count` tuples, and the remaining tuples."""
        head, tail = slice(None, count), slice(count, None)
        return (
            TupleChunk(self.rows[head], self.ids[head], self.arrived_us[head]),
            TupleChunk(self.rows[tail], self.ids[tail], self.arrived_us[tail]),
        )


class AppendedTuples:
    """The tuples that wait under append semantics. They are the `KeyHolder` of the inner update queue.

    Tuples are numbered in the order of arrival. The tuples from `head` up to, but not including, `tail` wait.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the tuples.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._chunks: deque[TupleChunk] = deque()
        self.head = self.tail = 0

    def __len__(self) -> int:
        return self.tail - self.head

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the tuples in bytes."""
        return sum(chunk.rows.nbytes + 16 * len(chunk.ids) for chunk in self._chunks)

    def held_keys(self) -> list[Integers]:
        """Return the keys of the tuples, in parts."""
        return [chunk.ids for chunk in self._chunks]

    def arrivals(self) -> list[Integers]:
        """Return the arrival times of the tuples, in the same parts as `held_keys`."""
        return [chunk.arrived_us for chunk in self._chunks]

    def renumber(self, numbers: Integers) -> None:
        """Change the number of each key to ``numbers[number]``."""
        for chunk in self._chunks:
            chunk.ids = numbers[chunk.ids]

    def append(self, chunk: TupleChunk) -> None:
        """Add tuples at the tail."""
        self._chunks.append(chunk)
        self.tail += len(chunk.ids)

    def take(self, count: int) -> TupleChunk:
        """Remove and return up to `count` tuples from the head."""
        parts: list[TupleChunk] = []
        while count > 0 and self._chunks:
            part, rest = self._chunks.popleft().cut(count)
            if len(rest.ids):
                self._chunks.appendleft(rest)
            parts.append(part)
            count -= len(part.ids)
            self.head += len(part.ids)
        return self._concat(parts)

    def rows_since(self, begin: int) -> TupleChunk:
        """Return the tuples from number `begin` on, without removing them."""
        parts, number = [], self.head
        for chunk in self._chunks:
            _, rest = chunk.cut(max(begin - number, 0))
            number += len(chunk.ids)
            if len(rest.ids):
                parts.append(rest)
        return self._concat(parts)

    def begin_at(self, number: int) -> None:
        """Drop all tuples; the next tuple gets this number."""
        self._chunks.clear()
        self.head = self.tail = number

    def _concat(self, parts: list[TupleChunk]) -> TupleChunk:
        if not parts:
            nothing = np.zeros(0, np.int64)
            return TupleChunk(pa.RecordBatch.from_pylist([], self._schema), nothing, nothing)
        return TupleChunk(
            concat([part.rows for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.arrived_us for part in parts]),
        )
