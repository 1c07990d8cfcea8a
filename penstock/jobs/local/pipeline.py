"""Open a pipeline on the local engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock._clock import Clock, now_us
from penstock.conf.document import Document, FieldPath, PipelineError, describe
from penstock.conf.kafka_source import TEXT_FORMATS
from penstock.conf.pipeline import (
    ConsoleSink,
    FilesSource,
    KafkaSource,
    MarketSource,
    MemorySink,
    NoopSink,
    ParquetSink,
    Pipeline,
    PStreamSink,
    PStreamSource,
    Source,
    TableSection,
    UpsertSink,
)
from penstock.dataflow import Graph, nodes
from penstock.dataflow.nodes import Node, rebuild
from penstock.ddl import parse_schema
from penstock.errors import InternalError, InvalidUsageError
from penstock.jobs.local.late_decoding import decode_results, encoded_schema
from penstock.jobs.local.sources import open_source, read_table, resolve_path
from penstock.jobs.pipelines.functions import import_function
from penstock.jobs.pipelines.graph import (
    OTHER,
    SOURCE,
    TABLE,
    Binding,
    checkpoint_of,
    field_errors,
    graph_of,
    p_stream_options,
    problem_of,
)
from penstock.jobs.pipelines.schemas import schema_of
from penstock.local_engine.builder import NodeRows, OpenInput
from penstock.local_engine.checks import USE_SPARK, find_refusals
from penstock.local_engine.field_texts import is_zone
from penstock.local_engine.file_formats import check_options
from penstock.local_engine.inputs import Input
from penstock.local_engine.outputs import (
    ConsoleOutput,
    MemoryOutput,
    NoOutput,
    Output,
    ParquetOutput,
    PStreamOutput,
    UpsertOutput,
)
from penstock.local_engine.records.kafka_options import KafkaOptions
from penstock.local_engine.start import LocalGraph, OpenOutput, start_local
from penstock.spark_ext.border.types import as_arrow_of_spark, spark_schema

__all__ = [
    "BoundGraph",
    "Places",
    "bind_graph",
    "check_local_pipeline",
    "open_pipeline",
    "parallel_of",
    "source_schemas",
]

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_SETTINGS: Final = frozenset({_PARTITIONS, _TIME_ZONE})
"""The settings of Spark that the local engine follows."""


@dataclass(frozen=True, slots=True)
class Places:
    """Replacements for parts of a pipeline, for tests; by default none.

    Parameters
    ----------
    inputs : mapping of str to Input
        Sources that replace the pipeline's sources, by their names in its graph.
    output : callable, optional
        Opens a sink that replaces the pipeline's sink.
    checkpoint : str, optional
        A checkpoint that replaces the pipeline's checkpoint.
    clock : Clock
        The time of micro-batches.
    """

    inputs: Mapping[str, Input] = field(default_factory=dict)
    output: OpenOutput | None = None
    checkpoint: str | None = None
    clock: Clock = now_us


def check_local_pipeline(
    pipeline: Pipeline, document: Document | None = None, places: Places | None = None
) -> Graph:
    """Check that the local engine can run a pipeline; return its graph.

    Raises
    ------
    PipelineError
        If the local engine cannot run the pipeline, with a line for each reason.
    """
    document, places = document or Document("pipeline", {}), places or Places()
    problems = list(_problems(pipeline, document, places))
    try:
        graph = _graph(pipeline, document, places, partial(_columns, places))
    except PipelineError as error:
        raise PipelineError([*error.problems, *problems]) from error
    with field_errors(document, "persist"):
        plan = graph.plan(None, pipeline.planned_persist)
    for refusal in find_refusals(plan.root):
        path = document.path_of_node(refusal.context.get("node"))
        fact = refusal.fact if path else f"{refusal.fact} ({refusal.context.get('node')})"
        problems.append(describe(document.place(path), path, fact, refusal.hint))
    if problems:
        raise PipelineError(problems)
    return graph


def _graph(
    pipeline: Pipeline,
    document: Document,
    places: Places,
    columns: Callable[[str, Source | TableSection], pa.Schema],
) -> Graph:
    return _with_readable_sources(graph_of(pipeline, document, _binding(columns)), pipeline, places)


def _binding(columns: Callable[[str, Source | TableSection], pa.Schema]) -> Binding:
    return Binding(columns, partial(import_function, field="apply"), resolve_path)


def _problems(pipeline: Pipeline, document: Document, places: Places) -> Iterator[str]:
    """Yield the sections that the local engine does not support."""

    def problem(fact: str, *path: str | int) -> str:
        return describe(document.place(path), path, fact, USE_SPARK)

    for (path, source), name in zip(_sources(pipeline), _names(pipeline), strict=True):
        if name in places.inputs:
            continue
        if not isinstance(source, FilesSource | KafkaSource | MarketSource | PStreamSource):
            yield problem(f"the local engine has no source {source.type}", *path, "type")
        if isinstance(source, FilesSource) and "://" in source.path:
            yield problem("the local engine reads only local files", *path, "path")
        if isinstance(source, FilesSource):
            yield from _wrong_options(document, source, *path)
        if isinstance(source, KafkaSource):
            try:
                KafkaOptions.parse(source.options)
            except InvalidUsageError as error:
                yield problem_of(document, (*path, "options"), error)
        try:
            _check_types(source)
        except InvalidUsageError as error:
            yield problem_of(document, (*path, "schema"), error)
    if pipeline.lookup is not None:
        yield from _wrong_options(document, pipeline.lookup.table, "lookup", "table")
    if places.output is None and not isinstance(
        pipeline.sink, ConsoleSink | MemorySink | NoopSink | ParquetSink | PStreamSink | UpsertSink
    ):
        yield problem(f"the local engine has no sink {pipeline.sink.type}", "sink", "type")
    if isinstance(pipeline.sink, ParquetSink) and pipeline.sink.options:
        yield problem("the local engine knows no options of Parquet", "sink", "options")
    if not is_zone(zone := _zone(pipeline)):
        hint = "write a name such as Europe/Berlin, or an offset such as +02:00"
        yield describe(
            document.place(("query", "spark")),
            ("query", "spark", _TIME_ZONE),
            f"the local engine does not know the time zone {zone!r}",
            hint,
        )
    for name in sorted(pipeline.query.spark.keys() - _SETTINGS):
        if name.startswith("spark.sql."):
            yield problem(f"the local engine does not know {name}", "query", "spark")


def _zone(pipeline: Pipeline) -> str:
    """Return the zone of times without a zone; by default that of a session that Penstock opens."""
    return pipeline.query.spark.get(_TIME_ZONE, "UTC")


def _wrong_options(document: Document, files: FilesSource | TableSection, *path: str | int) -> Iterator[str]:
    """Yield a problem for each option of a file reader that the local engine does not know."""
    try:
        check_options(files.format, files.options)
    except InvalidUsageError as error:
        at = (*path, "options")
        fact = f"{error.fact}: options={error.context['options']}"
        yield describe(document.place(at), at, fact, error.hint)


def _check_types(source: Source) -> None:
    """Check that the columns of a source have types that JSON values can have."""
    # Only sources of JSON load the decoder.
    if isinstance(source, FilesSource) and source.format == "json" and source.counts_bad_records:
        from penstock.local_engine.records.json_decoder import check_json_types

        check_json_types(as_arrow_of_spark(spark_schema(schema_of(source))))
    elif isinstance(source, KafkaSource) and source.decoded_format in TEXT_FORMATS:
        from penstock.local_engine.records.kafka_values import check_text_types

        check_text_types(source, as_arrow_of_spark(spark_schema(schema_of(source))))


def _sources(pipeline: Pipeline) -> list[tuple[FieldPath, Source]]:
    found: list[tuple[FieldPath, Source]] = [(("source",), pipeline.source)]
    if pipeline.union is not None:
        for name, other in pipeline.union.inputs.items():
            found.append((("union", "inputs", name, "source"), other.source))
    if pipeline.join is not None:
        found.append((("join", "with", "source"), pipeline.join.other.source))
    return found


def _names(pipeline: Pipeline) -> list[str]:
    others = [] if pipeline.union is None else list(pipeline.union.inputs)
    return [SOURCE, *others, *([] if pipeline.join is None else [OTHER])]


def _columns(places: Places, name: str, section: Source | TableSection) -> pa.Schema:
    if name in places.inputs:
        return as_arrow_of_spark(places.inputs[name].schema)
    return schema_of(section)


def _with_readable_sources(graph: Graph, pipeline: Pipeline, places: Places) -> Graph:
    """Return the graph with its sources as kinds whose readers may make fragments of windows.

    The planner lets only Penstock's own readers make fragments of windows. In this engine, every source has
    such a reader.
    """

    def change(node: Node) -> Node:
        if not isinstance(node, nodes.Source):
            return node
        if node.kind == "p-stream" and node.name not in places.inputs:
            return node
        if pipeline.window is not None:
            return replace(node, kind="parquet", options=())
        return node if node.kind != "p-stream" else replace(node, kind="files", options=())

    return replace(graph, root=rebuild(graph.root, change))


def open_pipeline(
    pipeline: Pipeline, document: Document | None = None, places: Places | None = None
) -> LocalGraph:
    """Open a pipeline at its checkpoint. Nothing runs yet.

    Raises
    ------
    InvalidUsageError
        If the local engine cannot run the pipeline, or the checkpoint belongs to a different pipeline.
    CorruptDataError, UnavailableError
        If the checkpoint is damaged, or the file system refuses.
    """
    document, places = document or Document("pipeline", {}), places or Places()
    bound = bind_graph(pipeline, document, places)
    query, source = pipeline.query, pipeline.source
    return start_local(
        bound.graph,
        places.checkpoint or checkpoint_of(pipeline),
        sources=bound.sources,
        paths=bound.paths,
        tables=bound.tables,
        sink=places.output or partial(_output, pipeline, document),
        persist=pipeline.planned_persist,
        parallel=parallel_of(pipeline),
        max_rows=source.max_rows_per_trigger if isinstance(source, PStreamSource) else None,
        drain=query.drain,
        clock=places.clock,
        finish=bound.finish,
        # Only windows change the kinds of sources; see `_with_readable_sources`.
        shown=None
        if pipeline.window is None
        else graph_of(pipeline, document, _binding(partial(_columns, places))),
    )


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """A pipeline's graph, with the bindings of its sources and tables.

    Parameters
    ----------
    graph : Graph
        The graph.
    sources : mapping of str to callable
        Opens the sources that are not p-streams.
    paths : mapping of str to str
        The locations of the sources that are p-streams.
    tables : mapping of str to pyarrow.Table
        The tables of lookups.
    finish : callable
        The last step before the sink: a function from the graph's rows to the rows for the sink.
    """

    graph: Graph
    sources: Mapping[str, OpenInput]
    paths: Mapping[str, str]
    tables: Mapping[str, pa.Table]
    finish: Callable[[NodeRows], NodeRows]


def bind_graph(
    pipeline: Pipeline, document: Document | None = None, places: Places | None = None
) -> BoundGraph:
    """Return the graph of a pipeline with its sources and tables.

    Raises
    ------
    InvalidUsageError
        If the local engine cannot run the pipeline.
    """
    document, places = document or Document("pipeline", {}), places or Places()
    graph = check_local_pipeline(pipeline, document, places)
    late = pipeline.decodes_late and SOURCE not in places.inputs
    sources: dict[str, OpenInput] = {}
    paths: dict[str, str] = {}
    zone = _zone(pipeline)
    for (place, source), name in zip(_sources(pipeline), _names(pipeline), strict=True):
        if name in places.inputs:
            sources[name] = _given(places.inputs[name])
        elif isinstance(source, PStreamSource):
            paths[name] = resolve_path(source.path)
        else:
            path = ".".join(map(str, place))
            sources[name] = partial(open_source, source, path, zone, decodes_late=late)
    tables = {}
    if pipeline.lookup is not None:
        tables[TABLE] = read_table(pipeline.lookup.table, zone)
    if pipeline.database is not None:
        for name, section in pipeline.database.initial.items():
            tables[name] = read_table(section, zone)
    if not (late and isinstance(pipeline.source, KafkaSource)):
        return BoundGraph(graph, sources, paths, tables, lambda node_rows: node_rows)
    finish = partial(decode_results, graph=graph, source=pipeline.source, place=SOURCE, zone=zone)
    schema = encoded_schema(pipeline.source)
    encoded = pipeline.model_copy(update={"results": None})
    graph = _graph(encoded, document, places, lambda name, section: schema)
    return BoundGraph(graph, sources, paths, tables, finish)


def parallel_of(pipeline: Pipeline) -> int:
    """Return Spark's shuffle partitions for a pipeline."""
    return int(pipeline.query.spark.get(_PARTITIONS, 1))


def source_schemas(pipeline: Pipeline, schemas: Mapping[str, str]) -> dict[str, StructType]:
    """Return the columns of a pipeline's sources, by name; `schemas` gives some of them as DDL.

    Raises
    ------
    InvalidUsageError
        If there is no such source, or the columns of a source are not known.
    """
    names = _names(pipeline)
    if unknown := [name for name in schemas if name not in names]:
        raise InvalidUsageError("there is no such source", source=unknown[0], known=", ".join(names))
    return {
        name: spark_schema(parse_schema(schemas[name]) if name in schemas else schema_of(source))
        for (_, source), name in zip(_sources(pipeline), names, strict=True)
    }


def _given(source: Input) -> OpenInput:
    return lambda log: source


def _output(pipeline: Pipeline, document: Document, schema: StructType, checkpoint: str) -> Output:
    """Open the pipeline's sink."""
    sink, arrow = pipeline.sink, as_arrow_of_spark(schema)
    if isinstance(sink, ConsoleSink):
        return ConsoleOutput(arrow, sink.rows, sink.truncate)
    if isinstance(sink, MemorySink):
        return MemoryOutput(arrow)
    if isinstance(sink, NoopSink):
        return NoOutput()
    if isinstance(sink, ParquetSink):
        return ParquetOutput(resolve_path(sink.path), arrow, checkpoint)
    if isinstance(sink, PStreamSink):
        return PStreamOutput(p_stream_options(sink) | {"path": resolve_path(sink.path)}, schema, checkpoint)
    if isinstance(sink, UpsertSink):
        step = pipeline.step
        key, time = sink.key or (step and step.key), sink.time or (step and step.time)
        if not key or not time:
            raise InternalError("an upsert without key and time passed the checks")
        with field_errors(document, "sink"):
            return UpsertOutput(
                schema, to=sink.to, table=sink.table, key=tuple(key), time=time, delete_when=sink.delete_when,
                forget_deletes_after=sink.forget_deletes_after, create=sink.create, patience=sink.patience,
            )  # fmt: skip
    raise InternalError("a sink passed the check of the local engine", sink=sink.type)
