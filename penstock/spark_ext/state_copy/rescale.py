"""`rescale_state`: copy a query at a committed micro-batch, with another number of buckets.

The keys go to the new buckets as `penstock.operators.queues.repartition` says.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from penstock.errors import InvalidUsageError
from penstock.operators.queues.repartition import QueueState, merge_states, source_buckets
from penstock.spark_ext.state_copy.query_copy import CopiedQuery, Progress, plan_copy
from penstock.spark_ext.state_copy.rewrite import OldBuckets, check_queue, rewrite_buckets

__all__ = ["Rescaled", "rescale_state"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rescaled(CopiedQuery):
    """A finished copy with another number of buckets; see `CopiedQuery`.

    Attributes
    ----------
    old_buckets, buckets : int
        The numbers of buckets before and now.
    keys : int
        The number of keys.
    """

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
    order. Keys of different old buckets are ordered by the arrival of their pending updates; see "Change the
    number of buckets" in ``docs/how-to/state.md``.

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
    copy = plan_copy(checkpoint, path, to, at, change={"buckets": buckets})
    specification = check_queue(copy)
    copy.begin()
    old = OldBuckets(copy, specification)

    def state_of(bucket: int) -> QueueState | None:
        states = map(old.read, source_buckets(bucket, buckets, old.buckets))
        parts = [state.select(bucket, buckets) for state in states if state is not None]
        parts = [part for part in parts if part.records.num_rows]
        return merge_states(parts, buckets / old.buckets) if parts else None

    keys = rewrite_buckets(copy, {**specification, "buckets": buckets}, state_of, progress)
    _LOGGER.info(
        "rescaled a query [query=%s batch=%d old_buckets=%d buckets=%d new_query=%s checkpoint=%s]",
        copy.query, copy.batch, old.buckets, buckets, copy.own, copy.new,
    )  # fmt: skip
    return Rescaled(str(copy.new), copy.own, copy.batch, old.buckets, buckets, keys)
