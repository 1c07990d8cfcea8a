"""The differences between classic Spark, whose JVM belongs to this process, and a Spark Connect server.

===========================  ==================================  =========================================
what                         classic                             Spark Connect
===========================  ==================================  =========================================
the analysed plan            the JVM's tree                      text, which the server explains
a value for all tasks        a broadcast                         a part of each function, at most 16 MiB
workers for operators alone  by an environment variable          none: they share the server's workers
tasks of a stopped query     waited for                          not known here
lookups of constant tables   by readers, if small                by Spark's join
a query's trigger            its JVM object                      as set at its writer, in this process
a trigger's interval         may change while the query runs      fixed at the start
===========================  ==================================  =========================================

No other module uses the JVM, except the modules that start it (`penstock.jobs.session`) or choose its Python
workers (`penstock.spark_ext.worker.python_workers`).
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import InvalidUsageError

if TYPE_CHECKING:
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
else:
    try:
        from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
    except ModuleNotFoundError:  # the package pyspark-client has no JVM

        class Py4JError(Exception):
            """Never raised."""

        class Py4JJavaError(Py4JError):
            """Never raised."""

        class Py4JNetworkError(Py4JError):
            """Never raised."""


__all__ = [
    "Py4JError",
    "Py4JJavaError",
    "Py4JNetworkError",
    "Shared",
    "aggregate_sql",
    "analyzed_plan",
    "check_own_readers",
    "default_parallelism",
    "has_running_tasks",
    "is_available_now",
    "is_connect",
    "is_constant",
    "is_local",
    "is_lost_server",
    "is_writer",
    "local_processors",
    "observed_metrics",
    "options_of_p_streams",
    "own_workers_of",
    "p_stream_options",
    "plan_of_writer",
    "session_of_writer",
    "set_trigger_interval",
    "share",
    "uses_local_files",
    "weak_function",
    "writer_class",
]

_T = TypeVar("_T")

_WORKERS = "PENSTOCK_WORKERS"
"""An environment variable that is never read. Spark keeps the workers of each environment separate."""
_MAX_SHARED_BYTES: Final = 16 << 20
"""The server refuses messages of more than 128 MiB, and a plan may hold a function several times."""
_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n\n== Optimized", re.DOTALL)
_AGGREGATE = re.compile(r"^~?Aggregate \[(.*) AS a#\d+L?\]$", re.MULTILINE)
_EXPRESSION_ID = re.compile(r"#\d+L?\b")
_LOCAL_MASTER = re.compile(r"local(?:\[ *(\d+|\*) *(?:, *\d+ *)?\])?")
_PARTITIONS = re.compile(r"\bRange \(.*splits=(?:Some\()?(\d+)")
_IN_PROGRAM = {"LocalRelation", "OneRowRelation", "Range"}
_ANEW = ("CURRENT_LIKE", "PLAN_EXPRESSION", "PYTHON_UDF", "SCALA_UDF")
"""Expressions that may change between micro-batches: times, other tables, and user programs."""


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session uses Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_local(spark: SparkSession) -> bool:
    """Return whether the session's workers run on this machine, in its working directory.

    A server of Spark Connect may be anywhere.
    """
    return not is_connect(spark) and str(spark.sparkContext.master).startswith("local")


def has_same_directory(spark: SparkSession) -> bool:
    """Return whether the JVM of a classic session has the working directory of this process."""
    context: Any = spark.sparkContext
    return str(context._jvm.System.getProperty("user.dir")) == str(Path.cwd())


def local_processors(spark: SparkSession) -> int | None:
    """Return the number of tasks that Spark runs at the same time in local mode; None elsewhere."""
    if is_connect(spark) or not (match := _LOCAL_MASTER.fullmatch(str(spark.sparkContext.master))):
        return None
    context: Any = spark.sparkContext
    threads = match[1] or "1"
    return int(context._jvm.Runtime.getRuntime().availableProcessors()) if threads == "*" else int(threads)


def uses_local_files(spark: SparkSession) -> bool:
    """Return whether a path that names no file system is a local path for Spark."""
    if is_connect(spark):
        return False
    context: Any = spark.sparkContext
    return str(context._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")).startswith("file:")


def default_parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark uses by default."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    match = _PARTITIONS.search(_explain(spark.range(1 << 20)))
    return int(match[1]) if match else 1


def is_lost_server(error: BaseException) -> bool:
    """Return whether an error means that the server of Spark Connect does not answer."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return "RetriesExceeded" in names or (
        "SparkConnectGrpcException" in names and "StatusCode.UNAVAILABLE" in str(error)
    )


# -------------------------------------------------------------------------------------- plans


def _explain(df: DataFrame) -> str:
    frame: Any = df
    return str(frame._explain_string(extended=True))


def analyzed_plan(df: DataFrame) -> str:
    """Return Spark's analysed plan of a DataFrame as text; it contains the names of Python functions."""
    if not is_connect(df.sparkSession):
        return str(df._jdf.queryExecution().analyzed().toString())
    match = _ANALYZED.search(_explain(df))
    return match[1] if match else ""


def aggregate_sql(df: DataFrame, aggregate: DataFrame) -> str | None:
    """Return the SQL of the aggregate ``a`` of a DataFrame; None if Spark would parse it differently.

    Parameters
    ----------
    df : DataFrame
        The rows.
    aggregate : DataFrame
        ``df.groupBy().agg(aggregate.alias("a"))``.
    """
    with contextlib.suppress(AnalysisException, ParseException):
        if not is_connect(df.sparkSession):
            alias = aggregate._jdf.queryExecution().analyzed().aggregateExpressions().apply(0)
            text = str(alias.child().sql())
        else:
            match = _AGGREGATE.search(analyzed_plan(aggregate))
            if match is None:
                return None
            text = _EXPRESSION_ID.sub("", match[1])
        if aggregate.sameSemantics(df.groupBy().agg(sf.expr(text).alias("a"))):
            return text
    return None


def is_constant(table: DataFrame) -> bool:
    """Return whether a table never changes, because Spark reads literal rows or known files.

    False if the answer is unknown.
    """
    if is_connect(table.sparkSession):
        return False
    plan = table._jdf.queryExecution().analyzed()
    jvm: Any = table.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if not plan.deterministic() or any(plan.containsPattern(getattr(patterns, name)()) for name in _ANEW):
        return False
    leaves = plan.collectLeaves()
    return all(_is_constant_leaf(leaves.apply(number)) for number in range(leaves.size()))


def _is_constant_leaf(leaf: Any) -> bool:
    kind = leaf.getClass().getSimpleName()
    if kind != "LogicalRelation":
        return kind in _IN_PROGRAM
    # Spark lists files once, when the DataFrame is created, but not for catalog tables or databases.
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation" or leaf.catalogTable().isDefined():
        return False
    return bool(relation.location().getClass().getSimpleName() == "InMemoryFileIndex")


def p_stream_options(df: DataFrame) -> dict[str, str] | None:
    """Return the options with which `df` reads a p-stream; None if `df` does more than select its columns."""
    if is_connect(df.sparkSession):
        return _p_stream_options_of_client(df)
    plan = df._jdf.queryExecution().analyzed()
    while plan.getClass().getSimpleName() == "Project":
        columns = plan.projectList()
        if any(
            columns.apply(place).getClass().getSimpleName() != "AttributeReference"
            for place in range(columns.size())
        ):
            return None
        plan = plan.child()
    if plan.getClass().getSimpleName() != "StreamingRelationV2" or plan.sourceName() != "pstream":
        return None
    return {name.lower(): text for name, text in dict(plan.extraOptions().asCaseSensitiveMap()).items()}


def check_own_readers(*inputs: DataFrame) -> None:
    """Refuse a query in which two sources read a p-stream under the same name and release each other's rows.

    Raises
    ------
    InvalidUsageError
        If two sources have the same reader name.
    """
    seen: set[tuple[str, str]] = set()
    for options in (options for df in inputs for options in options_of_p_streams(df)):
        if "reader" not in options:
            continue
        reader = options["reader"], options.get("path", "").rstrip("/")
        if reader in seen:
            raise InvalidUsageError(
                "two sources of a query read a p-stream under one name", reader=reader[0], path=reader[1],
                hint="load the p-stream for each of them, with option('reader', ...) of its own",
            )  # fmt: skip
        seen.add(reader)


def options_of_p_streams(df: DataFrame) -> Iterator[dict[str, str]]:
    """Yield the options of each p-stream that a streaming query reads."""
    if is_connect(df.sparkSession):
        frame: Any = df
        yield from (_options_of_client(leaf) for leaf in _plans_of_client(frame._plan) if _is_p_stream(leaf))
        return
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    for leaf in (leaves.apply(place) for place in range(leaves.size())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName() == "pstream":
            given = dict(leaf.extraOptions().asCaseSensitiveMap())
            yield {name.lower(): text for name, text in given.items()}


def _plans_of_client(plan: Any) -> Iterator[Any]:
    """Yield a plan of Spark Connect and all plans below it."""
    yield plan
    for value in vars(plan).values():
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, _plan_class()):
                yield from _plans_of_client(one)


@cache
def _plan_class() -> type[Any]:
    plan: type[Any] = importlib.import_module("pyspark.sql.connect.plan").LogicalPlan
    return plan


def _is_p_stream(plan: Any) -> bool:
    return type(plan).__name__ == "DataSource" and plan._is_streaming and plan._format == "pstream"


def _options_of_client(plan: Any) -> dict[str, str]:
    path = {"path": plan._paths[0]} if plan._paths else {}
    return {name.lower(): text for name, text in plan._options.items()} | path


def _p_stream_options_of_client(df: DataFrame) -> dict[str, str] | None:
    frame: Any = df
    plan = frame._plan
    while type(plan).__name__ == "Project":
        if any(
            type(getattr(column, "_expr", None)).__name__ != "ColumnReference" for column in plan._columns
        ):
            return None
        plan = plan._child
    return _options_of_client(plan) if _is_p_stream(plan) else None


def weak_function(results: DataFrame) -> Callable[[None], bool]:
    """Return a function that, called with None, tells whether no plan has an operator's function any more."""
    jvm: Any = results.sparkSession._jvm
    function = results._jdf.queryExecution().analyzed().functionExpr().func()
    refers_to: Callable[[None], bool] = jvm.java.lang.ref.WeakReference(function).refersTo
    return refers_to


# -------------------------------------------------------------------------------- tasks and workers


@dataclass(frozen=True)
class Shared(Generic[_T]):
    """A value that is serialized with a function, because Spark Connect has no broadcast."""

    value: _T


def share(spark: SparkSession, value: _T, what: str) -> Any:
    """Share a value with all tasks; return an object whose attribute ``value`` tasks read.

    Raises
    ------
    InvalidUsageError
        If the value is too large for Spark Connect.
    """
    if not is_connect(spark):
        return spark.sparkContext.broadcast(value)
    size = len(cloudpickle.dumps(value))
    if size > _MAX_SHARED_BYTES:
        raise InvalidUsageError(
            f"{what} are too large for Spark Connect", size_bytes=size, most=_MAX_SHARED_BYTES,
            hint="make the first start in a session without Spark Connect; later starts need no initial rows",
        )  # fmt: skip
    return Shared(value)


@contextlib.contextmanager
def own_workers_of(spark: SparkSession, *, enabled: bool = True, kind: str = "stateful") -> Iterator[None]:
    """Run the functions created within the context in separate workers of a `kind`, if `enabled`.

    If functions have different environment variables, Spark runs them in different workers, which different
    daemons fork.
    """
    if is_connect(spark) or not enabled:
        yield
        return
    environment = spark.sparkContext.environment
    environment[_WORKERS] = kind
    try:
        yield
    finally:
        environment.pop(_WORKERS, None)


def has_running_tasks(spark: SparkSession, group: str) -> bool:
    """Return whether tasks of a Spark job group are running; False if the answer is unknown."""
    if is_connect(spark):
        return False
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages: Sequence[Any] = [
        tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
    ]
    return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)


# ------------------------------------------------------------------------------ writers and queries


@cache
def _connect_writer() -> type[Any]:
    writer: type[Any] = importlib.import_module("pyspark.sql.connect.streaming.readwriter").DataStreamWriter
    return writer


def writer_class(spark: SparkSession) -> type[Any]:
    """Return the class of the session's stream writers."""
    return _connect_writer() if is_connect(spark) else DataStreamWriter


def is_writer(value: object) -> bool:
    """Return whether an object is a stream writer, of a classic session or of Spark Connect."""
    return type(value).__name__ == "DataStreamWriter"


def session_of_writer(writer: Any) -> SparkSession:
    """Return the session of a stream writer."""
    session: SparkSession = writer._spark if isinstance(writer, DataStreamWriter) else writer._session
    return session


def plan_of_writer(writer: Any) -> str:
    """Return the analysed plan of the DataFrame that a stream writer writes."""
    if isinstance(writer, DataStreamWriter):
        return analyzed_plan(writer._df)
    frame: type[Any] = importlib.import_module("pyspark.sql.connect.dataframe").DataFrame
    return analyzed_plan(frame(writer._write_stream._child, writer._session))


def observed_metrics(progress: StreamingQueryProgress) -> dict[str, dict[str, Any]]:
    """Return the values in a progress report, by the names of the observation and the value."""
    rows = {name: row.asDict() for name, row in (progress.observedMetrics or {}).items()}
    return {
        # Spark Connect makes a new row from the JSON of the row.
        name: dict(zip((field["name"] for field in row["schema"]["fields"]), row["values"], strict=True))
        if row.keys() == {"values", "schema"}
        else row
        for name, row in rows.items()
    }


def is_available_now(query: Any, writer: Any = None) -> bool:
    """Return whether a query's trigger is ``availableNow``; with Spark Connect, by its `writer`."""
    if hasattr(query, "_jsq"):
        return str(query._jsq.streamingQuery().trigger().toString()) == "AvailableNowTrigger"
    return writer is not None and bool(writer._write_proto.available_now)


def set_trigger_interval(query: Any, interval_ms: int) -> bool:
    """Change the interval of a query's processing-time trigger while the query runs; 0 means no pause.

    Return False if Spark has no executor of the trigger, for example before the query's first micro-batch.

    Spark has no method for this. The executor of the trigger keeps the interval in a field, and reads the
    field before and after each micro-batch. So an interval of 0 holds from the end of the running
    micro-batch, and any other interval from the end of the next micro-batch.

    Raises
    ------
    Py4JError
        If the query's trigger has no interval, or this version of Spark keeps the interval elsewhere.
    """
    executor = query._jsq.streamingQuery().triggerExecutor()
    if executor is None:
        return False
    field = executor.getClass().getDeclaredField("intervalMs")
    field.setAccessible(True)
    field.setLong(executor, interval_ms)
    return True
