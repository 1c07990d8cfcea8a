"""Check a query's output mode and the settings of its checkpoint when it starts.

Spark has no hook for that: it plans an operator anew at each start, and calls a function in a worker only if
there are rows for it. So the first planned operator wraps ``DataStreamWriter.start`` and ``toTable``, once in
this process. Queries without a Penstock operator start as before.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.checkpointing.files import open_files
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.spark_ext.worker.bucket_task import BucketTask, specification_in

__all__ = ["plan_task"]

_LOGGER = logging.getLogger(__name__)

_APPEND = "append"
_OUTPUT_MODE = "_penstock_output_mode"
"""The attribute of a writer that holds its output mode."""

_planned: dict[str, BucketTask[Any]] = {}
"""The operators that this driver has planned, by the name that each has in Spark's plans."""
_numbers = count(1)


def plan_task(task: BucketTask[Any]) -> str:
    """Remember an operator for the checks at its start; return its name in Spark's plans, unique here."""
    if not _planned:
        _wrap_starts()
    name = f"{task.name}_{next(_numbers)}"
    _planned[name] = task
    return name


def _wrap_starts() -> None:
    for name in ("start", "toTable"):
        setattr(DataStreamWriter, name, _check_start(getattr(DataStreamWriter, name)))
    DataStreamWriter.outputMode = _note_mode(DataStreamWriter.outputMode)  # type: ignore[method-assign]


def _note_mode(set_mode: Callable[..., DataStreamWriter]) -> Callable[..., DataStreamWriter]:
    """Return a setter of the output mode that also notes the mode, which Spark does not expose."""

    @functools.wraps(set_mode)
    def noted(writer: DataStreamWriter, outputMode: str) -> DataStreamWriter:  # noqa: N803 - Spark's name
        setattr(writer, _OUTPUT_MODE, outputMode)
        return set_mode(writer, outputMode)

    return noted


def _check_start(start: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
    """Return a way to start a query that also checks Penstock's operators in it.

    It raises what `start` does, and

    - `InvalidUsageError` for an unsupported output mode, or a checkpoint that was made with another key,
      policy, number of buckets or other fixed setting;
    - `UnavailableError` if the file system of the state refuses.
    """

    @functools.wraps(start)
    def checked(writer: DataStreamWriter, *arguments: Any, **options: Any) -> StreamingQuery:
        try:
            query = start(writer, *arguments, **options)
        except AnalysisException as error:
            plan = str(writer._df._jdf.queryExecution().analyzed().toString())
            if getattr(writer, _OUTPUT_MODE, _APPEND).lower() == _APPEND or not _tasks_in(plan):
                raise
            raise InvalidUsageError(
                "Penstock's operators support only the output mode append",
                hint="leave outputMode out, or set it to 'append'",
            ) from error
        try:
            for note in _restart_notes(query):
                _LOGGER.warning("%s [query=%s]", note, query.name or query.id)
        except BaseException:
            query.stop()
            raise
        return query

    return checked


def _tasks_in(plan: str) -> list[BucketTask[Any]]:
    return [task for name, task in _planned.items() if f" {name}(" in plan]


def _restart_notes(query: StreamingQuery) -> Iterator[str]:
    """Check the operators of a started query; yield notes for its user."""
    own = str(query.id)  # kept in the checkpoint
    for task in _tasks_in(str(query._jsq.streamingQuery().analyzedPlan().toString())):
        try:
            yield from _notes_of(task, own)
        except UnavailableError as error:
            raise UnavailableError(
                "cannot read the state",
                state_location=task.state_location,
                reason=error.context.get("reason", error),
                hint="choose a state_location that this user may write, and check that its service answers",
            ) from None


def _notes_of(task: BucketTask[Any], own: str) -> Iterator[str]:
    """Check one operator of the query with the id `own`."""
    place = open_files(task.state_location)
    files = place.child(own).child(task.name)
    theirs = specification_in(files)
    if theirs is not None:
        task.check_same(theirs, files.location)
        return
    queries = [facts.name for facts in place.list() if facts.is_directory]
    if own not in queries and any(specification_in(place.child(one).child(task.name)) for one in queries):
        yield (
            f"{task.name} starts without state: {task.state_location} holds only state of other checkpoints. "
            "If the query's checkpoint was deleted or moved by mistake, restore it"
        )
