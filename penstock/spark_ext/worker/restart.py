"""Checks, when a query starts, that its checkpoint was made with the same operators."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from penstock.checkpointing.files import open_files
from penstock.spark_ext.worker.bucket_task import BucketTask, specification_in

__all__ = ["check_restart", "plan_task"]

_planned: dict[str, BucketTask[Any]] = {}
"""The operators that this driver has planned, by the name that each has in Spark's plans."""
_numbers = count(1)


def plan_task(task: BucketTask[Any]) -> str:
    """Remember an operator for `check_restart`; return its name in Spark's plans, unique in this driver."""
    name = f"{task.name}_{next(_numbers)}"
    _planned[name] = task
    return name


def check_restart(query: StreamingQuery) -> Iterator[str]:
    """Check the operators of a query that was started, which needs no new row.

    Parameters
    ----------
    query : StreamingQuery
        The query.

    Yields
    ------
    str
        A note for the user, where a state location has only state of other queries.

    Raises
    ------
    InvalidUsageError
        If the checkpoint was made with another key, policy, number of buckets or other fixed setting.
    UnavailableError
        If the file system refuses.
    """
    plan = str(query._jsq.streamingQuery().analyzedPlan().toString())
    own = str(query.id)  # kept in the checkpoint
    for task in [task for name, task in _planned.items() if f" {name}(" in plan]:
        place = open_files(task.state_location)
        files = place.child(own).child(task.name)
        theirs = specification_in(files)
        if theirs is not None:
            task.check_same(theirs, files.location)
            continue
        queries = [facts.name for facts in place.list() if facts.is_directory]
        if own not in queries and any(specification_in(place.child(one).child(task.name)) for one in queries):
            yield (
                f"{task.name}: starts without state: {task.state_location} has only state of other "
                "checkpoints, of which one may have been deleted or moved"
            )
