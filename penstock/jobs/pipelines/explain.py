"""A pipeline as a graph, and the sample that its plan is measured with; no Spark is started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.conf.document import Document, FieldPath, PipelineError, describe
from penstock.conf.pipeline import (
    FilesSource,
    Input,
    JoinSection,
    KafkaSource,
    MarketSource,
    Pipeline,
    Queue,
    Source,
    UnionSection,
    load_document,
)
from penstock.conf.sections import ByWindowSection, Section, WindowJoinSection, WindowSection
from penstock.errors import InternalError, InvalidUsageError
from penstock.market import MARKET_SCHEMA
from penstock.operators.graph import Graph, PhysicalPlan, graph
from penstock.operators.update_stream.operator_options import Apply, JoinArguments, QueueArguments

__all__ = [
    "OTHER",
    "SOURCE",
    "TABLE",
    "graph_of",
    "join_options",
    "plan_file",
    "queue_options",
    "read_sample",
]

_INSTANT: Final = pa.timestamp("us", "UTC")
_RATE: Final = pa.schema({"timestamp": _INSTANT, "value": pa.int64()})
_KAFKA: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": _INSTANT,
        "timestampType": pa.int32(),
    }
)
_TYPES: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "TEXT": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "TIMESTAMP": pa.timestamp("us"),
}
"""Types of Spark's DDL by sqlglot's names, in which Spark's ``TIMESTAMP`` is ``TIMESTAMPTZ``."""

SOURCE: Final = "source"
"""The name of a pipeline's source in its graph."""
OTHER: Final = "with"
"""The name of the other side of a join."""
TABLE: Final = "table"
"""The name of the static table of a lookup."""


def plan_file(reference: str, overrides: Sequence[str] = (), sample: Path | None = None) -> PhysicalPlan:
    """Return the plan of a pipeline's file.

    Parameters
    ----------
    reference : str
        The file, or the name of a packaged example.
    overrides : sequence of str
        ``section.field=value`` each.
    sample : pathlib.Path, optional
        A file with tuples of the source; see `read_sample`.

    Raises
    ------
    PipelineError
        If the file is wrong, or names a column that is not there: with the line and the field.
    InvalidUsageError
        If the sample cannot be read, or is not of the source.
    """
    pipeline, document = load_document(reference, overrides)
    made = graph_of(pipeline, document)
    statistics = None
    if sample is not None:
        statistics = made.measure(read_sample(sample))
    with _field(document, "persist"):
        return made.plan(statistics, pipeline.persist)


def graph_of(pipeline: Pipeline, document: Document | None = None) -> Graph:
    """Return a pipeline as a graph of operators.

    Parameters
    ----------
    pipeline : Pipeline
        What was read.
    document : Document, optional
        Where its fields were written, for errors.

    Raises
    ------
    PipelineError
        If expressions are wrong, or name columns that are not there: with a line for each.
    """
    place = document or Document("pipeline", {})
    place.problems.clear()
    made = _input(pipeline, pipeline.query.name, SOURCE, place)
    if pipeline.lookup is not None:
        with _field(place, "lookup"):
            schema = _from_ddl(pipeline.lookup.table.columns)
            made = made.lookup(TABLE, schema, on=pipeline.lookup.key, name="lookup")
    if pipeline.queue is not None:
        with _field(place, "queue", goes_on=True):
            made = _queued(made, pipeline.queue)
    if pipeline.union is not None:
        made = _united(made, pipeline.union, place)
    if pipeline.join is not None:
        made = _joined(made, pipeline.join, place)
    if pipeline.results is not None:
        if pipeline.results.filter is not None:
            with _field(place, "results", "filter", goes_on=True):
                made = made.where(pipeline.results.filter, name="results.filter")
        if pipeline.results.projection is not None:
            with _field(place, "results", "projection"):
                made = made.select(*pipeline.results.projection, name="results.projection")
    if pipeline.window is not None:
        made = _windows(made, pipeline, pipeline.window, place)
    if place.problems:
        raise PipelineError(place.problems)
    return made.sink(pipeline.sink.type)


def _windows(made: Graph, pipeline: Pipeline, window: WindowSection, place: Document) -> Graph:
    """Return windows and their aggregates, joined with others, and aggregated by window."""
    before = made
    # What is not given stays so: in append mode a policy is refused, also the default.
    serving = {name: getattr(window, name) for name in window.SERVING if name in window.model_fields_set}
    with _field(place, "window"):
        made = made.window(
            window.time, size=window.size, slide=window.slide, unit=window.unit,
            watermark_delay=window.watermark_delay, mode=window.mode, **serving,
        )  # fmt: skip
    made = _aggregated(made, pipeline, place)
    join = pipeline.window_join
    if join is not None:
        if join.by_window is not None:
            other = _aggregated(made, join.by_window, place, "window_join", "by_window")
        else:
            other = _other_windows(before, window, join, place)
        with _field(place, "window_join"):
            made = made.join_windows(other, on=join.key or (), condition=join.condition, name="window_join")
    if pipeline.by_window is not None:
        made = _aggregated(made, pipeline.by_window, place, "by_window")
    return made


def _other_windows(before: Graph, window: WindowSection, join: WindowJoinSection, place: Document) -> Graph:
    """Return the windows that those of a pipeline are joined with, of the same stream."""
    own = join.window
    if own is None:
        raise InternalError("a join of windows is with a window, or by window")
    with _field(place, "window_join", "window"):
        other = before.window(
            own.time or window.time,
            size=own.size,
            slide=window.slide or window.size,
            unit=own.unit or (window.unit if own.time is None else None),
            watermark_delay=own.watermark_delay or window.watermark_delay,
            name="window_join.window",
        )
    return _aggregated(other, join, place, "window_join")


def _aggregated(
    made: Graph, section: Pipeline | WindowJoinSection | ByWindowSection, place: Document, *path: str
) -> Graph:
    """Return the aggregates of groups, and what of them is kept."""
    prefix = "".join(f"{part}." for part in path)
    with _field(place, *path, "group_by"):
        groups = section.group_by or ()
        made = _grouped(made, ("window", *groups) if isinstance(section, ByWindowSection) else groups)
    with _field(place, *path, "aggregates"):
        made = made.agg(section.aggregates or {}, name=f"{prefix}aggregates")
    if section.having is not None:
        with _field(place, *path, "having", goes_on=True):
            made = made.where(section.having, name=f"{prefix}having")
    return made


def _input(section: Pipeline | Input, graph_name: str, name: str, place: Document, *path: str) -> Graph:
    """Return a source, and the filter and the projection that follow it."""
    with _field(place, *path, "source"):
        kind, options = _kind_of(section.source)
        made = graph(graph_name).source(name, schema_of(section.source), kind=kind, options=options)
    prefix = "" if name == SOURCE else f"{name}."
    if section.filter is not None:
        with _field(place, *path, "filter", goes_on=True):
            made = made.where(section.filter, name=f"{prefix}filter")
    if section.projection is not None:
        with _field(place, *path, "projection"):
            made = made.select(*section.projection, name=f"{prefix}projection")
    return made


def _united(made: Graph, union: UnionSection, place: Document) -> Graph:
    others = [
        _input(other, made.name, name, place, "union", "inputs", name) for name, other in union.inputs.items()
    ]
    with _field(place, "union"):
        prefer = None if union.prefer is None else [SOURCE, *union.inputs].index(union.prefer)
        return made.union(
            *others, key=union.key, time=union.time, prefer=prefer, name="union",
            **queue_options(union, _not_called),
        )  # fmt: skip


def _joined(made: Graph, join: JoinSection, place: Document) -> Graph:
    other = _input(join.other, made.name, OTHER, place, "join", "with")
    with _field(place, "join"):
        return made.join(
            other, on=join.key, time=join.time, within=join.within, condition=join.condition, unit=join.unit,
            updates=True, name="join", **join_options(join),
        )  # fmt: skip


def queue_options(queue: Queue, apply: Apply | None) -> dict[str, Any]:
    """Return the options of an update queue, with the function that it names, if it names one."""
    found = _given(queue, QueueArguments.__annotations__)
    return found | {"apply": apply} if queue.apply is not None else found


def join_options(join: JoinSection) -> dict[str, Any]:
    """Return the options of a join."""
    return _given(join, JoinArguments.__annotations__)


def _given(section: Section, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of these names that a section has and that are not null."""
    found = {name: getattr(section, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _not_called(table: pa.Table) -> pa.Table:
    """Stand for the function of a queue, which is imported when the pipeline runs."""
    raise InternalError("the function of a pipeline that does not run")


def _grouped(made: Graph, texts: Sequence[str]) -> Graph:
    from penstock.operators.sql.expression import named

    groups = [(text, *named(text)) for text in texts]
    columns = [text for text, name, one in groups if one.is_column and name in one.columns]
    return made.group_by(*columns, **{name: one.text for text, name, one in groups if text not in columns})


def _queued(made: Graph, queue: Queue) -> Graph:
    return made.update_queue(
        queue.key,
        queue.time,
        name="queue",
        **queue_options(queue, _not_called),
    )


@contextmanager
def _field(document: Document, *path: str, goes_on: bool = False) -> Iterator[None]:
    """Say which field, in which line or override, an error is about.

    Parameters
    ----------
    goes_on : bool
        Whether the sections that follow can be checked without this one: then the error is kept for later.
    """
    try:
        yield
    except PipelineError:
        raise
    except InvalidUsageError as error:
        context = "".join(f" {name}={value}" for name, value in error.context.items() if name != "node")
        fact = f"{error.fact}:{context}" if context else error.fact
        problem = describe(_place_of(document, path, fact), path, fact, error.hint)
        document.problems.append(problem)
        if not goes_on:
            raise PipelineError(document.problems) from error


def _place_of(document: Document, path: FieldPath, fact: str) -> str:
    """Return where a section was written; if what is wrong with it is the value of an override, that."""
    for at, place in document.places.items():
        if at[: len(path)] == path and place.startswith("--set ") and str(document.value(at)) in fact:
            return place
    return document.place(path)


def _kind_of(source: Source) -> tuple[Any, dict[str, str]]:
    if isinstance(source, FilesSource):
        if source.reader == "penstock":
            return "parquet", {**source.options, "path": source.path}
        return "files", {"format": source.format, "path": source.path}
    return source.type, {}


def schema_of(source: Source) -> pa.Schema:
    """Return the columns of a source.

    Raises
    ------
    InvalidUsageError
        If they are in files that are not there, or have a type that is not known.
    """
    if isinstance(source, MarketSource):
        return MARKET_SCHEMA
    if isinstance(source, KafkaSource):
        if source.columns is None:
            return _KAFKA
        return _from_ddl(source.columns).append(pa.field("kafka_timestamp", _INSTANT))
    if isinstance(source, FilesSource):
        if source.columns is not None:
            return _from_ddl(source.columns)
        return pa.schema({"value": pa.string()}) if source.format == "text" else _in_files(source)
    return _RATE


def _in_files(source: FilesSource) -> pa.Schema:
    import pyarrow.dataset as ds

    try:
        found: pa.Schema = ds.dataset(source.path, format=source.format).schema
    except (OSError, pa.ArrowException) as error:
        raise InvalidUsageError(
            f"its columns cannot be read: {str(error).partition('. ')[0]}",
            hint="write schema, as in CREATE TABLE",
        ) from None
    return found


def _from_ddl(text: str) -> pa.Schema:
    """Return the columns of Spark's DDL: ``symbol STRING, price DOUBLE``."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect="spark")
    except SqlglotError:
        raise InvalidUsageError("the schema is not written as in CREATE TABLE", schema=text) from None
    columns = [one for one in tree.this.expressions if isinstance(one, exp.ColumnDef)]
    return pa.schema([(one.name, _from_sql(one.args.get("kind"), text)) for one in columns])


def _from_sql(kind: Any, text: str) -> pa.DataType:
    from sqlglot import exp

    if kind is None:
        raise InvalidUsageError("a column of the schema has no type", schema=text)
    name = kind.this.name
    inner = [part.this if isinstance(part, exp.DataTypeParam) else part for part in kind.expressions]
    if name == "DECIMAL":
        numbers = [int(part.this) for part in inner] + [10, 0][len(inner) :]
        return pa.decimal128(*numbers)
    if name == "ARRAY":
        return pa.list_(_from_sql(inner[0], text))
    if name == "MAP":
        return pa.map_(_from_sql(inner[0], text), _from_sql(inner[1], text))
    if name == "STRUCT":
        return pa.struct([(part.name, _from_sql(part.args.get("kind"), text)) for part in inner])
    if name not in _TYPES:
        raise InvalidUsageError("a type of the schema is not known", type=kind.sql(), schema=text)
    return _TYPES[name]


def read_sample(path: Path) -> pa.Table:
    """Return the tuples of a file: Parquet, CSV with names, JSON lines, Arrow, or lines of text.

    Raises
    ------
    InvalidUsageError
        If there is no such file, or its name or content is none of these.
    """
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.json
    import pyarrow.parquet

    readers = {
        ".parquet": pyarrow.parquet.read_table,
        ".csv": pyarrow.csv.read_csv,
        ".json": pyarrow.json.read_json,
        ".ndjson": pyarrow.json.read_json,
        ".arrow": pyarrow.feather.read_table,
        ".feather": pyarrow.feather.read_table,
        ".txt": lambda file: pa.table({"value": file.read_text().splitlines()}),
    }
    reader = readers.get(path.suffix)
    if reader is None:
        raise InvalidUsageError("a sample of an unknown format", file=path, known=", ".join(readers))
    try:
        return reader(path)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise InvalidUsageError(f"the sample cannot be read: {error}", file=path) from None
