"""Rewrite the buckets of an operator in a copy of its query.

The steps are the steps of `penstock.spark_ext.state_copy.query_copy`. In step 2, each new bucket gets one
version. In step 3, Spark's old pointers are not copied. Instead, new pointers are written, as a snapshot of
each partition of Spark's state. A call that continues an unfinished copy skips finished buckets.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import Files
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError
from penstock.operators.queues.repartition import QueueState, read_state
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_copy.query_copy import (
    CopiedBucket,
    Progress,
    QueryCopy,
    explain_missing_file,
    publish_once,
)
from penstock.spark_ext.state_reader.committed import specification_of
from penstock.spark_ext.state_reader.spark_state import (
    encode_pointers,
    has_timeouts,
    partition_labels,
    partitions_of,
)
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, Version
from penstock.state_store.keys.key_words import buckets_of
from penstock.state_store.location import SPECIFICATION_FILE

__all__ = ["OldBuckets", "RewrittenState", "rewritable_kind", "rewrite_buckets"]

_LOGGER = logging.getLogger(__name__)

_QUEUE = {"key", "time", "arrival", "policy", "schema"}
"""Keys of the specification of a queue."""
_OTHERS = {"mode", "sides", "within"}
"""Keys that the specifications of windows and joins have, but the specification of a queue lacks."""
_JOIN = {"key", "time", "within", "left", "right"}
_WINDOWS = {"mode", "window", "aggregates"}
_OWN = {"operator", "key", "output", "waits"}
Kind = Literal["queue", "join", "windows", "own"]
_FILE_ID = FileId("rewritten")
"""The file of each new bucket. It is the only file of its version, and a repeated call finds it."""


def rewritable_kind(copy: QueryCopy) -> tuple[Kind, Mapping[str, Any]]:
    """Return the kind and the specification of a query's operator.

    Raises
    ------
    InvalidUsageError
        If the query has several operators, or its operator's state cannot be rewritten.
    """
    if len(copy.operators) != 1 or len(copy.held) != 1:
        operators = sorted(copy.operators)
        raise InvalidUsageError("the query has several operators with state", operators=operators)
    ((name, files),) = copy.operators.items()
    specification = specification_of(files)
    hint = "start this operator with a new checkpoint"
    if specification.keys() >= _QUEUE and not specification.keys() & _OTHERS:
        if specification.get("semantics") is not None:
            raise InvalidUsageError(
                "the state of a queue of these semantics cannot be rewritten",
                operator=name,
                semantics=specification["semantics"],
                hint=hint,
            )
        return "queue", specification
    if specification.keys() >= _JOIN:
        return "join", specification
    if specification.keys() >= _WINDOWS:
        return "windows", specification
    if specification.keys() >= _OWN:
        return "own", specification
    raise InvalidUsageError(
        "only the state of update queues, unions, joins, windows and user-defined operators can be rewritten",
        operator=name,
        hint=hint,
    )


def rewrite_buckets(
    copy: QueryCopy,
    specification: Mapping[str, Any],
    state_of: Callable[[int], RewrittenState | None],
    progress: Progress | None,
) -> int:
    """Write all buckets of a copy, and finish it.

    Parameters
    ----------
    copy : QueryCopy
        The copy, after `rewritable_kind`.
    specification : mapping
        The new specification.
    state_of : callable
        Returns the state of a new bucket; None if the bucket has no keys. It is called for the buckets in
        ascending order.
    progress : callable, optional
        Called with the number of finished parts and the number of all parts.

    Returns
    -------
    int
        The number of keys.
    """
    if copy.has_later_rows:
        _LOGGER.warning(
            "the old query planned later micro-batches, of which its sink may have rows: give the new query "
            "another sink, or let the old one finish them and copy it then [query=%s batch=%d]",
            copy.query, copy.batch,
        )  # fmt: skip
    (name,) = copy.operators
    target, buckets = copy.target.child(name), int(specification["buckets"])
    publish_once(target, SPECIFICATION_FILE, bytes(encode(PUnit("operator", specification))))
    pointers: dict[int, Pointer] = {}
    due: set[int] = set()
    keys = 0
    for bucket, label in enumerate(bucket_labels(buckets)):
        meta = _write_bucket(target.child(f"{bucket:05d}"), bucket, state_of)
        if meta is not None:
            pointers[label] = Pointer(Version(1), _FILE_ID)
            keys += meta["rows"]
            if meta.get("waiting"):
                due.add(label)
        if progress is not None:
            progress(bucket + 1, buckets + 1)
    _write_pointers(copy, pointers, due)
    copy.finish()
    if progress is not None:
        progress(buckets + 1, buckets + 1)
    return keys


class RewrittenState(Protocol):
    """The state of a new bucket."""

    def units(self) -> Iterator[PUnit]:
        """Return the state as units, at least one."""


class _Collector:
    """A `State` for loading only: it collects the units of a version."""

    def __init__(self, key: list[str]) -> None:
        self._key = key
        self.content: QueueState | None = None

    def restore(self, units: Iterable[PUnit]) -> None:
        self.content = read_state(units, self._key)

    def delta(self) -> PUnit:
        raise InternalError("a state that is only read was asked for changes")

    def snapshot(self) -> Iterator[PUnit]:
        raise InternalError("a state that is only read was asked for a snapshot")


class OldBuckets:
    """Reads the old buckets of a copy of an update queue's query; keeps the bucket that was read last."""

    def __init__(self, copy: QueryCopy, specification: Mapping[str, Any]) -> None:
        self.buckets = int(specification["buckets"])
        self._key = list(specification["key"])
        self._places = {int(place.bucket): place for place in copy.buckets}
        self.read = functools.lru_cache(maxsize=1)(self._load)
        """Returns the state of a bucket; None if the bucket has no state."""

    def _load(self, bucket: int) -> QueueState | None:
        if bucket not in self._places:
            return None
        place, collector = self._places[bucket], _Collector(self._key)
        with explain_missing_file(place):
            BucketStore(place.files).load(place.pointer, collector)
        state = collector.content
        if state is None or (buckets_of(state.hashes, self.buckets) != bucket).any():
            raise CorruptDataError("a bucket has keys of other buckets", file=_path_of(place))
        return state


def _path_of(place: CopiedBucket) -> str:
    return place.files.path_of(place.pointer.file_name)


def _write_bucket(
    files: Files, bucket: int, state_of: Callable[[int], RewrittenState | None]
) -> Mapping[str, Any] | None:
    """Write a new bucket unless it exists; return its metadata, or None if it has no keys."""
    store, pointer = BucketStore(files), Pointer(Version(1), _FILE_ID)
    if all(facts.name != pointer.file_name for facts in files.list()):
        state = state_of(bucket)
        if state is None:
            return None
        store.publish_first(_FILE_ID, state.units())
    return store.read_version(pointer)[1].meta


def _write_pointers(copy: QueryCopy, pointers: Mapping[int, Pointer], due: set[int]) -> None:
    """Copy Spark's files, with these pointers instead of the old pointers."""
    (number,) = copy.held
    old, new = copy.spark_state(number)
    copy.copy_spark(except_pointers_of=number)
    waits = due if has_timeouts(old) else None
    for partition, labels in enumerate(partition_labels(pointers, partitions_of(old))):
        content = encode_pointers({label: pointers[label] for label in sorted(labels)}, waits)
        publish_once(new.child(str(partition)), f"{copy.batch + 1}.snapshot", content)
