"""Checks of fields of a pipeline against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from penstock.conf.document import FieldPath, Problem
from penstock.conf.file_options import wrong_options
from penstock.conf.kafka_source import TEXT_FORMATS, KafkaSource
from penstock.conf.sections import (
    FilesSource,
    Input,
    KafkaSink,
    MarketSource,
    MemorySink,
    ParquetSink,
    PipelineSections,
    PStreamSink,
    Query,
    Queue,
    Sink,
    Source,
    SparkSink,
    TableSection,
    UpsertSink,
    WindowJoinSection,
    WindowSection,
)
from penstock.conf.values import choice
from penstock.errors import InvalidUsageError
from penstock.units import parse_duration_us, window_rows

__all__ = ["LATE_STEPS", "find_disagreements", "side_streams"]


def find_disagreements(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yield the problems between fields that are valid by themselves."""
    yield from _source_problems(pipeline.source, pipeline.query)
    if pipeline.planned_persist == "never" or pipeline.persist == "always":
        # With persist: always, all sources have p-streams, which take every row.
        for place, source in [
            ((), pipeline.source),
            *((at, operator.source) for at, operator in _others(pipeline)),
        ]:
            if isinstance(source, FilesSource) and source.reader != "spark":
                yield (
                    (*place, "source", "reader"),
                    "applies only to windows, and not with persist: always",
                    None,
                )
    for place, other in _others(pipeline):
        for path, fact, hint in _source_problems(other.source, pipeline.query):
            yield (*place, *path), fact, hint
    for path, table in _tables(pipeline):
        for fact, hint in wrong_options(table.format, table.options):
            yield (*path, "options"), fact, hint
    yield from _step_problems(pipeline)
    yield from _sink_problems(pipeline.sink, pipeline.query)
    yield from _side_problems(pipeline)
    if isinstance(pipeline.sink, UpsertSink):
        yield from _upsert_problems(pipeline.sink, pipeline)
    yield from _window_problems(pipeline)
    for name in ("queue", "union"):
        queue = getattr(pipeline, name)
        if queue is not None:
            for path, fact, hint in _queue_problems(queue):
                yield (name, *path[1:]), fact, hint


def _others(pipeline: PipelineSections) -> Iterator[tuple[FieldPath, Input]]:
    """Yield the streams of the pipeline's union or join besides its own source, and their paths."""
    if pipeline.union is not None:
        for name, other in pipeline.union.inputs.items():
            yield ("union", "inputs", name), other
    if pipeline.join is not None:
        yield ("join", "with"), pipeline.join.other


def _tables(pipeline: PipelineSections) -> Iterator[tuple[FieldPath, TableSection]]:
    if pipeline.lookup is not None:
        yield ("lookup", "table"), pipeline.lookup.table
    if pipeline.database is not None:
        for name, table in pipeline.database.initial.items():
            yield ("database", "initial", name), table


LATE_STEPS: Final = ("window", "queue", "union", "join")
"""The sections of a pipeline that may have ``late_to``."""


def side_streams(pipeline: PipelineSections) -> list[tuple[FieldPath, str]]:
    """Return the fields with p-streams of late rows and rejected records, and their locations."""
    sources = [((), pipeline.source), *((place, other.source) for place, other in _others(pipeline))]
    found = [((*place, "source", "reject_to"), getattr(one, "reject_to", None)) for place, one in sources]
    found += [((name, "late_to"), getattr(getattr(pipeline, name), "late_to", None)) for name in LATE_STEPS]
    return [(path, location) for path, location in found if location is not None]


def _side_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yield the p-streams of late rows and rejected records whose location is used for something else."""
    source, sink, query = pipeline.source, pipeline.sink, pipeline.query
    locations = {
        "sink": getattr(sink, "path", None),
        "source": getattr(source, "path", None),
        "query.checkpoint": query.checkpoint,
        "query.state_location": query.state_location,
    }
    streams = side_streams(pipeline)
    for path, location in streams:
        for name, other in locations.items():
            if other is not None and location.rstrip("/") == other.rstrip("/"):
                yield path, f"is the location of {name}", "choose another directory"
        kinds = {at[-1] for at, same in streams if same.rstrip("/") == location.rstrip("/")}
        if len(kinds) > 1:
            yield path, "late rows and rejected records have other columns", "choose another directory"


def _step_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yield the steps that exclude each other: a Spark query can have only one stateful step."""
    union = pipeline.union
    steps = ("union", "join", "database", "operator", "queue", "window")
    present = [name for name in steps if getattr(pipeline, name) is not None]
    if len(present) > 1 and present != ["queue", "window"]:
        yield (
            (present[1],),
            f"cannot be in one pipeline with {present[0]}",
            "a union is an update queue, too"
            if present[:2] == ["union", "queue"]
            else "write one pipeline for each, with files or a topic between",
        )
    if pipeline.results is not None and not set(present) - {"window"}:
        yield ("results",), "needs a queue, a union, a join, a database or an operator", None
    if union is not None and union.semantics not in (None, "update"):
        yield ("union", "semantics"), "does not apply to a union, which has update semantics", "leave it out"
    if union is not None and "source" in union.inputs:
        yield (
            ("union", "inputs", "source"),
            "is the name of the pipeline's own input",
            "give it another name",
        )
    if union is not None and union.prefer is not None and union.prefer not in ("source", *union.inputs):
        yield (("union", "prefer"), *choice(union.prefer, ["source", *union.inputs]))


def _window_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    window, aggregates = pipeline.window, pipeline.aggregates
    if window is not None and aggregates is None:
        yield (
            ("aggregates",),
            "is required with window: a window without aggregates has no result",
            "write a name and an expression for each, such as load: avg(value)",
        )
    if window is None and aggregates is not None:
        yield (("window",), "is required with aggregates", "write its time and its size, such as size: 60 s")
    if aggregates is None:
        for name in ("group_by", "having", "window_join", "by_window"):
            if getattr(pipeline, name) is not None:
                yield ((name,), "needs aggregates, and there are none", "write window and aggregates")
    if window is not None and pipeline.query.state_location is not None:
        yield (
            ("query", "state_location"),
            "the state of windows is in the checkpoint",
            "leave state_location out",
        )
    if window is not None and pipeline.query.retain_versions is not None:
        yield ("query", "retain_versions"), "does not apply to windows", "leave it out"
    if window is not None:
        yield from _service_problems(pipeline, window)
    other = pipeline.window_join
    if other is not None:
        yield from _join_problems(other)
    if window is not None:
        yield from _length_problems(pipeline, window)


def _length_problems(pipeline: PipelineSections, window: WindowSection) -> Iterator[Problem]:
    """Yield the problems of sizes, slide and session."""
    other = pipeline.window_join
    if window.session is not None:
        yield from _session_problems(pipeline, window)
        return
    if window.size is None:
        yield (("window",), "needs a size or a session", "write size: 60 s, or session: 10 minutes")
        return
    try:
        in_rows = window_rows(window.size, window.slide)
    except InvalidUsageError as error:
        field = "size" if window.slide is None else "slide"
        yield ("window", field), error.fact, "write both in rows, the slide at most the size; or both in time"
        return
    if in_rows is not None:
        yield from _separate_problems(pipeline, f"those of {window.size}")
        return
    if other is not None and other.window is not None:
        slide_us = parse_duration_us(window.slide or window.size)
        sizes_us = [parse_duration_us(size) for size in (window.size, other.window.size)]
        if slide_us > sizes_us[1]:
            yield (
                ("window_join", "window", "size"),
                f"{other.window.size!r} is shorter than the slide: rows between windows would be in none",
                f"both have the slide {window.slide or window.size!r}",
            )
        elif (sizes_us[0] - sizes_us[1]) % slide_us:
            yield (
                ("window_join", "window", "size"),
                f"windows of {other.window.size!r} never end with those of {window.size!r}",
                f"let the sizes differ by a multiple of the slide {window.slide or window.size!r}",
            )
    if window.slide is not None:
        size_us, slide_us = parse_duration_us(window.size), parse_duration_us(window.slide)
        if slide_us > size_us:
            yield (
                ("window", "slide"),
                f"{window.slide!r} is longer than the size: rows between windows would be in none",
                "write a slide of at most the size, or leave it out",
            )


def _session_problems(pipeline: PipelineSections, window: WindowSection) -> Iterator[Problem]:
    """Yield the fields that do not fit session windows."""
    for name in ("size", "slide"):
        if getattr(window, name) is not None:
            yield ("window", name), "does not apply to session windows", f"leave out {name} or session"
    if window.mode != "append":
        yield ("window", "mode"), "session windows are only in append mode", "write append"
    yield from _separate_problems(pipeline, "sessions")


def _separate_problems(pipeline: PipelineSections, windows: str) -> Iterator[Problem]:
    """Yield the sections that need the windows of all groups to end together, which `windows` do not."""
    for name in ("window_join", "by_window"):
        if getattr(pipeline, name) is not None:
            yield (
                (name,),
                f"needs windows that end together, unlike {windows}",
                "write a size of time, such as 60 s",
            )


def _service_problems(pipeline: PipelineSections, window: WindowSection) -> Iterator[Problem]:
    """Yield the fields that do not fit the windows' mode."""
    if window.mode == "append":
        for name in window.SERVING:
            if name in window.model_fields_set:
                yield (
                    ("window", name),
                    "does not apply to windows in append mode",
                    "write mode: lazy or mode: eager",
                )
        return
    for name in ("window_join", "by_window"):
        if getattr(pipeline, name) is not None:
            yield (
                (name,),
                f"needs windows in append mode, and these are {window.mode}",
                "write mode: append",
            )


def _join_problems(other: WindowJoinSection) -> Iterator[Problem]:
    if other.by_window is not None:
        for name in ("window", "group_by", "aggregates", "having"):
            if getattr(other, name) is not None:
                yield (
                    ("window_join", name),
                    "cannot be combined with by_window, which uses the pipeline's own windows",
                    "leave one of them out",
                )
    elif other.window is None:
        yield (
            ("window_join", "window"),
            "is required, or by_window",
            "write its size, such as {size: 3600 s}; or by_window, for an aggregate of the same windows",
        )
    elif other.aggregates is None:
        yield (
            ("window_join", "aggregates"),
            "is required with window: a window without aggregates has no result",
            "write a name and an expression for each, such as load: avg(value)",
        )


def _queue_problems(queue: Queue) -> Iterator[Problem]:
    if queue.output_schema is not None and queue.apply is None:
        yield (
            ("queue", "output_schema"),
            "only what apply returns has another schema",
            "set apply, or leave output_schema out",
        )
    if queue.apply is not None and queue.output_schema is None:
        yield (
            ("queue", "output_schema"),
            "is required with apply: it says what apply returns",
            "write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'",
        )
    if isinstance(queue.budget, str) and queue.apply is None:
        yield (
            ("queue", "budget"),
            f"the time {queue.budget!r} needs apply, whose time it limits",
            "set apply, or write a number of rows",
        )


def _source_problems(source: Source, query: Query) -> Iterator[Problem]:
    if isinstance(source, MarketSource):
        ends = source.rows is not None
        if query.trigger == "available_now" and not ends and source.start_time is None:
            yield (
                ("source", "rows"),
                "with the trigger available_now the market has no end",
                "set rows to the number of rows to end at",
            )
        if not source.real_time and not ends and source.max_rows_per_trigger is None:
            yield (
                ("source", "real_time"),
                "without real time a micro-batch has no end",
                "set rows or max_rows_per_trigger",
            )
    elif isinstance(source, FilesSource):
        if source.reader != "spark" and source.format != "parquet":
            yield ("source", "reader"), "Penstock reads Parquet files only", None
        if source.format == "text" and source.columns is not None:
            yield (
                ("source", "schema"),
                "text files have one column, value",
                "split it in the projection",
            )
        if source.format in ("csv", "json") and source.columns is None:
            yield (
                ("source", "schema"),
                f"is required for {source.format} files",
                "write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'",
            )
        if source.reject_to is not None and not source.counts_bad_records:
            yield ("source", "reject_to"), "needs CSV or JSON files with a schema, without a mode", None
        for fact, hint in wrong_options(source.format, source.options):
            yield ("source", "options"), fact, hint
        yield from _reject_problems(source)
    elif isinstance(source, KafkaSource):
        yield from _reject_problems(source)
        option_names = {name.lower() for name in source.options}
        if "kafka.bootstrap.servers" not in option_names:
            yield (
                ("source", "options"),
                "has no kafka.bootstrap.servers",
                "name the brokers, such as kafka.bootstrap.servers: 'localhost:9092'",
            )
        if len(option_names & {"subscribe", "subscribepattern", "assign"}) != 1:
            yield (
                ("source", "options"),
                "needs exactly one of subscribe, subscribePattern, assign",
                "name the topics, such as subscribe: trades",
            )
        ending = sorted(name for name in source.options if name.lower().startswith("ending"))
        if ending:
            yield (
                ("source", "options"),
                f"{ending[0]} does not apply to a stream, which has no end",
                "trigger: available_now reads what is there when the run starts",
            )
        yield from _value_problems(source)


def _value_problems(source: KafkaSource) -> Iterator[Problem]:
    """Yield the problems of a Kafka source's format and schema."""
    kind = source.value_format
    if kind in TEXT_FORMATS and source.columns is None:
        values = "JSON values" if kind == "json" else "change events"
        yield (
            ("source", "schema"),
            f"is required for {values}",
            "write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'",
        )
    has_schema = kind not in (*TEXT_FORMATS, "raw")
    for name in ("value_schema", "message", "registry"):
        if getattr(source, name) is not None and not has_schema:
            yield (
                ("source", name),
                f"does not apply to the format {kind}",
                "set value_format: avro or protobuf",
            )
    subject = source.registry is not None and source.registry.subject is not None
    if has_schema and source.value_schema is None and not subject:
        yield (
            ("source", "value_schema"),
            "is required, or registry with a subject, whose newest schema is used",
            "name the file of the schema",
        )
    if source.message is not None and has_schema and kind != "protobuf":
        yield ("source", "message"), "only Protobuf has messages", "leave it out"
    if kind == "raw":
        if source.columns is not None:
            yield ("source", "schema"), "raw values have no columns", "set value_format: json"
        if source.reject_to is not None:
            yield ("source", "reject_to"), "raw values are not decoded", "set value_format: json"
        if "kafka_columns" in source.model_fields_set:
            yield ("source", "kafka_columns"), "raw records have all of Kafka's columns", "leave it out"


def _reject_problems(source: FilesSource | KafkaSource) -> Iterator[Problem]:
    if source.reject_to is not None and source.on_error == "fail":
        yield (
            ("source", "reject_to"),
            "does not go with on_error: fail, which ends the query",
            "write on_error: skip",
        )


def _upsert_problems(sink: UpsertSink, pipeline: PipelineSections) -> Iterator[Problem]:
    step = pipeline.step
    for name, example in (("key", "symbol"), ("time", "time")):
        if getattr(sink, name) is None and step is None:
            yield (
                ("sink", name),
                "is required without a queue, a union or a join",
                f"write it, such as {name}: {example}",
            )


def _sink_problems(sink: Sink, query: Query) -> Iterator[Problem]:
    if (
        isinstance(sink, ParquetSink | KafkaSink | PStreamSink | SparkSink | UpsertSink)
        and query.checkpoint is None
    ):
        yield (
            ("query", "checkpoint"),
            f"is required for the {sink.type} sink, so that a restart continues where it stopped",
            "name a directory",
        )
    if isinstance(sink, PStreamSink) and sink.keep_deletes is not None and sink.delete_when is None:
        yield ("sink", "keep_deletes"), "needs delete_when", "write delete_when, or leave keep_deletes out"
    if isinstance(sink, KafkaSink):
        option_names = {name.lower() for name in sink.options}
        for option, example in (("kafka.bootstrap.servers", "localhost:9092"), ("topic", "newest")):
            if option not in option_names:
                yield (("sink", "options"), f"has no {option}", f"write it, such as {option}: '{example}'")
    if isinstance(sink, MemorySink) and not re.fullmatch(r"[A-Za-z_]\w*", query.name):
        yield (
            ("query", "name"),
            f"{query.name!r} cannot name a table in memory",
            "use letters, digits and _",
        )
