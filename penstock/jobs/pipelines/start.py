"""Starts of pipelines: YAML becomes a graph, and the graph runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DataType, StructType

from penstock.conf.document import Document
from penstock.conf.pipeline import Pipeline, PStreamSink, PStreamSource, Source, SparkSource, TableSection
from penstock.errors import InvalidUsageError
from penstock.jobs.cluster.shared_places import check_shared_places
from penstock.jobs.pipelines.functions import carry_functions, import_function
from penstock.jobs.pipelines.graph import OTHER, Binding, checkpoint_of, field_errors, graph_of
from penstock.jobs.pipelines.late_decoding import decode_results, read_encoded
from penstock.jobs.pipelines.schemas import schema_of
from penstock.jobs.pipelines.sinks import sink_writer
from penstock.jobs.pipelines.sources import read_sources, read_tables, resolve, section, section_error
from penstock.spark_ext.api.failure import failure_of
from penstock.spark_ext.api.register import register
from penstock.spark_ext.border.connection import Py4JJavaError, is_connect
from penstock.spark_ext.border.types import spark_schema, stored_schema
from penstock.spark_ext.graph import runner
from penstock.spark_ext.graph.handle import RunningGraph

__all__ = ["start", "start_pipeline"]


def start_pipeline(spark: SparkSession, pipeline: Pipeline, document: Document | None = None) -> RunningGraph:
    """Start a pipeline: check it, build its graph, and run the graph.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session; Penstock is registered with it.
    pipeline : Pipeline
        The pipeline to run.
    document : Document, optional
        The positions of the pipeline's fields, for errors.

    Raises
    ------
    InvalidUsageError
        If Spark or the graph refuses a section, or the workers of a cluster do not see a directory; the
        error's text names the section.
    """
    query, document = pipeline.query, document or Document("pipeline", {})
    register(
        spark,
        metrics_file=query.metrics,
        metrics_query=query.name,
        prometheus=query.prometheus,
        opentelemetry=query.opentelemetry,
    )
    check_shared_places(spark, pipeline, document)
    if is_connect(spark):
        carry_functions(pipeline)
    late = pipeline.decodes_late
    sources = read_encoded(spark, pipeline) if late else read_sources(spark, pipeline)
    tables = read_tables(spark, pipeline)

    def columns(name: str, section: Source | TableSection) -> pa.Schema:
        return _columns(tables[name] if name in tables else sources[name], section)

    binding = Binding(columns, partial(import_function, field="apply"), partial(resolve, spark))
    if late:
        graph_of(pipeline, document)  # checks the results, which come after decoding
    graph = graph_of(pipeline.model_copy(update={"results": None}) if late else pipeline, document, binding)

    def write(rows: DataFrame) -> DataStreamWriter:
        rows = decode_results(rows, pipeline) if late else rows
        with field_errors(document, "sink"):
            return sink_writer(spark, rows, pipeline).outputMode("append")

    source = pipeline.source
    available_now = query.trigger == "available_now"
    with section("the pipeline cannot start"), _sections_of_nodes(pipeline):
        return runner.start(
            graph,
            spark,
            resolve(spark, checkpoint_of(pipeline)),
            sources=sources,
            tables=tables,
            sink=None if isinstance(pipeline.sink, PStreamSink) else write,
            persist=pipeline.planned_persist,
            checkpoint_interval=None if available_now else query.trigger,
            available_now=available_now,
            drain=query.drain,
            max_rows=source.max_rows_per_trigger if isinstance(source, PStreamSource) else None,
        )


def _columns(given: DataFrame | str, source: Source | TableSection) -> pa.Schema:
    """Return the columns of a source or table as planned; if Spark's columns differ, return Spark's.

    Sources of the type ``spark`` always have their declared columns; the graph checks them.
    """
    if isinstance(given, str) or isinstance(source, SparkSource):
        return schema_of(source)
    with suppress(InvalidUsageError):
        known = schema_of(source)
        if _types(spark_schema(known)) == _types(given.schema):
            return known
    return stored_schema(given.schema)


def _types(schema: StructType) -> list[tuple[str, DataType]]:
    return [(column.name, column.dataType) for column in schema]


@contextmanager
def _sections_of_nodes(pipeline: Pipeline) -> Iterator[None]:
    """Add to an operator's error the section of the pipeline that the operator comes from."""
    try:
        yield
    except InvalidUsageError as error:
        context = dict(error.context)
        name = str(context.pop("node", ""))
        if not name:
            raise
        stream = name.partition(".")[0]
        if pipeline.union is not None and stream in pipeline.union.inputs:
            name = f"union.inputs.{name}"
        elif pipeline.join is not None and stream == OTHER:
            name = f"join.{name}"
        raise section_error(f"{name}: {error.fact}", hint=error.hint, **context) from None


def start(writing: DataStreamWriter) -> StreamingQuery:
    """Start a query.

    Raises
    ------
    InvalidUsageError
        If Spark refuses the query, for example because of an unknown sink.
    """
    with section("the query cannot start"):
        try:
            return writing.start()
        except Py4JJavaError as error:  # for example, a file system refuses the checkpoint
            raise failure_of(error, "the query cannot start") from None
