"""`fork_state`: copy a query's state and checkpoint at a committed micro-batch, under a new query id.

The copy has the files that the micro-batch's pointers reach; see `penstock.spark_ext.state_copy.query_copy`.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import Files
from penstock.conf.arguments import check_keywords
from penstock.errors import ConflictError
from penstock.spark_ext.state_copy.query_copy import (
    CopiedBucket,
    CopiedQuery,
    Progress,
    explain_missing_file,
    plan_copy,
    publish_once,
)
from penstock.spark_ext.state_reader.committed import specification_of
from penstock.state_store.bucket_store import BucketStore
from penstock.state_store.location import SPECIFICATION_FILE

__all__ = ["Fork", "fork_state"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fork(CopiedQuery):
    """The result of a finished fork; see `CopiedQuery`.

    Attributes
    ----------
    buckets : int
        The number of copied buckets, over all operators.
    """

    buckets: int


@check_keywords
def fork_state(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    at: int | None = None,
    progress: Progress | None = None,
) -> Fork:
    """Copy a query at a committed micro-batch, so that a second query continues from it.

    This function runs on the driver and starts no JVM. The copy is a new checkpoint and a new directory in
    the state location. Nothing of the old query changes, and the old query may run during the copy. If the
    call is interrupted at any point, call it again with the same arguments, and it continues.

    Parameters
    ----------
    checkpoint : str or path
        The query's checkpoint, on a local disk; not the checkpoint of a graph or a pipeline.
    path : str or path
        The query's state location.
    to : str or path
        The new checkpoint, on a local disk. The path must not exist yet.
    at : int, optional
        The micro-batch; by default the newest committed micro-batch. The query must still have the state of
        this micro-batch. With `retain_versions` n, the query keeps the state of at least the newest n
        micro-batches.
    progress : callable, optional
        Called after each copied bucket, with the number of finished parts and the number of all parts.

    Returns
    -------
    Fork
        The new query's id, and the micro-batch.

    Raises
    ------
    InvalidUsageError
        If this is not the checkpoint of a query with state at this location, the micro-batch was not
        committed, the new checkpoint exists, or an unfinished fork to the new checkpoint was started with
        different arguments.
    CorruptDataError
        If a file of the micro-batch is damaged or missing; a running query may have deleted it.
    UnavailableError
        If the file system refuses.

    Examples
    --------
    >>> penstock.fork_state("/ck/loads", "/var/lib/penstock", "/ck/trial")  # doctest: +SKIP
    """
    copy = plan_copy(checkpoint, path, to, at)
    copy.begin()
    parts = len(copy.buckets) + 1
    for name, files in copy.operators.items():
        publish_once(
            copy.target.child(name), SPECIFICATION_FILE, encode(PUnit("operator", specification_of(files)))
        )
    for count, bucket in enumerate(copy.buckets, 1):
        _copy_bucket(bucket, copy.target.child(bucket.operator).child(bucket.bucket))
        if progress is not None:
            progress(count, parts)
    copy.copy_spark()
    copy.finish()
    if progress is not None:
        progress(parts, parts)
    _LOGGER.info(
        "forked a query [query=%s batch=%d new_query=%s checkpoint=%s]",
        copy.query, copy.batch, copy.own, copy.new,
    )  # fmt: skip
    return Fork(str(copy.new), copy.own, copy.batch, len(copy.buckets))


def _copy_bucket(bucket: CopiedBucket, to: Files) -> None:
    """Copy the files in the chain of a pointer, the newest file last."""
    present = {facts.name for facts in to.list()}
    if bucket.pointer.file_name in present:
        return
    with explain_missing_file(bucket):
        handle, _ = BucketStore(bucket.files).read_version(bucket.pointer)
        for link in handle.links:
            if link.pointer.file_name not in present:
                _copy(bucket.files, to, link.pointer.file_name)


def _copy(files: Files, to: Files, name: str) -> None:
    """Copy a file of state, unless it was copied before."""
    try:
        to.publish(name, files.read(name))
    except ConflictError:
        return
