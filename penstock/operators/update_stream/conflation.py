"""Conflate batches one after the other: keep the newest row of each key in one pass.

`penstock.operators.update_stream.arrivals.conflate` needs all arrivals at once. This module takes batches
that fit into the processor's cache. For each key it keeps a few numbers, such as the position of the newest
row. When the kept rows exceed a number of bytes, rows that are no longer the newest of their keys are
dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock._kernels import kernel
from penstock.operators.update_stream.arrivals import Arrivals, first_position
from penstock.operators.update_stream.stream import Integers, UpdateStream, as_micros, concat
from penstock.state_store.keys.key_index import KeyIndex, grow
from penstock.state_store.keys.key_words import Words
from penstock.state_store.keys.word_index import BLOCK, WordIndex, number_block

__all__ = ["Conflation"]

_HELD_BYTES = 16 << 20
_EMPTY: Integers = np.zeros(0, np.int64)


@kernel
def _keep_newest(
    ids: Integers,
    count: int,
    held: int,
    position: int,
    times: Integers,
    arrival: Integers,
    source: Integers,
    newest: Integers,
    newest_row: Integers,
    total: Integers,
    earliest: Integers,
    earliest_arrival: Integers,
    least_source: Integers,
    ties: Integers,
) -> None:
    """Add rows; `arrival` or `source` is empty if the stream has no such column.

    Keys have ids in order of first appearance, so the first row of a new key has the next id, from `count`
    on.
    """
    has_arrival, united = arrival.shape[0] > 0, source.shape[0] > 0
    for i in range(ids.shape[0]):
        k = ids[i]
        if k == count:
            count += 1
            newest[k] = times[i]
            newest_row[k] = held + i
            total[k] = 1
            earliest[k] = position + i
            if has_arrival:
                earliest_arrival[k] = arrival[i]
            if united:
                least_source[k] = source[i]
                ties[k] = 0
            continue
        total[k] += 1
        if has_arrival:
            earliest_arrival[k] = min(earliest_arrival[k], arrival[i])
        if times[i] < newest[k]:
            continue
        if united:
            if times[i] == newest[k]:
                ties[k] += 1
                if source[i] >= least_source[k]:
                    continue
            else:
                ties[k] = 0
            least_source[k] = source[i]
        newest[k] = times[i]
        newest_row[k] = held + i


@kernel
def _keep_newest_of_words(
    words: Words,
    begin: int,
    table: Any,
    known_words: Words,
    numbers: Integers,
    count: int,
    held: int,
    position: int,
    times: Integers,
    arrival: Integers,
    source: Integers,
    newest: Integers,
    newest_row: Integers,
    total: Integers,
    earliest: Integers,
    earliest_arrival: Integers,
    least_source: Integers,
    ties: Integers,
) -> tuple[int, int]:
    """Like `_keep_newest`, for one-word keys from `begin` on; stop before a block that might not fit.

    Ids are looked up one block at a time, so that a block stays in the fastest cache.
    """
    size = words.shape[0]
    has_arrival, united = arrival.shape[0] > 0, source.shape[0] > 0
    while begin < size and count + BLOCK <= min(known_words.shape[0], newest.shape[0]):
        end = min(begin + BLOCK, size)
        new_count = number_block(words, begin, end, table, known_words, count, numbers)
        _keep_newest(
            numbers[: end - begin], count, held + begin, position + begin, times[begin:end],
            arrival[begin:end] if has_arrival else arrival, source[begin:end] if united else source,
            newest, newest_row, total, earliest, earliest_arrival, least_source, ties,
        )  # fmt: skip
        begin, count = end, new_count
    return begin, count


class Conflation:
    """Conflate arrivals that come batch by batch; the result equals `conflate`.

    Parameters
    ----------
    stream : UpdateStream
        The schema, the key and the time of the rows.
    part : int
        The part of the micro-batch that the rows come from; see `Arrivals.from_rows`.
    held_bytes : int
        When the kept rows exceed this size, drop the rows that are no longer the newest of their keys.

    Attributes
    ----------
    rows_seen, bytes_seen : int
        Number of rows added, and their size in bytes.
    newest_bytes : int
        Bytes of the newest rows when older rows were last dropped.
    """

    def __init__(self, stream: UpdateStream, part: int = 0, held_bytes: int = _HELD_BYTES) -> None:
        self._stream = stream
        self._first = first_position(part)
        self._held_bytes = held_bytes
        self._start()

    def _start(self) -> None:
        self.rows_seen = self.bytes_seen = self.newest_bytes = 0
        self._index = KeyIndex()
        self._words = WordIndex() if self._stream.codec.is_word else None
        self._rows: list[pa.RecordBatch] = []
        # The kept rows are the newest rows, at these positions, and all rows from the next position on.
        self._last = _EMPTY
        self._position = self._held_rows = self._size_bytes = 0
        # By key: the time and number of the newest row, the count of tuples, the position of the first tuple.
        self._newest, self._newest_row, self._total, self._earliest = (_EMPTY for _ in range(4))
        self._earliest_arrival, self._least_source, self._ties = (_EMPTY for _ in range(3))

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._index) if self._words is None else self._words.count

    def add(self, rows: pa.RecordBatch, position: int) -> None:
        """Add the next rows; `position` is the position of the first row."""
        arrival = _EMPTY if self._stream.arrival is None else as_micros(rows.column(self._stream.arrival))
        what = (self._stream.times(rows), arrival, self._stream.sources(rows))
        held = self._held_rows
        if not self._rows:
            self._position = position
        if self._words is not None:
            self._add_words(self._words, self._stream.words(rows), position, what)
        else:
            count = len(self)
            ids = self._index.find_or_add(self._stream.keys(rows))
            self._grow(len(self))
            _keep_newest(ids, count, held, position, *what, *self._kept_rows)
        size = rows.nbytes
        self._rows.append(rows)
        self._held_rows += rows.num_rows
        self.rows_seen += rows.num_rows
        self._size_bytes += size
        self.bytes_seen += size
        if self._size_bytes > max(self._held_bytes, 2 * self.newest_bytes):
            self._drop_older()

    def _add_words(self, index: WordIndex, words: Words, position: int, what: tuple[Integers, ...]) -> None:
        begin = 0
        while begin < len(words):
            index.make_room()
            self._grow(len(index.known))
            begin, index.count = _keep_newest_of_words(
                words, begin, index.table, index.known, index.numbers, index.count,
                self._held_rows, position, *what, *self._kept_rows,
            )  # fmt: skip

    @property
    def _kept_rows(self) -> tuple[Integers, ...]:
        """The per-key arrays that the kernels update."""
        return (
            self._newest, self._newest_row, self._total, self._earliest,
            self._earliest_arrival, self._least_source, self._ties,
        )  # fmt: skip

    def _grow(self, keys: int) -> None:
        self._newest, self._newest_row = grow(self._newest, keys), grow(self._newest_row, keys)
        self._total, self._earliest = grow(self._total, keys), grow(self._earliest, keys)
        if self._stream.arrival:
            self._earliest_arrival = grow(self._earliest_arrival, keys)
        if self._stream.source:
            self._least_source, self._ties = grow(self._least_source, keys), grow(self._ties, keys)

    def _drop_older(self) -> None:
        """Keep only the newest row of each key, in the order of the keys' numbers."""
        newest = self._newest_row[: len(self)]
        count = len(self._last)
        last = newest + (self._position - count)
        last[newest < count] = self._last[newest[newest < count]]
        rows = concat(self._rows).take(pa.array(newest))
        self._position += self._held_rows - count
        self._rows, self._last = [rows], last
        self._held_rows = len(newest)
        self._size_bytes = self.newest_bytes = rows.nbytes
        newest[:] = np.arange(len(newest))

    def finish(self) -> Arrivals:
        """Return the newest arrivals (at least one), ordered by the keys' first rows; reset."""
        self._drop_older()
        keys = slice(len(self))
        arrivals = Arrivals(
            self._rows[0],
            self._total[keys],
            self._earliest[keys] + self._first,
            self._last + self._first,
            self._earliest_arrival[keys] if self._stream.arrival else None,
            self._ties[keys] if self._stream.source else None,
        )
        self._start()
        return arrivals
