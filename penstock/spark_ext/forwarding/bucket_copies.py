"""The coordinator's copies of buckets' tables, for transactions whose rows the events do not name.

A worker keeps the copies from micro-batch to micro-batch, and reads only newer deltas. It reads a bucket's
whole state again in three cases: Spark has moved the coordinator to a different worker, Spark has committed a
different attempt of the bucket, or a snapshot has replaced the deltas. So the copies always equal the
versions at the pointers.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.procedures.engine import TableSet
from penstock.procedures.hidden_tables import HIDDEN_TABLES
from penstock.procedures.schema import TableSpec
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer

__all__ = ["BucketCopies", "keep_copies", "take_copies"]

MAX_KEPT_BYTES = 1 << 30
"""Larger copies are not kept."""


class BucketCopies:
    """The tables of several buckets in one set.

    Parameters
    ----------
    tables : tuple of TableSpec
        The tables of the database.

    Attributes
    ----------
    state : TableSet
        The tables.
    """

    def __init__(self, tables: tuple[TableSpec, ...]) -> None:
        self._specs = (*tables, *HIDDEN_TABLES)
        self.state = TableSet(self._specs)
        self._handles: dict[int, Handle] = {}

    def follow(self, stores: Mapping[int, BucketStore], pointers: Mapping[int, Pointer]) -> None:
        """Update the tables of some buckets to the versions at `pointers`.

        The tables of all other buckets stay as they are: at older versions, or missing.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `BucketStore.load`.
        """
        for bucket, pointer in pointers.items():
            held = self._handles.get(bucket)
            if held is None:
                self._clear_replicated()
                self._handles[bucket] = stores[bucket].load(pointer, self.state)
                continue
            handle = stores[bucket].catch_up(pointer, self.state, held)
            if handle is None:  # read all rows again, because deleted rows would stay
                self.state, self._handles = TableSet(self._specs), {}
                self.follow(stores, pointers)
                return
            self._handles[bucket] = handle

    def _clear_replicated(self) -> None:
        """Clear replicated tables before a bucket is loaded, because its files do not name deleted rows."""
        if self._handles:
            for spec in self._specs:
                if spec.partition_by is None:
                    self.state.clear(spec.name)

    def advance(self, stores: Mapping[int, BucketStore], pointers: Mapping[int, Pointer]) -> None:
        """Record that the tables include the changes of newer, published versions."""
        for bucket, pointer in pointers.items():
            self._handles[bucket] = stores[bucket].read_version(pointer)[0]
        self.state.forget_deleted()


_KEPT: dict[str, tuple[tuple[TableSpec, ...], BucketCopies]] = {}


def take_copies(location: str, tables: tuple[TableSpec, ...]) -> BucketCopies:
    """Return the copies of an operator's state that this process has kept, or empty copies.

    After this call the process no longer keeps the copies. Kept copies whose tables had different indexes are
    not used.
    """
    kept_tables, copies = _KEPT.pop(location, ((), None))
    return copies if copies is not None and kept_tables == tables else BucketCopies(tables)


def keep_copies(location: str, tables: tuple[TableSpec, ...], copies: BucketCopies) -> None:
    """Keep the copies of one operator for its next micro-batch."""
    _KEPT.clear()
    if copies.state.size_bytes <= MAX_KEPT_BYTES:
        _KEPT[location] = tables, copies
