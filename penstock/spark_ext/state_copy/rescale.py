"""`rescale_state`: copy a query at a committed micro-batch, with a new number of buckets.

`penstock.operators.queues.repartition` describes how the keys are divided.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError
from penstock.operators.queues.repartition import merge_states, source_buckets
from penstock.spark_ext.state_copy.keyed_units import JoinBuckets
from penstock.spark_ext.state_copy.own_tables import OwnBuckets
from penstock.spark_ext.state_copy.query_copy import CopiedQuery, Progress, QueryCopy, plan_copy
from penstock.spark_ext.state_copy.rewrite import (
    OldBuckets,
    RewrittenState,
    rewritable_kind,
    rewrite_buckets,
)
from penstock.spark_ext.state_copy.served_windows import window_buckets

__all__ = ["Rescaled", "rescale_state"]

_LOGGER = logging.getLogger(__name__)


class _OldBuckets(Protocol):
    """The old buckets of an operator, whose keys move to new ones."""

    def rescale(self, bucket: int, buckets: int) -> RewrittenState | None:
        """Return the state of a new bucket; None if it is empty."""


_OLD_BUCKETS: dict[str, Callable[[QueryCopy, Mapping[str, Any]], _OldBuckets]] = {
    "join": JoinBuckets, "windows": window_buckets, "own": OwnBuckets,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rescaled(CopiedQuery):
    """The result of a finished copy to a new number of buckets; see `CopiedQuery`.

    Attributes
    ----------
    old_buckets, buckets : int
        The numbers of buckets before and after.
    keys : int
        The number of keys; for windows in append mode, the number of pane partials.
    """

    old_buckets: int
    buckets: int
    keys: int


@check_keywords
def rescale_state(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    buckets: int,
    at: int | None = None,
    progress: Progress | None = None,
) -> Rescaled:
    """Copy a query with a new number of buckets.

    The query may have a queue, a union, a join, windows or a user-defined operator. This function runs on the
    driver and starts no JVM. As with `fork_state`, the copy is a new checkpoint and a new directory in the
    state location, nothing of the old query changes, and an interrupted call continues if it is repeated.
    Then start the query with the new checkpoint and the new number of buckets.

    Every key keeps the time of its newest emitted tuple, its waiting tuple, and the arrival of its oldest
    pending update. If a new bucket has keys of several old buckets, the keys that came from one old bucket
    keep their order. Keys from different old buckets are ordered by the arrival of their pending updates; see
    "Change the number of buckets" in ``docs/how-to/state.md``. Windows keep their open panes, rows and
    sessions, and the watermark; in lazy and eager mode also each group's waiting window. Joins keep their
    held tuples and last matches; a new bucket's watermark is the newest watermark of its old buckets. Tables
    of user-defined operators are divided row by row, so each table must have the operator's key.

    Parameters
    ----------
    checkpoint, path, to, at, progress
        See `fork_state`. Each new bucket is one part, and all of Spark's files together are one part.
    buckets : int
        The new number of buckets.

    Returns
    -------
    Rescaled
        The new query's id, the micro-batch, and the numbers of buckets and keys.

    Raises
    ------
    InvalidUsageError
        As for `fork_state`. Also if the query has an append or adaptive queue, joined windows, transactions,
        or a user-defined operator with a table that lacks the operator's key. In these cases, nothing has
        been written.
    CorruptDataError
        If a file of the micro-batch is damaged or missing; a running query may have deleted it.
    UnavailableError
        If the file system refuses.

    Notes
    -----
    The function needs memory for the keys of one new bucket and of one old bucket.

    Examples
    --------
    >>> penstock.rescale_state("/ck/loads", "/var/lib/penstock", "/ck/wider", buckets=32)  # doctest: +SKIP
    """
    if buckets < 1:
        raise InvalidUsageError("the number of buckets is less than 1", buckets=buckets)
    copy = plan_copy(checkpoint, path, to, at, change={"buckets": buckets})
    kind, specification = rewritable_kind(copy)
    old_buckets = int(specification["buckets"])
    if kind == "queue":
        state_of = _queue_states(copy, specification, buckets)
    else:
        old = _OLD_BUCKETS[kind](copy, specification)
        state_of = functools.partial(old.rescale, buckets=buckets)
    copy.begin()
    keys = rewrite_buckets(copy, {**specification, "buckets": buckets}, state_of, progress)
    _LOGGER.info(
        "rescaled a query [query=%s batch=%d old_buckets=%d buckets=%d new_query=%s checkpoint=%s]",
        copy.query, copy.batch, old_buckets, buckets, copy.own, copy.new,
    )  # fmt: skip
    return Rescaled(str(copy.new), copy.own, copy.batch, old_buckets, buckets, keys)


def _queue_states(
    copy: QueryCopy, specification: Mapping[str, Any], buckets: int
) -> Callable[[int], RewrittenState | None]:
    """Return a function that returns the state of a new bucket of a queue, given the bucket's number."""
    old = OldBuckets(copy, specification)

    def state_of(bucket: int) -> RewrittenState | None:
        states = map(old.read, source_buckets(bucket, buckets, old.buckets))
        parts = [state.select(bucket, buckets) for state in states if state is not None]
        parts = [part for part in parts if part.records.num_rows]
        return merge_states(parts, buckets / old.buckets) if parts else None

    return state_of
