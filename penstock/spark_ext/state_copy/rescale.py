"""`rescale_state`: copy a query at a committed micro-batch, with another number of buckets.

The steps are those of `penstock.spark_ext.state_copy.query_copy`. In step 2, each new bucket gets one
version, with the records of its keys from the old buckets (`penstock.operators.queues.repartition`). In step
3, Spark's pointers are not copied but written anew, as a snapshot of each partition. A call that continues
skips the new buckets that are finished.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import Files
from penstock.errors import ConflictError, CorruptDataError, InternalError, InvalidUsageError
from penstock.operators.queues.repartition import QueueState, merge_states, read_state, source_buckets
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_copy.query_copy import (
    CopiedBucket,
    Progress,
    QueryCopy,
    begin_copy,
    explain_missing_file,
)
from penstock.spark_ext.state_reader.committed import specification_of
from penstock.spark_ext.state_reader.spark_state import (
    Held,
    encode_pointers,
    has_timeouts,
    partition_labels,
    partitions_of,
)
from penstock.state_store.bucket_store import BucketStore, FileId, Pointer, Version
from penstock.state_store.keys.key_words import buckets_of
from penstock.state_store.location import SPECIFICATION_FILE

__all__ = ["Rescaled", "rescale_state"]

_LOGGER = logging.getLogger(__name__)

_QUEUE = {"key", "time", "arrival", "policy", "schema"}
"""Keys of the specification of a queue."""
_OTHERS = {"mode", "sides", "within"}
"""Keys of the specifications of windows and joins, which a queue does not have."""
_FILE_ID = FileId("rescaled")
"""The file of each new bucket. It is the only one of its version, and a repeated call finds it."""


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A finished copy with another number of buckets.

    Attributes
    ----------
    checkpoint : str
        The new checkpoint.
    query : str
        The id of its query.
    batch : int
        The micro-batch after which it continues.
    old_buckets, buckets : int
        The numbers of buckets before and now.
    keys : int
        The number of keys.
    """

    checkpoint: str
    query: str
    batch: int
    old_buckets: int
    buckets: int
    keys: int


def rescale_state(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    buckets: int,
    at: int | None = None,
    progress: Progress | None = None,
) -> Rescaled:
    """Copy an update queue's query with another number of buckets.

    Called on the driver; starts no JVM. As with `fork_state`, the copy is a new checkpoint and a new
    directory in the state location, nothing of the old query changes, and a call that was interrupted
    continues if it is repeated. Start the query with the new checkpoint and the new number of buckets.

    Every key keeps the time of its newest emitted tuple, its waiting tuple, and the arrival of its oldest
    pending update. In a new bucket with keys of several old ones, the keys of one old bucket keep their
    order, and otherwise those come first whose pending updates arrived first; see "Change the number of
    buckets" in ``docs/how-to/state.md``.

    Parameters
    ----------
    checkpoint, path, to, at, progress
        See `fork_state`. The parts are the new buckets, and Spark's files as one.
    buckets : int
        The new number of buckets.

    Returns
    -------
    Rescaled
        The new query's id, the micro-batch, and the numbers of buckets and keys.

    Raises
    ------
    InvalidUsageError
        As `fork_state`, or if the query's operator is not an update queue or union of update semantics.
        Nothing has been written then.
    CorruptDataError
        If a file of the micro-batch is damaged or gone; a running query may have deleted it.
    UnavailableError
        If the file system refuses.

    Notes
    -----
    Needs memory for the keys of one new bucket and of one old bucket.

    Examples
    --------
    >>> penstock.rescale_state("/ck/loads", "/var/lib/penstock", "/ck/wider", buckets=32)  # doctest: +SKIP
    """
    if buckets < 1:
        raise InvalidUsageError("less than one bucket is asked for", buckets=buckets)
    copy = begin_copy(checkpoint, path, to, at, check=_check, change={"buckets": buckets})
    (name,) = copy.operators
    specification = dict(specification_of(copy.operators[name]))
    target = copy.target.child(name)
    _publish_once(target, SPECIFICATION_FILE, PUnit("operator", specification | {"buckets": buckets}))
    sources = _Sources(copy, specification)
    pointers: dict[int, Pointer] = {}
    due: set[int] = set()
    keys = 0
    for bucket, label in enumerate(bucket_labels(buckets)):
        meta = _write_bucket(target.child(f"{bucket:05d}"), sources, bucket, buckets)
        if meta is not None:
            pointers[label] = Pointer(Version(1), _FILE_ID)
            keys += meta["rows"]
            if meta["waiting"]:
                due.add(label)
        if progress is not None:
            progress(bucket + 1, buckets + 1)
    _write_pointers(copy, pointers, due)
    copy.finish()
    if progress is not None:
        progress(buckets + 1, buckets + 1)
    _LOGGER.info(
        "rescaled a query [query=%s batch=%d old_buckets=%d buckets=%d new_query=%s checkpoint=%s]",
        copy.query, copy.batch, sources.buckets, buckets, copy.own, copy.new,
    )  # fmt: skip
    return Rescaled(str(copy.new), copy.own, copy.batch, sources.buckets, buckets, keys)


def _check(operators: Mapping[str, Files], held: Held) -> None:
    """Check that the query has one update queue."""
    if len(operators) != 1 or len(held) != 1:
        raise InvalidUsageError(
            "only a query with one operator can get another number of buckets", operators=sorted(operators)
        )
    ((name, files),) = operators.items()
    specification = specification_of(files)
    if not specification.keys() >= _QUEUE or specification.keys() & _OTHERS:
        raise InvalidUsageError(
            "only the state of update queues and unions can get another number of buckets",
            operator=name,
            hint="start this operator with a new checkpoint",
        )
    if specification.get("semantics") is not None:
        raise InvalidUsageError(
            "a queue of these semantics cannot get another number of buckets",
            operator=name,
            semantics=specification["semantics"],
            hint="its order of arrival spans all tuples of a bucket; start it with a new checkpoint",
        )


class _Collector:
    """Collects the units of a version; a `State` that is only restored."""

    def __init__(self, key: list[str]) -> None:
        self._key = key
        self.content: QueueState | None = None

    def restore(self, units: Iterable[PUnit]) -> None:
        self.content = read_state(units, self._key)

    def delta(self) -> PUnit:
        raise InternalError("a state that is only read was asked for changes")

    def snapshot(self) -> Iterator[PUnit]:
        raise InternalError("a state that is only read was asked for a snapshot")


class _Sources:
    """The old buckets. Reads them in their order; keeps the last one read."""

    def __init__(self, copy: QueryCopy, specification: Mapping[str, Any]) -> None:
        self.buckets = int(specification["buckets"])
        self._key = list(specification["key"])
        self._places = {int(place.bucket): place for place in copy.buckets}
        self._read = functools.lru_cache(maxsize=1)(self._load)

    def parts(self, bucket: int, buckets: int) -> list[QueueState]:
        """Return the parts of old buckets that belong to a new one; empty ones are left out."""
        found = []
        for source in source_buckets(bucket, buckets, self.buckets):
            if source in self._places:
                part = self._read(source).select(bucket, buckets)
                if part.records.num_rows:
                    found.append(part)
        return found

    def _load(self, bucket: int) -> QueueState:
        place, collector = self._places[bucket], _Collector(self._key)
        with explain_missing_file(place):
            BucketStore(place.files).load(place.pointer, collector)
        state = collector.content
        if state is None or (buckets_of(state.hashes, self.buckets) != bucket).any():
            raise CorruptDataError("a bucket has keys of other buckets", file=_path_of(place))
        return state


def _path_of(place: CopiedBucket) -> str:
    return place.files.path_of(place.pointer.file_name)


def _write_bucket(files: Files, sources: _Sources, bucket: int, buckets: int) -> Mapping[str, Any] | None:
    """Write a new bucket unless it is there; return its metadata, None if it has no keys."""
    store, pointer = BucketStore(files), Pointer(Version(1), _FILE_ID)
    if all(facts.name != pointer.file_name for facts in files.list()):
        parts = sources.parts(bucket, buckets)
        if not parts:
            return None
        merged = merge_states(parts, sources.buckets / buckets)
        store.publish_first(_FILE_ID, merged.units())
    return store.look(pointer)[1].meta


def _write_pointers(copy: QueryCopy, pointers: Mapping[int, Pointer], due: set[int]) -> None:
    """Copy Spark's files, with these pointers in place of the old ones."""
    (number,) = copy.held
    old, new = copy.spark_state(number)
    copy.copy_spark(except_pointers_of=number)
    waits = due if has_timeouts(old) else None
    for partition, labels in enumerate(partition_labels(pointers, partitions_of(old))):
        content = encode_pointers({label: pointers[label] for label in sorted(labels)}, waits)
        _publish_bytes(new.child(str(partition)), f"{copy.batch + 1}.snapshot", content)


def _publish_once(files: Files, name: str, unit: PUnit) -> None:
    _publish_bytes(files, name, bytes(encode(unit)))


def _publish_bytes(files: Files, name: str, content: bytes) -> None:
    try:
        files.publish(name, content)
    except ConflictError:
        return
