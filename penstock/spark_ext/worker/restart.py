"""Check a query's output mode and checkpoint when it starts.

Spark has no hook for this check: it plans an operator again at each start, and calls the operator in a worker
only if there are rows. So `check_starts` wraps ``DataStreamWriter.start`` and ``toTable``, once in each
process. A query without a Penstock operator is refused only if a power cut damaged its checkpoint. Without
this check, Spark would fail later and would not name the repair.
"""

from __future__ import annotations

import functools
import json
import logging
import weakref
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import count
from typing import Any, NamedTuple

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock._durable import make_directory
from penstock.checkpointing.files import LocalFiles, open_files
from penstock.checkpointing.spark_checkpoint import (
    has_foreign_results,
    list_numbers,
    local_path,
    repair_checkpoint,
)
from penstock.errors import CorruptDataError, InvalidUsageError, UnavailableError
from penstock.spark_ext.api.failure import failure_of, spark_message
from penstock.spark_ext.api.metrics import process_all_available
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.border.connection import (
    Py4JJavaError,
    has_same_directory,
    is_available_now,
    is_connect,
    is_local,
    plan_of_writer,
    session_of_writer,
    weak_function,
    writer_class,
)
from penstock.spark_ext.foreach_batch import note_function, tell_batches
from penstock.spark_ext.pacing import follow
from penstock.spark_ext.state_reader.spark_state import read_pointer_files
from penstock.spark_ext.worker.bucket_task import BucketTask
from penstock.state_store.descriptions import missing_state_notes

__all__ = [
    "check_starts",
    "check_writer",
    "drop_unused",
    "forget_with_plan",
    "plan_task",
    "start_again",
    "was_available_now",
]

_LOGGER = logging.getLogger(__name__)

_APPEND = "append"
_OUTPUT_MODE, _QUERY_NAME, _CHECKPOINT, _PATH = "outputmode", "queryname", "checkpointlocation", "path"
_FILES = ("parquet", "json", "csv", "orc", "text")
"""The formats of Spark's file sink; the first is the default."""
_TRIGGERS = {"processingtime", "once", "continuous", "availablenow", "realtime"}
_SETTINGS = "_penstock_settings"
"""The attribute of a writer that holds its settings, which Spark does not expose, by names in lower case."""
_START = "_penstock_start"
"""The attribute of a query that holds the call that started the query."""
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""Spark's setting for the directory of all checkpoints, each under the name of its query."""

_NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


class _Planned(NamedTuple):
    """An operator, and whether its keys may wait for later triggers."""

    task: BucketTask[Any]
    waits: bool


_planned: dict[str, _Planned] = {}
"""The operators that this driver has planned, by the name that each has in Spark's plans."""
_are_unused: dict[str, Callable[[], bool]] = {}
"""Functions that tell whether no plan has the operator any more, by the operator's name."""
_DROPS_AT = 64
"""If a multiple of this number of operators is known, those without a plan are dropped."""
_numbers = count(1)
_checked: set[type[Any]] = set()
"""The classes of writers whose starts are checked."""


def plan_task(spark: SparkSession, task: BucketTask[Any], route: str = "", *, waits: bool = False) -> str:
    """Register an operator, so that it is checked when its query starts.

    With `waits`, the operator's keys may wait for later triggers. Then the started query gets Penstock's
    ``processAllAvailable``, because Spark's method would never return.

    Return the unique name of the operator in Spark's plans. The name contains the operator's `route`, so that
    users can see the route in the plan.
    """
    check_starts(spark)
    name = "_".join(part for part in (task.name, route, str(next(_numbers))) if part)
    _planned[name] = _Planned(task, waits)
    return name


def forget_with_plan(name: str, function: object, results: DataFrame) -> None:
    """Forget an operator some time after its last plan, which may be a plan of a running query.

    Parameters
    ----------
    name : str
        The operator's name from `plan_task`.
    function : object
        The operator's function.
    results : DataFrame
        The direct results of the function.
    """
    if is_connect(results.sparkSession):
        held = weakref.ref(function)
        _are_unused[name] = lambda: held() is None
    else:
        _are_unused[name] = functools.partial(weak_function(results), None)
    if len(_are_unused) % _DROPS_AT == 0:
        drop_unused()


def drop_unused() -> None:
    """Forget the operators that no plan has any more."""
    for name, is_unused in list(_are_unused.items()):  # other threads may plan operators
        if _is_unused(is_unused):
            _are_unused.pop(name, None)
            _planned.pop(name, None)


def _is_unused(is_unused: Callable[[], bool]) -> bool:
    try:
        return is_unused()
    except Exception:  # its JVM has ended, which Py4J reports by errors of several types
        return True


def check_starts(spark: SparkSession) -> None:
    """Check all later starts of queries in sessions of this kind (classic or Connect) in this process."""
    writers = writer_class(spark)
    if writers in _checked:
        return
    _checked.add(writers)
    for name in ("start", "toTable"):
        setattr(writers, name, _check_start(getattr(writers, name)))
    for name in ("format", "option", "options", "outputMode", "queryName", "trigger"):
        setattr(writers, name, _note_settings(getattr(writers, name)))
    if is_connect(spark):
        writers.foreachBatch = note_function(writers.foreachBatch)


def start_again(query: StreamingQuery) -> StreamingQuery | None:
    """Start an ended query again; None if it was started by another process, or without Penstock.

    Raises
    ------
    InvalidUsageError
        If the query has no checkpoint, or its sink cannot continue after a restart.
    """
    start = _find_start(query)
    if start is None:
        return None
    writer, *arguments = start.args
    settings = vars(writer).get(_SETTINGS, {}) | _settings_in(
        start.func, writer, tuple(arguments), start.keywords
    )
    reason: object = "the query has no checkpoint"
    if _checkpoint_of(writer, settings) is not None:
        try:
            return start()
        except AnalysisException as error:  # the sink in memory has no checkpoint to continue from
            reason = spark_message(error)
    raise InvalidUsageError(
        "the query cannot start again to serve the keys that wait",
        spark=pyspark.__version__,
        reason=reason,
        hint="Spark before 4.2 ends a run after one micro-batch: set a checkpoint, and choose a sink that is "
        "not in memory; or leave out the budget",
    )


def was_available_now(query: StreamingQuery) -> bool:
    """Return whether a query's trigger is ``availableNow``.

    With Spark Connect, only the writer that started the query in this process has this information.
    """
    start = _find_start(query)
    return is_available_now(query, None if start is None else start.args[0])


def _find_start(query: StreamingQuery) -> functools.partial[StreamingQuery] | None:
    # Users may wrap a query in a class of their own.
    call: functools.partial[StreamingQuery] | None = getattr(query, _START, None)
    return call


def _note_settings(setter: Callable[..., DataStreamWriter]) -> Callable[..., DataStreamWriter]:
    """Wrap a writer's setter so that it also records the settings in the writer's `_SETTINGS`."""

    @functools.wraps(setter)
    def note_and_set(writer: DataStreamWriter, /, *arguments: Any, **options: Any) -> DataStreamWriter:
        settings = vars(writer).setdefault(_SETTINGS, {})
        settings.update(_settings_in(setter, writer, arguments, options))
        return setter(writer, *arguments, **options)

    return note_and_set


def _settings_in(
    method: Callable[..., Any], writer: DataStreamWriter, arguments: tuple[Any, ...], options: dict[str, Any]
) -> dict[str, str]:
    """Return the settings that a call of a writer's method makes; none if Spark will refuse the call."""
    try:
        bound = signature(method).bind(writer, *arguments, **options).arguments
    except TypeError:
        return {}
    if method.__name__ == "option":
        bound = {bound["key"]: bound["value"]}
    settings = {**bound, **bound.get("options", {})}
    return {str(name).lower(): str(value) for name, value in settings.items() if value is not None}


def _check_start(start: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
    """Return a function that checks a query's checkpoint and Penstock's operators, and starts the query.

    The returned function raises the errors of `start`, and

    - `CorruptDataError` if a power cut damaged the checkpoint;
    - `InvalidUsageError` for an unsupported output mode, or a checkpoint that was made with a different key,
      policy, number of buckets or other fixed setting;
    - `UnavailableError` if the file system of the state refuses.
    """

    def note_and_start(
        writer: DataStreamWriter, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> StreamingQuery:
        query = start(writer, *arguments, **options)
        vars(query)[_START] = functools.partial(check_and_start, writer, *arguments, **options)
        return query

    @functools.wraps(start)
    def check_and_start(writer: DataStreamWriter, /, *arguments: Any, **options: Any) -> StreamingQuery:
        settings = vars(writer).get(_SETTINGS, {}) | _settings_in(start, writer, arguments, options)
        checkpoint = _checkpoint_of(writer, settings)
        _check_whole(checkpoint)
        operators = _operators_of(writer)
        tasks = [one.task for one in operators.values()]
        if not tasks:
            return note_and_start(writer, arguments, options)
        if settings.get(_OUTPUT_MODE, _APPEND).lower() != _APPEND:
            raise InvalidUsageError(
                "Penstock's operators support only the output mode append",
                hint="leave outputMode out, or set it to 'append'",
            )
        spark = session_of_writer(writer)
        if is_local(spark) and has_same_directory(spark):
            _check_output(settings, checkpoint)
        if is_connect(spark):
            tell_batches(writer, operators, checkpoint, settings.get(_QUERY_NAME))
            # If the checkpoint is on the server's disk, only the started query shows the checkpoint's id.
            has_id = _id_in(checkpoint) is not None
        else:
            has_id = checkpoint is None or local_path(checkpoint) is not None
        if has_id:
            if is_local(spark):
                for location in {task.state_location for task in tasks}:
                    _check_writable(location)
            _log_notes(tasks, _id_in(checkpoint), settings.get(_QUERY_NAME, checkpoint), checkpoint)
        try:
            query = note_and_start(writer, arguments, options)
        except Py4JJavaError as error:  # an unknown sink, or a file system that refuses
            raise failure_of(error, "the query cannot start") from None
        if any(one.waits for one in operators.values()) and spark.conf.get(_NO_DATA_BATCHES) == "true":
            vars(query)["processAllAvailable"] = functools.partial(process_all_available, query)
        if _TRIGGERS.isdisjoint(settings):
            follow(query, spark)
        try:
            if not has_id:
                _log_notes(tasks, str(query.id), query.name or query.id)
        except BaseException:
            query.stop()
            raise
        return query

    return check_and_start


def _has_pointers(checkpoint: str | None, buckets: int) -> bool:
    """Return whether a checkpoint on a local disk has, or may have, pointers to state."""
    path = None if checkpoint is None else local_path(checkpoint)
    committed = set() if path is None else list_numbers(path / "commits")
    if path is None or not committed:
        return False
    held = read_pointer_files(LocalFiles(path / "state"), max(committed), bucket_labels(buckets))
    return held is None or any(held.values())


def _check_output(settings: dict[str, str], checkpoint: str | None) -> None:
    """Refuse a file sink whose directory has results of another checkpoint."""
    kind = settings.get("format", settings.get("source", _FILES[0]))  # of `start`, or of the writer
    is_known = _PATH in settings and checkpoint is not None and kind.lower() in _FILES
    if is_known and has_foreign_results(settings[_PATH], checkpoint):
        raise InvalidUsageError(
            "the sink's directory has results of another checkpoint: Spark would take micro-batches for "
            "repetitions, and skip them",
            path=settings[_PATH],
            hint="restore the checkpoint, or write to a new directory",
        )


def _check_writable(location: str) -> None:
    """Create the directory of the state, if it is on a local disk."""
    files = open_files(location)
    if isinstance(files, LocalFiles):
        make_directory(files.directory)


def _id_in(checkpoint: str | None) -> str | None:
    """Return the id of the query to which a checkpoint on a local disk belongs; None if it has no id.

    If the checkpoint is not a directory or has unknown metadata, the result is also None, because Spark
    itself reports these errors.
    """
    path = None if checkpoint is None else local_path(checkpoint)
    try:
        return None if path is None else str(json.loads((path / "metadata").read_text())["id"])
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
        return None


def _checkpoint_of(writer: DataStreamWriter, settings: dict[str, str]) -> str | None:
    """Return the checkpoint of a query that is about to start; None for a new checkpoint."""
    if _CHECKPOINT in settings:
        return settings[_CHECKPOINT]
    parent, name = session_of_writer(writer).conf.get(_CHECKPOINTS, None), settings.get(_QUERY_NAME)
    return None if parent is None or name is None else f"{parent}/{name}"


def _check_whole(checkpoint: str | None) -> None:
    """Check that a power cut has not damaged a checkpoint on a local disk."""
    path = None if checkpoint is None else local_path(checkpoint)
    if path is not None and path.is_dir() and repair_checkpoint(path).files:
        raise CorruptDataError(
            "files of the checkpoint are damaged",
            checkpoint=path,
            hint=f"a power cut tore them: penstock repair {path}",
        )


def check_writer(writer: DataStreamWriter) -> None:
    """Check Penstock's operators in a query of a graph against its checkpoint, without starting it.

    The driver calls this function for all queries of the graph before it starts the first.

    Raises
    ------
    InvalidUsageError
        If the checkpoint was made with different fixed settings.
    CorruptDataError
        If an operator's description is damaged.
    UnavailableError
        If the file system of the state refuses.
    """
    own = _id_in(_checkpoint_of(writer, vars(writer).get(_SETTINGS, {})))
    if own is not None:
        for operator in _operators_of(writer).values():
            operator.task.check_known(own, in_graph=True)


def _operators_of(writer: DataStreamWriter) -> dict[str, _Planned]:
    """Return Penstock's operators in a query, by their names in Spark's plans."""
    plan = plan_of_writer(writer)
    return {name: operator for name, operator in list(_planned.items()) if f" {name}(" in plan}


def _log_notes(
    tasks: list[BucketTask[Any]], own: str | None, name: str | None, checkpoint: str | None = None
) -> None:
    """Check the operators of a query; log notes for its user."""
    for task in tasks:
        try:
            notes = list(_notes_of(task, own, checkpoint))
        except UnavailableError as error:
            raise UnavailableError(
                "cannot read the state",
                state_location=task.state_location,
                reason=error.context.get("reason", error),
                hint="choose a state_location that this user may write, and check that its service answers",
            ) from None
        for note in notes:
            _LOGGER.warning("%s%s", note, "" if name is None else f" [query={name}]")


def _notes_of(task: BucketTask[Any], own: str | None, checkpoint: str | None) -> Iterator[str]:
    """Check one operator against the query with the id `own`; yield notes if the query has no state of it."""
    if own is not None and task.check_known(own):
        return
    yield from missing_state_notes(
        task.name, task.state_location, own, has_pointers=_has_pointers(checkpoint, task.buckets)
    )
