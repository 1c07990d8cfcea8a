"""Conflation of rows as they come: the newest of each key, without a second look at any row.

`penstock.operators.update_stream.arrivals.conflate` takes arrivals that are complete. Here batches come one
after the other, each small enough for a processor's cache, and only what the keys have in common is kept
for each of them: numbers, and which row is the newest. Rows themselves are held until they are many bytes;
then those that no longer count are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock._kernels import kernel
from penstock.operators.update_stream.arrivals import Arrivals, first_position
from penstock.operators.update_stream.stream import Integers, UpdateStream, as_micros, concat
from penstock.state_store.keys.key_index import KeyIndex, grown
from penstock.state_store.keys.key_words import Words
from penstock.state_store.keys.word_index import BLOCK, WordIndex, number_block

__all__ = ["Conflation"]

_HELD_BYTES = 16 << 20
_EMPTY: Integers = np.zeros(0, np.int64)


@kernel
def _keep_newest(
    ids: Integers,
    known: int,
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
    """Take in rows that follow all before; `arrival` or `source` is empty in a stream without.

    Ids are dense in order of first appearance, so the first row of a key has the next id, from `known` on.
    """
    has_arrival, united = arrival.shape[0] > 0, source.shape[0] > 0
    for i in range(ids.shape[0]):
        k = ids[i]
        if k == known:
            known += 1
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
    known: int,
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
    """As `_keep_newest`, of keys that are words, from `begin` on; stop where a block might have no room.

    Ids are known a block at a time, and so stay in the fastest memory.
    """
    size = words.shape[0]
    has_arrival, united = arrival.shape[0] > 0, source.shape[0] > 0
    while begin < size and known + BLOCK <= min(known_words.shape[0], newest.shape[0]):
        end = min(begin + BLOCK, size)
        found = number_block(words, begin, end, table, known_words, known, numbers)
        _keep_newest(
            numbers[: end - begin], known, held + begin, position + begin, times[begin:end],
            arrival[begin:end] if has_arrival else arrival, source[begin:end] if united else source,
            newest, newest_row, total, earliest, earliest_arrival, least_source, ties,
        )  # fmt: skip
        begin, known = end, found
    return begin, known


class Conflation:
    """Keeps the newest arrival of each key, as `conflate` does, of arrivals that come one after the other.

    Parameters
    ----------
    stream : UpdateStream
        Schema, key and time of the rows.
    part : int
        The part of the micro-batch that the rows come from; see `Arrivals.of`.
    held_bytes : int
        From how many bytes of rows on those are dropped that are no longer the newest of their keys.

    Attributes
    ----------
    rows_seen, bytes_seen : int
        How many rows were added, and their bytes.
    newest_bytes : int
        The bytes of the newest rows, when others were dropped last.
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
        # Held are the newest rows, of these positions, and those from the next position on.
        self._last = _EMPTY
        self._position = self._held_rows = self._size_bytes = 0
        # A row a key: time and number of the newest row, how many it stands for, and where the first was.
        self._newest, self._newest_row, self._total, self._earliest = (_EMPTY for _ in range(4))
        self._earliest_arrival, self._least_source, self._ties = (_EMPTY for _ in range(3))

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._index) if self._words is None else self._words.count

    def add(self, rows: pa.RecordBatch, position: int) -> None:
        """Take in rows, which follow those before; `position` is that of the first one."""
        arrival = _EMPTY if self._stream.arrival is None else as_micros(rows.column(self._stream.arrival))
        what = (self._stream.times(rows), arrival, self._stream.sources(rows))
        held = self._held_rows
        if not self._rows:
            self._position = position
        if self._words is not None:
            self._add_words(self._words, self._stream.words(rows), position, what)
        else:
            known = len(self)
            ids = self._index.find_or_add(self._stream.keys(rows))
            self._grow(len(self))
            _keep_newest(ids, known, held, position, *what, *self._kept)
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
                self._held_rows, position, *what, *self._kept,
            )  # fmt: skip

    @property
    def _kept(self) -> tuple[Integers, ...]:
        """What is kept of each key."""
        return (
            self._newest, self._newest_row, self._total, self._earliest,
            self._earliest_arrival, self._least_source, self._ties,
        )  # fmt: skip

    def _grow(self, keys: int) -> None:
        self._newest, self._newest_row = grown(self._newest, keys), grown(self._newest_row, keys)
        self._total, self._earliest = grown(self._total, keys), grown(self._earliest, keys)
        if self._stream.arrival:
            self._earliest_arrival = grown(self._earliest_arrival, keys)
        if self._stream.source:
            self._least_source, self._ties = grown(self._least_source, keys), grown(self._ties, keys)

    def _drop_older(self) -> None:
        """Hold only the newest row of each key, in the order of the keys' numbers."""
        newest = self._newest_row[: len(self)]
        kept = len(self._last)
        last = newest + (self._position - kept)
        last[newest < kept] = self._last[newest[newest < kept]]
        rows = concat(self._rows).take(pa.array(newest))
        self._position += self._held_rows - kept
        self._rows, self._last = [rows], last
        self._held_rows = len(newest)
        self._size_bytes = self.newest_bytes = rows.nbytes
        newest[:] = np.arange(len(newest))

    def finish(self) -> Arrivals:
        """Return the newest arrival of each key (of one at least) by the keys' first rows; begin anew."""
        self._drop_older()
        keys = slice(len(self))
        made = Arrivals(
            self._rows[0],
            self._total[keys],
            self._earliest[keys] + self._first,
            self._last + self._first,
            self._earliest_arrival[keys] if self._stream.arrival else None,
            self._ties[keys] if self._stream.source else None,
        )
        self._start()
        return made
