"""A working copy on local disk, for buckets larger than memory. It uses RocksDB through rocksdict.

A row is one entry: the words of its key (`penstock.state_store.keys.key_words`) and the bytes of its values
(`penstock.state_store.tables.row_codec`). Keys of fixed width are big-endian, so that successive numbers are
neighbours. Texts keep the order of their bytes. Entries are written and read in batches that are sorted by
key, because RocksDB is several times faster with sorted batches.

The database is temporary. It has no write-ahead log, because the committed p-units are the log. It has its
own directory, so that attempts of one task never share a directory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import rocksdict

from penstock.compression.empty_rows import rows_without_columns
from penstock.errors import InternalError, InvalidUsageError, UnavailableError
from penstock.state_store.keys.key_set import KeySet
from penstock.state_store.keys.key_words import Keys, Positions, Words
from penstock.state_store.tables.row_codec import RowCodec, is_bytes
from penstock.state_store.tables.scratch import Scratch
from penstock.state_store.tables.table import Found, Layout

__all__ = ["RocksdbTable", "SharedMemory", "process_memory"]

_CACHE_BYTES = 128 << 20
"""The size of the block cache of all tables of a process. Filters and indexes take 2 more bytes per key."""

_MEMTABLES_BYTES = 128 << 20
"""The memory for unflushed rows of all tables of a process."""

_MEMTABLE_BYTES = 32 << 20
_KEY_SET_BYTES = 512 << 20
_BLOOM_BITS = 10
_BATCH_BYTES, _BATCH_ROWS = 64 << 20, 1 << 20
_ENTRIES_PER_COUNT = 128
"""The number of entries to read before counting their bytes."""


@dataclass(frozen=True)
class SharedMemory:
    """Memory that all tables of a process share.

    Parameters
    ----------
    cache, cache_bytes : rocksdict.Cache, int
        The block cache, and its capacity.
    memtables : rocksdict.WriteBufferManager
        The memory for unflushed rows.
    """

    cache: Any
    cache_bytes: int
    memtables: Any


@functools.cache
def process_memory() -> SharedMemory:
    """Return the memory that the tables of this process share; create it at the first call."""
    memtables = rocksdict.WriteBufferManager(_MEMTABLES_BYTES, False)
    return SharedMemory(rocksdict.Cache(_CACHE_BYTES), _CACHE_BYTES, memtables)


def _options(memtable_bytes: int, shared: SharedMemory) -> Any:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(shared.cache)
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_format_version(5)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_manager(shared.memtables)
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(4)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    return options


@contextlib.contextmanager
def _refusals(fact: str, path: Path) -> Iterator[None]:
    """Turn errors of rocksdict and the file system into errors of Penstock."""
    try:
        yield
    except Exception as error:  # rocksdict raises plain exceptions
        raise UnavailableError(
            fact, path=path, reason=str(error), hint="check space and permissions of the scratch directory"
        ) from error


class _Database:
    """A RocksDB database in a private temporary directory. Entries are raw bytes, in sorted batches.

    Parameters
    ----------
    scratch : pathlib.Path, optional
        The parent of the database's directory.
    memtable_bytes : int
        The memory for unflushed entries.
    shared : SharedMemory
        The memory that the database shares with other databases.

    Raises
    ------
    UnavailableError
        If the directory cannot be created or the database cannot be opened.
    """

    def __init__(self, scratch: Path | None, memtable_bytes: int, shared: SharedMemory) -> None:
        with _refusals("cannot open a working copy on local disk", scratch or Path(tempfile.gettempdir())):
            self._directory = Scratch(scratch)
            self.path = self._directory.path
            self._db = rocksdict.Rdict(str(self.path / "db"), _options(memtable_bytes, shared))
        # rocksdict has silently lost table options before. Without the shared cache, memory is unbounded.
        capacity = self._db.property_value("rocksdb.block-cache-capacity")
        if capacity != str(shared.cache_bytes):
            self.close()
            raise InternalError("RocksDB does not use the block cache it was given", capacity=capacity)
        self._writing = rocksdict.WriteOptions()
        self._writing.disable_wal = True
        self._scanning = rocksdict.ReadOptions()
        self._scanning.fill_cache(False)
        self._batch = functools.partial(rocksdict.WriteBatch, raw_mode=True)

    @property
    def size_bytes(self) -> int:
        """The memory of the database in bytes, without the shared cache."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        with _refusals("cannot read a working copy on local disk", self.path):
            return self._db.get(keys) if keys else []

    def put(self, keys: list[bytes], values: Iterable[bytes]) -> None:
        batch = self._batch()
        deque(map(batch.put, keys, values), maxlen=0)
        self._write(batch)

    def delete(self, keys: list[bytes]) -> None:
        batch = self._batch()
        deque(map(batch.delete, keys), maxlen=0)
        self._write(batch)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all entries as of this call, even if another thread consumes them later."""
        items: Iterator[tuple[bytes, bytes]] = self._db.snapshot().items(read_opt=self._scanning)
        return items

    def close(self) -> None:
        # A full disk may refuse data on close. The data is not needed, and the directory must be deleted.
        with contextlib.suppress(Exception):
            self._db.close()
        self._directory.close()

    def _write(self, batch: Any) -> None:
        with _refusals("cannot write to a working copy on local disk", self.path):
            self._db.write(batch, self._writing)


class RocksdbTable:
    """A `penstock.state_store.tables.table.Table` on local disk.

    The table counts its rows exactly, so `put` and `remove` must find out which keys exist. They use a
    `KeySet` in memory, which takes 11 to 16 bytes for a one-word key, and twice as many for other keys. Once
    the set is larger than `key_set_bytes`, the methods query the database instead, which is several times
    slower.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns.
    key : tuple of str
        The key's columns.
    scratch : pathlib.Path, optional
        The parent of the table's private directory (`penstock.state_store.tables.scratch`); by default the
        system's temporary directory. The directory is removed by `close`, or after the process has ended.
    key_set_bytes : int
        The memory for the `KeySet`, in bytes.
    memtable_bytes : int
        The memory for unflushed rows.
    batch_bytes : int
        The maximum size of a batch of `rows`, unless a single row is larger.
    shared : SharedMemory, optional
        The memory that the table shares with other tables; by default the shared memory of the process.

    Raises
    ------
    InvalidUsageError
        If the key is not in the schema, or state cannot hold a column's type.
    UnavailableError
        If the directory cannot be made.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key: tuple[str, ...],
        *,
        scratch: Path | None = None,
        key_set_bytes: int = _KEY_SET_BYTES,
        memtable_bytes: int = _MEMTABLE_BYTES,
        batch_bytes: int = _BATCH_BYTES,
        shared: SharedMemory | None = None,
    ) -> None:
        self.schema = schema
        self.key = tuple(key)
        self._layout = Layout(schema, self.key)
        self._values = RowCodec(self._layout.value_schema.types)
        self._big_endian = not any(is_bytes(kind) for kind in self._layout.key_schema.types)
        first = self._layout.key_schema.types[0]
        one_word = len(self.key) == 1 and not is_bytes(first) and not pa.types.is_decimal(first)
        self._count = 0
        self._known: KeySet | None = KeySet(one_word=one_word)
        self._key_set_bytes = key_set_bytes
        self._batch_bytes = batch_bytes
        self._database: _Database | None = _Database(scratch, memtable_bytes, shared or process_memory())

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the table in bytes, without the block cache of the process."""
        database = 0 if self._database is None else self._database.size_bytes
        key_set_bytes = 0 if self._known is None else self._known.size_bytes
        return database + key_set_bytes

    def get(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Found]:
        """Return the values of `keys`, which are null for absent keys, and the mask of the keys found."""
        order, sorted_keys = self._sort_keys(self._layout.keys_of(keys))
        entries = self._open.get(sorted_keys)
        exists = _not_none(entries)
        mask = np.zeros(len(order), np.bool_)
        mask[order] = exists
        rank = np.zeros(len(order), np.int64)
        rank[order] = np.cumsum(exists) - 1
        present = [entry for entry in entries if entry is not None]
        rows = self._decode(present, rank[mask])
        if not mask.all():
            rows = rows.take(pa.array(np.cumsum(mask) - 1, mask=~mask))
        return rows, mask

    def put(self, rows: pa.RecordBatch) -> None:
        """Insert or replace rows. The last row of a repeated key wins."""
        values = self._layout.values_of(rows)
        keys = self._layout.keys_of(rows)
        order, sorted_keys = self._sort_keys(keys, last=True)
        if not sorted_keys:
            return
        encoded: Iterable[bytes] = repeat(b"")
        if len(self._layout.value_schema):
            columns = values.take(pa.array(order)).columns
            encoded = _slices(*self._values.encode(columns))
        if self._known is None:
            self._count += self._open.get(sorted_keys).count(None)
        else:
            self._count += self._known.add(keys)
        self._open.put(sorted_keys, encoded)
        if self._known is not None and self._known.size_bytes > self._key_set_bytes:
            self._known = None

    def remove(self, keys: pa.RecordBatch) -> int:
        """Remove the rows of keys; return the number of removed rows."""
        words = self._layout.keys_of(keys)
        _, sorted_keys = self._sort_keys(words, last=True)
        if not sorted_keys:
            return 0
        if self._known is None:
            gone = sum(entry is not None for entry in self._open.get(sorted_keys))
        else:
            gone = self._known.remove(words)
        self._open.delete(sorted_keys)
        self._count -= gone
        return gone

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Return all rows as of this call, in the order of their keys' bytes."""
        return self._batches(self._open.entries())

    def close(self) -> None:
        """Remove the working directory."""
        self._count = 0
        self._known = None
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def _open(self) -> _Database:
        if self._database is None:
            raise InvalidUsageError("the table is closed")
        return self._database

    def _sort_keys(self, keys: Keys, *, last: bool = False) -> tuple[Positions, list[bytes]]:
        """Return positions sorted by the keys' bytes, and these bytes.

        With `last`, return only the last of equal keys.
        """
        count = len(keys)
        if not count:
            return np.zeros(0, np.int64), []
        words = keys.words.byteswap() if self._big_endian else keys.words
        bounds = keys.starts * 8
        data = words.view(np.uint8)
        if int(bounds[-1]) == 8 * count:
            order = np.argsort(keys.words, kind="stable")
            chosen = words[order]
            if last:
                keep = np.append(chosen[1:] != chosen[:-1], True)
                order, chosen = order[keep], chosen[keep]
            return order, chosen.view("V8").tolist()
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        array = pa.Array.from_buffers(pa.large_binary(), count, buffers)
        order = pc.array_sort_indices(array).to_numpy().astype(np.int64)
        ordered: list[bytes] = array.take(pa.array(order)).to_numpy(zero_copy_only=False).tolist()
        if last:
            keep = np.ones(count, np.bool_)
            keep[:-1] = np.fromiter(map(operator.ne, ordered, islice(ordered, 1, None)), np.bool_, count - 1)
            if not keep.all():
                order, ordered = order[keep], list(compress(ordered, keep))
        return order, ordered

    def _decode(self, entries: list[bytes], order: Positions | slice) -> pa.RecordBatch:
        """Return the values of entries, in the given order."""
        data, starts = _concatenate(entries)
        schema = self._layout.value_schema
        if not len(schema):
            return rows_without_columns(len(starts[order]))
        return pa.RecordBatch.from_arrays(self._values.decode(data, starts[order]), schema=schema)

    def _decode_keys(self, entries: list[bytes]) -> list[pa.Array[Any]]:
        data, starts = _concatenate(entries)
        words: Words = data.view(np.uint64)
        return self._layout.codec.decode(words.byteswap() if self._big_endian else words, starts // 8)

    def _batches(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        for count in itertools.count():
            keys: list[bytes] = []
            values: list[bytes] = []
            size = 0
            while size < self._batch_bytes and len(keys) < _BATCH_ROWS:
                chunk = list(islice(entries, _ENTRIES_PER_COUNT))
                if not chunk:
                    break
                some_keys, some_values = zip(*chunk, strict=True)
                keys += some_keys
                values += some_values
                size += sum(map(len, some_keys)) + sum(map(len, some_values))
            if count and not keys:
                return
            columns = [*self._decode_keys(keys), *self._decode(values, slice(None)).columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self._layout.row_schema)


def _not_none(values: list[bytes | None]) -> Found:
    return np.fromiter(map(operator.is_not, values, repeat(None)), np.bool_, len(values))


def _concatenate(entries: list[bytes]) -> tuple[Any, Positions]:
    ends = np.cumsum(np.fromiter(map(len, entries), np.int64, len(entries)))
    starts = np.zeros(len(entries), np.int64)
    starts[1:] = ends[:-1]
    return np.frombuffer(b"".join(entries), np.uint8), starts


def _slices(bounds: Positions, data: Any) -> list[bytes]:
    width = int(bounds[1])
    if width and int(bounds[-1]) == width * (len(bounds) - 1) and bool(np.all(np.diff(bounds) == width)):
        fixed: list[bytes] = data.view(f"V{width}").tolist()
        return fixed
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
    varying: list[bytes] = array.to_numpy(zero_copy_only=False).tolist()
    return varying
