"""A pipeline's sections as Spark readers, columns and writers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.checkpointing.spark_checkpoint import local_path, repair_checkpoint
from penstock.conf.pipeline import (
    ConsoleSink,
    FilesSource,
    Input,
    JoinSection,
    KafkaSink,
    KafkaSource,
    MarketSource,
    MemorySink,
    ParquetSink,
    Pipeline,
    Queue,
    RateSource,
    ResultsSection,
    Sink,
    Source,
    TableSection,
    UnionSection,
)
from penstock.ddl import quoted
from penstock.errors import InternalError, InvalidUsageError
from penstock.jobs.pipelines.bad_records import BAD_RECORD, OnError, counted
from penstock.jobs.pipelines.explain import OTHER, SOURCE, TABLE, graph_of, join_options, queue_options
from penstock.jobs.session import is_local
from penstock.operators.graph.nodes import Join, Node, UpdateQueue, UpdateUnion, rebuild
from penstock.operators.sql.expression import Expression, column, named
from penstock.spark_ext.api.failure import failure_of, root_cause, spark_message
from penstock.spark_ext.api.update_join import update_join
from penstock.spark_ext.api.update_queue import update_queue
from penstock.spark_ext.api.update_union import update_union
from penstock.spark_ext.graph import runner
from penstock.spark_ext.graph.handle import RunningGraph
from penstock.spark_ext.graph.lookup_tables import joined
from penstock.units import parse_duration_us

__all__ = ["pack_values", "start", "start_graph", "unpack_values", "writer"]


@contextmanager
def _section(name: str) -> Iterator[None]:
    """Say which section an error of Spark is about."""
    try:
        yield
    except InvalidUsageError as error:
        raise InvalidUsageError(f"{name}: {error.fact}", hint=error.hint, **error.context) from error
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        text = str(error)
        if "PYTHON_DATA_SOURCE_ERROR" in text:
            raise InvalidUsageError(f"{name}: {root_cause(error).removesuffix('.')}") from error
        if "kafka" in text and "Failed to find" in text:
            raise InvalidUsageError(
                f"{name}: Spark's connector for Kafka is not there",
                hint="set query.spark.spark.jars.packages to "
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}, "
                "or pass it to spark-submit as --packages",
            ) from error
        raise InvalidUsageError(f"{name}: {spark_message(error)}") from error


def _resolve(spark: SparkSession, location: str) -> str:
    """Make a path of this machine absolute; what names its file system stays as it is."""
    if "://" in location or not is_local(spark):
        return location
    return str(Path(location).absolute())


def _options(**values: Any) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _market(spark: SparkSession, source: MarketSource) -> DataFrame:
    options = _options(
        rowsPerSecond=source.rows_per_second,
        symbols=source.symbols,
        skew=source.skew,
        seed=source.seed,
        numPartitions=source.partitions,
        startTime=source.start_time,
        maxRowsPerTrigger=source.max_rows_per_trigger,
        rows=source.rows,
        realTime=source.real_time,
    )
    return spark.readStream.format("market").options(**options).load()


def _path(spark: SparkSession, source: FilesSource) -> str:
    path = _resolve(spark, source.path)
    if "://" not in path and Path(path).is_file():
        # Spark's stream of files takes directories and patterns: a pattern that only this file matches.
        file = Path(path)
        path = str(file.with_name(f"[{file.name[0]}]{file.name[1:]}"))
    return path


def _files(spark: SparkSession, source: FilesSource, place: str) -> DataFrame:
    path = _path(spark, source)
    reader = spark.readStream.format(source.format).options(**source.options)
    if source.counts_bad_records:
        reader = reader.schema(f"{source.columns}, {BAD_RECORD} STRING")
        rows = reader.option("columnNameOfCorruptRecord", BAD_RECORD).load(path)
        return counted(rows, place, source.on_error)
    if source.columns is not None:
        reader = reader.schema(source.columns)
    elif source.format != "text":
        # A stream wants to know its columns; these formats keep them in the files.
        there = spark.read.format(source.format).options(**source.options).load(path)
        reader = reader.schema(there.schema)
    return reader.load(path)


def _kafka(spark: SparkSession, source: KafkaSource, place: str) -> DataFrame:
    records = spark.readStream.format("kafka").options(**source.options).load()
    if source.columns is None:
        return records
    return unpack_values(records, source.columns, place, source.on_error)


def unpack_values(
    records: DataFrame, columns: str, place: str = SOURCE, on_error: OnError = "keep"
) -> DataFrame:
    """Return the columns of Kafka records whose values are JSON, and ``kafka_timestamp``.

    A value that is not JSON, or has a field of another type, is a bad record; one that is kept has nulls.

    Parameters
    ----------
    records : pyspark.sql.DataFrame
        With the columns of Spark's connector for Kafka, of which ``value`` and ``timestamp`` are read.
    columns : str
        Names and types, as DDL.
    place, on_error
        As of `counted`.
    """
    options = {"columnNameOfCorruptRecord": BAD_RECORD}
    parsed = sf.from_json(sf.col("value").cast("string"), f"{columns}, {BAD_RECORD} STRING", options)
    values = records.select(parsed.alias("value"), sf.col("timestamp").alias("kafka_timestamp"))
    return counted(values.select("value.*", "kafka_timestamp"), place, on_error)


def pack_values(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return Kafka records of rows.

    Parameters
    ----------
    rows : pyspark.sql.DataFrame
        What to send; the record's value is all columns as JSON.
    key : tuple of str
        The columns of the record's key: one as text, several as JSON.
    """
    columns = [sf.col(quoted(name)) for name in rows.columns]
    keys = [sf.col(quoted(name)) for name in key]
    name = keys[0].cast("string") if len(keys) == 1 else sf.to_json(sf.struct(*keys))
    return rows.select(name.alias("key"), sf.to_json(sf.struct(*columns)).alias("value"))


def _read(spark: SparkSession, source: Source, place: str = SOURCE) -> DataFrame:
    with _section(place):
        if isinstance(source, MarketSource):
            return _market(spark, source)
        if isinstance(source, FilesSource):
            return _files(spark, source, place)
        if isinstance(source, KafkaSource):
            return _kafka(spark, source, place)
        return _rate(spark, source)


def _read_or_path(spark: SparkSession, source: Source, place: str = SOURCE) -> DataFrame | str:
    """Return the rows of a graph's source; where its files are, if Penstock reads them."""
    if isinstance(source, FilesSource) and source.reader == "penstock":
        return _path(spark, source)
    return _read(spark, source, place)


def _rate(spark: SparkSession, source: RateSource) -> DataFrame:
    options = {"rowsPerSecond": str(source.rows_per_second)} | source.options
    return spark.readStream.format("rate").options(**options).load()


def _function(name: str) -> Callable[..., Any]:
    """Import what `queue.apply` names."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidUsageError(
            f"apply: {error}",
            hint="the module must be installed, on PYTHONPATH, or passed to spark-submit with --py-files",
        ) from error
    if not callable(found):
        raise InvalidUsageError(f"apply: {name} is not a function")
    return found


def _queue_arguments(queue: Queue, state: str) -> dict[str, Any]:
    options = queue_options(queue, None if queue.apply is None else _function(queue.apply))
    return options | {"key": list(queue.key), "time": queue.time, "state_location": state}


def _stepped(spark: SparkSession, rows: DataFrame, step: Queue | JoinSection, state: str) -> DataFrame:
    """Return what leaves a queue, a union or a join."""
    if isinstance(step, UnionSection):
        inputs = {SOURCE: rows}
        for name, other in step.inputs.items():
            inputs[name] = _input(spark, other, f"union.inputs.{name}.")
        with _section("union"):
            return update_union(inputs, prefer=step.prefer, **_queue_arguments(step, state))
    if isinstance(step, Queue):
        with _section("queue"):
            return update_queue(rows, **_queue_arguments(step, state))
    right = _input(spark, step.other, "join.with.")
    with _section("join"):
        return update_join(
            rows, right, list(step.key), step.time, step.within, step.condition,
            unit=step.unit, state_location=state, **join_options(step),
        )  # fmt: skip


def _input(spark: SparkSession, section: Pipeline | Input, place: str = "") -> DataFrame:
    """Return a source, and the filter and the projection that follow it."""
    rows = _read(spark, section.source, f"{place}source")
    if section.filter is not None:
        with _section(f"{place}filter"):
            rows = rows.filter(section.filter)
    if section.projection is not None:
        with _section(f"{place}projection"):
            rows = rows.selectExpr(*section.projection)
    return rows


def _table(spark: SparkSession, table: TableSection) -> DataFrame:
    with _section("lookup.table"):
        reader = spark.read.format(table.format).schema(table.columns).options(**table.options)
        return reader.load(_resolve(spark, table.path))


def _looked_up(rows: DataFrame, table: DataFrame, on: Sequence[str]) -> DataFrame:
    with _section("lookup"):
        more = [name for name in table.columns if name not in on]
        twice = [name for name in more if name in rows.columns]
        if twice:
            raise InvalidUsageError(
                "stream and table have a column of the same name",
                column=twice[0],
                hint="rename it in the projection, or in the table's schema",
            )
        return joined(rows, table, on)


def _results(rows: DataFrame, results: ResultsSection, key: tuple[str, ...]) -> DataFrame:
    """Return what is left of results; the update key stays as it is (UpStream §3.2)."""
    if results.filter is not None:
        with _section("results.filter"):
            rows = rows.filter(results.filter)
    if results.projection is None:
        return rows
    with _section("results.projection"):
        made: dict[str, Expression] = {}
        for text in results.projection:
            if text.strip() == "*":
                made |= {name: column(name) for name in rows.columns}
            else:
                label, expression = named(text)
                made[label] = expression.resolve(rows.columns)
        for name in key:
            if made.get(name) != column(name):
                raise InvalidUsageError(
                    "an update stream would lose its key"
                    if name not in made
                    else "the update key would change",
                    column=name,
                    hint=f"keep {name} as it is; other columns may be computed from it",
                )
        return rows.selectExpr(*results.projection)


def _write(spark: SparkSession, rows: DataFrame, sink: Sink, key: tuple[str, ...]) -> DataStreamWriter:
    if isinstance(sink, ConsoleSink):
        return rows.writeStream.format("console").options(
            **_options(numRows=sink.rows, truncate=sink.truncate)
        )
    if isinstance(sink, ParquetSink):
        writer = rows.writeStream.format("parquet").options(**sink.options)
        return writer.option("path", _resolve(spark, sink.path))
    if isinstance(sink, KafkaSink):
        records = pack_values(rows, key)
        return records.writeStream.format("kafka").options(**sink.options)
    return rows.writeStream.format("memory" if isinstance(sink, MemorySink) else "noop")


def writer(spark: SparkSession, pipeline: Pipeline, checkpoint: str) -> DataStreamWriter:
    """Return the writer that starts a pipeline; only ``start()`` is left to call.

    Torn files of the checkpoint, left by a power cut, are dropped, but if it is remote and state elsewhere.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        With Penstock registered.
    pipeline : Pipeline
        What to run.
    checkpoint : str
        The checkpoint's location, which need not exist.

    Raises
    ------
    InvalidUsageError
        If Spark or the queue refuses a section; its text names the section.
    UnavailableError
        If the checkpoint's file system refuses.
    """
    query, step = pipeline.query, pipeline.step
    if step is None:
        raise InternalError("a pipeline of one query has a queue, a union or a join")
    rows = _input(spark, pipeline)
    if pipeline.lookup is not None:
        rows = _looked_up(rows, _table(spark, pipeline.lookup.table), pipeline.lookup.key)
    checkpoint = _resolve(spark, checkpoint)
    state = _resolve(spark, query.state_location or f"{checkpoint.rstrip('/')}/penstock")
    if query.state_location is None or local_path(checkpoint) is not None:
        # Else nothing says that the checkpoint is where pyarrow can reach it.
        repair_checkpoint(checkpoint, dry_run=False)
    served = _stepped(spark, rows, step, state)
    if pipeline.results is not None:
        served = _results(served, pipeline.results, step.key)
    with _section("sink"):
        writing = _write(spark, served, pipeline.sink, step.key)
    writing = writing.queryName(query.name).outputMode("append").option("checkpointLocation", checkpoint)
    if query.trigger == "available_now":
        return writing.trigger(availableNow=True)
    if query.trigger is not None:
        return writing.trigger(processingTime=f"{parse_duration_us(query.trigger) // 1_000} milliseconds")
    return writing


def start_graph(spark: SparkSession, pipeline: Pipeline, checkpoint: str) -> RunningGraph:
    """Start a pipeline as a graph, with the p-streams that it says.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        With Penstock registered.
    pipeline : Pipeline
        What to run.
    checkpoint : str
        The graph's directory, which need not exist.

    Raises
    ------
    InvalidUsageError
        If Spark or the graph refuses a section.
    """
    query, step = pipeline.query, pipeline.step
    sources = {SOURCE: _read_or_path(spark, pipeline.source)}
    options: dict[str, Any] = {}
    if isinstance(step, Queue):
        options = {} if step.apply is None else {"apply": _function(step.apply)}
    elif step is not None:
        sources[OTHER] = _read_or_path(spark, step.other.source, "join.with.source")
    if isinstance(step, UnionSection):
        for name, other in step.inputs.items():
            sources[name] = _read_or_path(spark, other.source, f"union.inputs.{name}.source")
    if query.state_location is not None:
        options["state_location"] = _resolve(spark, query.state_location)

    def with_options(node: Node) -> Node:
        if not isinstance(node, UpdateQueue | UpdateUnion | Join):
            return node
        return replace(node, options=replace(node.options, **options))

    graph = graph_of(pipeline)
    available_now = query.trigger == "available_now"
    with _section("the graph cannot start"):
        return runner.start(
            replace(graph, root=rebuild(graph.root, with_options)),
            spark,
            _resolve(spark, checkpoint),
            sources=sources,
            tables={TABLE: _table(spark, pipeline.lookup.table)} if pipeline.lookup is not None else None,
            sink=lambda made: _write(spark, made, pipeline.sink, _key_of(pipeline)).outputMode("append"),
            persist=pipeline.persist,
            checkpoint_interval=None if available_now else query.trigger,
            available_now=available_now,
            drain=query.drain,
        )


def _key_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the columns of a record's key: the update key, or the groups of windows."""
    if pipeline.window is None:
        return pipeline.step.key if pipeline.step is not None else ()
    last = pipeline if pipeline.by_window is None else pipeline.by_window
    return tuple(named(text)[0] for text in last.group_by or ()) or ("window",)


def start(writing: DataStreamWriter) -> StreamingQuery:
    """Start a query.

    Raises
    ------
    InvalidUsageError
        If Spark refuses it, such as for a sink that is not there.
    """
    with _section("the query cannot start"):
        try:
            return writing.start()
        except Py4JJavaError as error:  # a file system that refuses the checkpoint, for one
            raise failure_of(error, "the query cannot start") from None
