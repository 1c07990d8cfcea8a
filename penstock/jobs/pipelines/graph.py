"""A pipeline as a graph of operators; no Spark is started."""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.conf.document import Document, FieldPath, PipelineError, describe
from penstock.conf.pipeline import (
    DatabaseSection,
    FilesSource,
    Input,
    JoinSection,
    OperatorSection,
    Pipeline,
    PStreamSink,
    PStreamSource,
    Queue,
    Source,
    SparkSource,
    TableSection,
    UnionSection,
    load_document,
)
from penstock.conf.sections import ByWindowSection, WindowJoinSection, WindowSection
from penstock.conf.values import Section
from penstock.dataflow import Graph, PhysicalPlan, graph
from penstock.ddl import parse_schema
from penstock.errors import InternalError, InvalidUsageError
from penstock.jobs.cluster.modules import import_beside
from penstock.jobs.pipelines.databases import check_rows, procedure_of
from penstock.jobs.pipelines.schemas import read_sample, schema_of
from penstock.operators.own.abc import load_operator
from penstock.operators.update_stream.operator_options import (
    Apply,
    JoinArguments,
    QueueArguments,
    TransactionArguments,
)
from penstock.procedures.analysis.counts import TransactionCounts
from penstock.sql.expression import split_alias

__all__ = [
    "OTHER",
    "SOURCE",
    "TABLE",
    "Binding",
    "checkpoint_of",
    "field_errors",
    "graph_of",
    "p_stream_options",
    "plan_file",
    "problem_of",
    "queue_options",
    "read_counts",
]

SOURCE: Final = "source"
"""The name of a pipeline's source in its graph."""
OTHER: Final = "with"
"""The name of the other side of a join."""
TABLE: Final = "table"
"""The name of the static table of a lookup."""


def _fail(table: pa.Table) -> pa.Table:
    """Raise an error; a placeholder for a queue's function, which is imported when the pipeline runs."""
    raise InternalError("the function of a pipeline that does not run")


@dataclass(frozen=True, slots=True)
class Binding:
    """Provides columns, functions and locations for a pipeline's graph; the defaults are for planning only.

    Parameters
    ----------
    columns : callable
        Returns the columns of a source or table, given its name in the graph and its section.
    function : callable
        Returns a queue's function by its name.
    resolve : callable
        Returns a location in the form that the graph's queries use.
    """

    columns: Callable[[str, Source | TableSection], pa.Schema] = lambda name, section: schema_of(section)
    function: Callable[[str], Apply] = lambda name: _fail
    resolve: Callable[[str], str] = str


def plan_file(reference: str, overrides: Sequence[str] = (), sample: Path | None = None) -> PhysicalPlan:
    """Return the plan of a pipeline's file.

    Parameters
    ----------
    reference : str
        The file, or the name of a packaged example.
    overrides : sequence of str
        Fields to override, each as ``section.field=value``.
    sample : pathlib.Path, optional
        A file with tuples of the source; see `read_sample`.

    Raises
    ------
    PipelineError
        If the file is wrong or names an unknown column, with the line and the field.
    InvalidUsageError
        If the sample cannot be read, or does not match the source.
    """
    pipeline, document = load_document(reference, overrides)
    import_beside(pipeline, reference)
    flow = graph_of(pipeline, document)
    statistics = None if sample is None else flow.measure(read_sample(sample))
    with field_errors(document, "persist"):
        return flow.plan(statistics, pipeline.planned_persist)


def read_counts(reference: str, overrides: Sequence[str] = ()) -> dict[str, TransactionCounts]:
    """Return the transactions in a pipeline's checkpoint, by operator.

    Raises
    ------
    InvalidUsageError
        If the pipeline has no checkpoint, or the checkpoint has no state.
    """
    # The part that needs Spark is loaded only if a checkpoint is read.
    from penstock.spark_ext.forwarding.counts import count_by_operator

    query = load_document(reference, overrides)[0].query
    if query.checkpoint is None:
        raise InvalidUsageError("the pipeline has no checkpoint", hint="set query.checkpoint")
    return count_by_operator(query.checkpoint, query.state_location)


def graph_of(pipeline: Pipeline, document: Document | None = None, binding: Binding | None = None) -> Graph:
    """Return a pipeline as a graph of operators.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    document : Document, optional
        The positions of the pipeline's fields, for errors.
    binding : Binding, optional
        The bindings with which the graph runs.

    Raises
    ------
    PipelineError
        If expressions are wrong or name unknown columns, with a line for each problem.
    """
    place = document or Document("pipeline", {})
    place.problems.clear()
    return _Builder(pipeline, place, binding or Binding()).build()


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the graph of a pipeline, section by section, and collects the problems of its fields."""

    pipeline: Pipeline
    document: Document
    binding: Binding

    def build(self) -> Graph:
        pipeline = self.pipeline
        flow = self._input(pipeline, SOURCE)
        if pipeline.lookup is not None:
            with self._field("lookup"):
                schema = self.binding.columns(TABLE, pipeline.lookup.table)
                flow = flow.lookup(TABLE, schema, on=pipeline.lookup.key, name="lookup")
        before = flow
        if pipeline.queue is not None:
            with self._field("queue", goes_on=True):
                options = self._queue_options(pipeline.queue, "queue")
                flow = flow.update_queue(pipeline.queue.key, pipeline.queue.time, name="queue", **options)
        if pipeline.union is not None:
            flow = self._union(flow, pipeline.union)
        if pipeline.join is not None:
            flow = self._join(flow, pipeline.join)
        if pipeline.database is not None:
            flow = self._transactions(flow, pipeline.database)
        if pipeline.operator is not None:
            flow = self._operator(flow, pipeline.operator)
        # If the queue is wrong, the columns that it adds are missing, so the results cannot be checked.
        if pipeline.results is not None and (pipeline.queue is None or flow is not before):
            if pipeline.results.filter is not None:
                with self._field("results", "filter", goes_on=True):
                    flow = flow.where(pipeline.results.filter, name="results.filter")
            if pipeline.results.projection is not None:
                with self._field("results", "projection"):
                    flow = flow.select(*pipeline.results.projection, name="results.projection")
        if pipeline.window is not None:
            flow = self._windows(flow, pipeline.window)
        if self.document.problems:
            raise PipelineError(self.document.problems)
        if isinstance(pipeline.sink, PStreamSink):
            place = {"path": self.binding.resolve(pipeline.sink.path)}
            return flow.sink("pstream", **p_stream_options(pipeline.sink), **place)
        return flow.sink(pipeline.sink.type)

    def _field(self, *path: str, goes_on: bool = False) -> Any:
        return field_errors(self.document, *path, goes_on=goes_on)

    def _input(self, section: Pipeline | Input, name: str, *path: str) -> Graph:
        """Return a source, and the filter and the projection that follow it."""
        with self._field(*path, "source"):
            kind, options = _kind_of(section.source)
            columns = self._columns(name, section.source, *path, "source")
            rejects_to = getattr(section.source, "reject_to", None)
            flow = graph(self.pipeline.query.name).source(
                name, columns, kind=kind, options=options, rejects_to=rejects_to
            )
        prefix = "" if name == SOURCE else f"{name}."
        if section.filter is not None:
            with self._field(*path, "filter", goes_on=True):
                flow = flow.where(section.filter, name=f"{prefix}filter")
        if section.projection is not None:
            with self._field(*path, "projection"):
                flow = flow.select(*section.projection, name=f"{prefix}projection")
        return flow

    def _columns(self, name: str, source: Source, *path: str) -> pa.Schema:
        schema = (*path, "schema")
        with self._field(*(schema if schema in self.document.places else path)):
            return self.binding.columns(name, source)

    def _queue_options(self, queue: Queue, name: str) -> dict[str, Any]:
        if queue.output_schema is not None:
            with self._field(name, "output_schema"):
                parse_schema(queue.output_schema)
        apply = None if queue.apply is None else self.binding.function(queue.apply)
        return queue_options(queue, apply) | self._late(queue) | self._location

    def _late(self, section: Queue | JoinSection | WindowSection) -> dict[str, Any]:
        return {} if section.late_to is None else {"late_to": self.binding.resolve(section.late_to)}

    @property
    def _location(self) -> dict[str, Any]:
        found = _collect_fields(self.pipeline.query, ("retain_versions", "state_location"))
        location = found.get("state_location")
        return found if location is None else found | {"state_location": self.binding.resolve(location)}

    def _union(self, flow: Graph, union: UnionSection) -> Graph:
        others = [self._input(other, name, "union", "inputs", name) for name, other in union.inputs.items()]
        with self._field("union"):
            prefer = None if union.prefer is None else [SOURCE, *union.inputs].index(union.prefer)
            return flow.union(
                *others, key=union.key, time=union.time, prefer=prefer, name="union",
                **self._queue_options(union, "union"),
            )  # fmt: skip

    def _join(self, flow: Graph, join: JoinSection) -> Graph:
        other = self._input(join.other, OTHER, "join", "with")
        with self._field("join"):
            return flow.join(
                other, on=join.key, time=join.time, within=join.within, condition=join.condition,
                unit=join.unit, updates=True, name="join",
                **_collect_fields(join, JoinArguments.__annotations__) | self._late(join), **self._location,
            )  # fmt: skip

    def _operator(self, flow: Graph, section: OperatorSection) -> Graph:
        with self._field("operator"):
            operator = load_operator(section.name, section.arguments)
            return flow.apply(
                operator, section.key, time=section.time, name="operator", buckets=section.buckets,
                **self._location,
            )  # fmt: skip

    def _transactions(self, flow: Graph, database: DatabaseSection) -> Graph:
        with self._field("database"):
            procedure = procedure_of(database)
        for name, table in database.initial.items():
            with self._field("database", "initial", name):
                check_rows(schema_of(table), procedure.tables, name)
        with self._field("database"):
            return flow.transactions(
                procedure, time=database.time, keep=database.keep,
                initial=tuple(database.initial), name="database",
                **_collect_fields(database, TransactionArguments.__annotations__), **self._location,
            )  # fmt: skip

    def _windows(self, flow: Graph, window: WindowSection) -> Graph:
        """Return windows and their aggregates, joined with other windows, and aggregated by window."""
        before = flow
        # Leave out fields that the user did not set, because append mode refuses any policy, even the default
        # policy.
        serving = {name: getattr(window, name) for name in window.SERVING if name in window.model_fields_set}
        serving |= self._late(window)
        with self._field("window"):
            flow = flow.window(
                window.time, size=window.size, slide=window.slide, session=window.session, unit=window.unit,
                watermark_delay=window.watermark_delay, mode=window.mode, delete_when=window.delete_when,
                **serving,
            )  # fmt: skip
        flow = self._aggregates(flow, self.pipeline)
        join = self.pipeline.window_join
        if join is not None:
            if join.by_window is not None:
                other = self._aggregates(flow, join.by_window, "window_join", "by_window")
            else:
                other = self._other_windows(before, window, join)
            with self._field("window_join"):
                flow = flow.join_windows(
                    other, on=join.key or (), condition=join.condition, name="window_join"
                )
        if self.pipeline.by_window is not None:
            flow = self._aggregates(flow, self.pipeline.by_window, "by_window")
        return flow

    def _other_windows(self, before: Graph, window: WindowSection, join: WindowJoinSection) -> Graph:
        """Return the second windows over the same stream, to be joined with the pipeline's windows."""
        own = join.window
        if own is None:
            raise InternalError("a join of windows is with a window, or by window")
        with self._field("window_join", "window"):
            other = before.window(
                own.time or window.time,
                size=own.size,
                slide=window.slide or window.size,
                unit=own.unit or (window.unit if own.time is None else None),
                watermark_delay=own.watermark_delay or window.watermark_delay,
                name="window_join.window",
            )
        return self._aggregates(other, join, "window_join")

    def _aggregates(
        self, flow: Graph, section: Pipeline | WindowJoinSection | ByWindowSection, *path: str
    ) -> Graph:
        """Return the aggregates of groups, and the columns to keep."""
        prefix = "".join(f"{part}." for part in path)
        with self._field(*path, "group_by"):
            groups = section.group_by or ()
            flow = _group(flow, ("window", *groups) if isinstance(section, ByWindowSection) else groups)
        with self._field(*path, "aggregates"):
            flow = flow.agg(section.aggregates or {}, name=f"{prefix}aggregates")
        if section.having is not None:
            with self._field(*path, "having", goes_on=True):
                flow = flow.where(section.having, name=f"{prefix}having")
        return flow


def queue_options(queue: Queue, apply: Apply | None) -> dict[str, Any]:
    """Return the options of an update queue, including the function if it names one."""
    options = _collect_fields(queue, QueueArguments.__annotations__)
    return options | {"apply": apply} if queue.apply is not None else options


def _collect_fields(section: Section, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields with these names that a section has, if not null."""
    values = {name: getattr(section, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _group(flow: Graph, texts: Sequence[str]) -> Graph:
    groups = [(text, *split_alias(text)) for text in texts]
    columns = [text for text, name, one in groups if one.is_column and name in one.columns]
    return flow.group_by(*columns, **{name: one.text for text, name, one in groups if text not in columns})


@contextmanager
def field_errors(document: Document, *path: str, goes_on: bool = False) -> Iterator[None]:
    """Add a field, and the line or override that sets it, to an error.

    Parameters
    ----------
    goes_on : bool
        Whether later sections can be checked without this section. If so, the error is collected, not raised.
    """
    try:
        yield
    except PipelineError:
        raise
    except InvalidUsageError as error:
        document.problems.append(problem_of(document, _field_of(document, path, error), error))
        if not goes_on:
            raise PipelineError(document.problems) from error


def problem_of(document: Document, path: FieldPath, error: InvalidUsageError) -> str:
    """Return the line for an error in a field."""
    context = "".join(f" {name}={value}" for name, value in error.context.items() if name != "node")
    fact = f"{error.fact}:{context}" if context else error.fact
    return describe(_place_of(document, path, fact, error), path, fact, error.hint)


def _field_of(document: Document, path: FieldPath, error: InvalidUsageError) -> FieldPath:
    """Return the field of a section that an error names, directly or by its value; otherwise the section."""
    if (option := (*path, error.context.get("option"))) in document.places:
        return option
    names = [error.context.get(name) for name in ("column", "missing", "expression")]
    found = set()
    for at in document.places:
        value, field = document.value(at), at[: len(path) + 1]
        is_named = at[: len(path)] == path and at != path and isinstance(field[-1], str)
        is_own = is_named and (at == field or isinstance(at[-1], int))
        if is_own and isinstance(value, str) and (value in names or repr(value) in error.fact):
            found.add(field)
    return found.pop() if len(found) == 1 else path


def _place_of(document: Document, path: FieldPath, fact: str, error: InvalidUsageError) -> str:
    """Return the position of a section, or the override whose value is wrong."""
    name = error.context.get("name")  # of a function or class, which is quoted in the value
    for at, place in document.places.items():
        value = str(document.value(at))
        is_named = value in fact or (name is not None and f"'{name}'" in value)
        if at[: len(path)] == path and place.startswith("--set ") and is_named:
            return place
    return document.place(path)


def _kind_of(source: Source) -> tuple[Any, dict[str, str]]:
    if isinstance(source, FilesSource):
        if source.reader == "penstock":
            return "parquet", {**source.options, "path": source.path}
        return "files", {"format": source.format, "path": source.path}
    if isinstance(source, PStreamSource):
        return "p-stream", {"path": source.path}
    if isinstance(source, SparkSource):
        return "spark", {"format": source.format}
    return source.type, {}


def p_stream_options(sink: PStreamSink) -> dict[str, str]:
    """Return the options of the data source, including the options of an update log."""
    log = {
        "key": None if sink.key is None else json.dumps(sink.key),
        "time": sink.time,
        "deleteWhen": sink.delete_when,
        "keepDeletes": sink.keep_deletes,
    }
    return {**sink.options, **{name: text for name, text in log.items() if text is not None}}


def checkpoint_of(pipeline: Pipeline) -> str:
    """Return the graph's directory; a temporary directory if none is given."""
    if pipeline.query.checkpoint is not None:
        return pipeline.query.checkpoint
    # The query may outlive its handle, so the directory is deleted only when the process ends.
    temporary = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
    atexit.register(temporary.cleanup)
    return temporary.name
