"""What a pipeline's configuration may hold, and how it is read from a file.

A pipeline is ``source -> filter -> projection -> queue -> sink``, or has a window and aggregates in the
queue's place, or after it. `load_pipeline` reads one from YAML and reports all that is wrong with it at
once. Paths inside a file are relative to the current directory. Nothing here imports pyspark, so checking a
file starts no JVM.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from penstock.conf.document import Document, FieldPath, PipelineError, describe, read_document
from penstock.errors import InvalidUsageError
from penstock.units import parse_duration_us

__all__ = [
    "ConsoleSink",
    "FilesSource",
    "KafkaSink",
    "KafkaSource",
    "MarketSource",
    "MemorySink",
    "NoopSink",
    "ParquetSink",
    "Pipeline",
    "Query",
    "Queue",
    "RateSource",
    "Sink",
    "Source",
    "WindowSection",
    "example_names",
    "example_text",
    "load_document",
    "load_pipeline",
    "refuse_what_cannot_run",
]

FREE_SECTIONS: Final[frozenset[FieldPath]] = frozenset(
    {("source", "options"), ("sink", "options"), ("query", "spark")}
)
"""Sections whose fields are the names of Spark's own options and settings."""


def _wrong(fact: str, hint: str | None = None) -> PydanticCustomError:
    return PydanticCustomError("penstock", "{fact}", {"fact": fact, "hint": hint})


def _show(value: Any) -> str:
    """Return a value as the file would write it, cut where it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _option_text(value: Any) -> str:
    """Turn the value of one of Spark's options into the text that Spark wants."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise _wrong(f"{_show(value)} is not the value of an option", "write text, a number, true or false")


def _empty_section(value: Any) -> Any:
    return {} if value is None else value


def _names(value: Any) -> Any:
    """Turn a name or a list of names into a tuple."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _wrong(f"{_show(value)} is neither a column's name nor a list of them")
    if not names or not all(names):
        raise _wrong("names no column", "write the name of a column, or a list of names")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _wrong(f"names the column {twice[0]!r} twice")
    return tuple(names)


def _texts(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise _wrong(
            f"{_show(value)} is not a list of SQL expressions",
            "write one expression for each column, such as [symbol, 'price * volume AS turnover']",
        )
    if not value or not all(text.strip() for text in value):
        raise _wrong("an expression is missing", "write one SQL expression for each column")
    return tuple(value)


def _aggregates(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) and text for text in value.values()):
        raise _wrong(
            f"{_show(value)} is not a section of SQL aggregates",
            "write a name and an expression for each, such as load: avg(value)",
        )
    if not value:
        raise _wrong("names no aggregate", "write one for each column, such as load: avg(value)")
    return value


def _window_duration(value: Any) -> str | None:
    return None if value is None else _duration(value, least_us=1_000)


def _persist(value: Any) -> Any:
    """Turn what persists into auto, always or never, or these by the names of sources and operators."""
    modes = ("auto", "always", "never")
    for mode in value.values() if isinstance(value, dict) else (value,):
        if mode not in modes:
            fact, hint = _choice(mode, modes)
            raise _wrong(fact, hint)
    return value


def _sql(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise _wrong("is empty", "write a SQL condition, or leave the field out")
    return value


def _duration(value: Any, *, least_us: int) -> str:
    if not isinstance(value, str):
        raise _wrong(f"{_show(value)} is not a duration", "write a number and a unit, such as '800ms'")
    try:
        duration_us = parse_duration_us(value)
    except InvalidUsageError as error:
        raise _wrong(error.fact, error.hint) from None
    if duration_us < least_us:
        raise _wrong(
            f"the duration {value!r} is too short",
            f"it must be at least {'a millisecond' if least_us == 1_000 else 'a microsecond'}",
        )
    return value


def _trigger(value: Any) -> str | None:
    if value is None or value == "available_now":
        return value
    if isinstance(value, str) and not re.search("[0-9]", value):
        near = difflib.get_close_matches(value, ["available_now"])
        hint = "did you mean 'available_now'?" if near else None
        raise _wrong(
            f"{value!r} is neither a duration nor available_now",
            hint or "write a duration such as '1 second', available_now, or null for no pause",
        )
    return _duration(value, least_us=1_000)


def _budget(value: Any) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise _wrong(f"{value} is too small", "it must be at least 1; null drains the queue")
        return value
    if isinstance(value, str):
        return _duration(value, least_us=1)
    raise _wrong(
        f"{_show(value)} is not a budget",
        "write a number of rows, a duration such as '800ms', or null to drain",
    )


def _cost(value: Any) -> str | None:
    return None if value is None else _duration(value, least_us=1)


def _start_time(value: Any) -> int | None:
    """Turn a time of day with its zone into microseconds since the epoch."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    hint = "write it as 2024-01-31T09:30:00Z, or as microseconds since 1970-01-01T00:00:00Z"
    if not isinstance(value, str):
        raise _wrong(f"{_show(value)} is not a time", hint)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise _wrong(f"{value!r} is not a time", hint) from None
    if time.tzinfo is None:
        raise _wrong(f"the time {value!r} has no zone", "end it with Z, or with an offset such as +01:00")
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _function(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", value):
        raise _wrong(
            f"{value!r} is not the name of a function",
            "write module:function, such as my_package.pricing:reprice",
        )
    return value


Text: TypeAlias = Annotated[str, Field(min_length=1)]
Options: TypeAlias = dict[Text, Annotated[str, BeforeValidator(_option_text)]]


class _Section(BaseModel):
    """What all sections share: unknown fields are errors, and nothing is changed after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class MarketSource(_Section):
    """Penstock's market generator (`penstock.market`)."""

    type: Literal["market"]
    rows_per_second: int = Field(default=10_000, ge=1)
    symbols: int = Field(default=3_000, ge=1)
    skew: float = Field(default=4_305.0, ge=1)
    seed: int = 0
    partitions: int = Field(default=2, ge=1)
    start_time: Annotated[int | None, BeforeValidator(_start_time)] = None
    max_rows_per_trigger: int | None = Field(default=None, ge=1)
    rows: int | None = Field(default=None, ge=1)
    real_time: bool = True


class FilesSource(_Section):
    """Files that arrive in a directory; `options` are those of Spark's reader of the format."""

    type: Literal["files"]
    format: Literal["csv", "json", "parquet", "orc", "text"]
    path: Text
    columns: Text | None = Field(default=None, alias="schema")
    options: Options = {}


class KafkaSource(_Section):
    """Topics of Kafka, read by Spark's own connector; `options` are the connector's."""

    type: Literal["kafka"]
    value_format: Literal["json", "raw"] = "raw"
    columns: Text | None = Field(default=None, alias="schema")
    options: Options = {}


class RateSource(_Section):
    """Spark's own counter, with the columns ``timestamp`` and ``value``."""

    type: Literal["rate"]
    rows_per_second: int = Field(default=1, ge=1)
    options: Options = {}


class ConsoleSink(_Section):
    """Prints the rows of every micro-batch."""

    type: Literal["console"]
    rows: int = Field(default=20, ge=1)
    truncate: bool = False


class ParquetSink(_Section):
    """Parquet files, each row in them exactly once."""

    type: Literal["parquet"]
    path: Text
    options: Options = {}


class KafkaSink(_Section):
    """A topic of Kafka: the queue's key as text or JSON, and all columns as JSON, at least once."""

    type: Literal["kafka"]
    options: Options = {}


class MemorySink(_Section):
    """A table in the driver's memory, named as the query; for tests and notebooks."""

    type: Literal["memory"]


class NoopSink(_Section):
    """Takes all rows and keeps none; for measuring."""

    type: Literal["noop"]


Source: TypeAlias = MarketSource | FilesSource | KafkaSource | RateSource
Sink: TypeAlias = ConsoleSink | ParquetSink | KafkaSink | MemorySink | NoopSink


class Queue(_Section):
    """The arguments of `penstock.update_queue`."""

    key: Annotated[tuple[str, ...], BeforeValidator(_names)]
    time: Text
    policy: Literal["fifo", "in_place", "linecutting"] = "in_place"
    budget: Annotated[int | str | None, BeforeValidator(_budget)] = None
    apply: Annotated[str | None, BeforeValidator(_function)] = None
    output_schema: Text | None = None
    buckets: int | None = Field(default=None, ge=1)
    arrival: Text | None = None
    cost: Annotated[str | None, BeforeValidator(_cost)] = None
    nulls: Literal["error", "drop"] = "error"
    combine: Literal["auto", True, False] = "auto"
    staleness_column: bool = False


class WindowSection(_Section):
    """Windows of time, to aggregate in; `unit` is that of a time in whole numbers."""

    time: Text
    size: Annotated[str, BeforeValidator(_window_duration)]
    slide: Annotated[str | None, BeforeValidator(_window_duration)] = None
    unit: Literal["s", "ms", "us", "ns"] | None = None


def _queue_or_window(queue: Queue | None, info: ValidationInfo) -> Queue | None:
    """Refuse a pipeline that has neither a queue nor a window; one that is wrong was meant."""
    if queue is None and info.data.get("window", ...) is None and info.data.get("aggregates", ...) is None:
        raise PydanticCustomError("missing", "is required")
    return queue


class Query(_Section):
    """How Spark runs the pipeline.

    With the trigger available_now the run ends when the input is used up and, with `drain`, no key waits.
    """

    name: Text = "penstock"
    checkpoint: Text | None = None
    trigger: Annotated[str | None, BeforeValidator(_trigger)] = None
    drain: bool = True
    state_location: Text | None = None
    metrics: Text | None = None
    spark: Options = {}


_Persist: TypeAlias = Literal["auto", "always", "never"]


class Pipeline(_Section):
    """A whole pipeline. `load_pipeline` reads one from a file."""

    source: Source = Field(discriminator="type")
    filter: Annotated[Text | None, BeforeValidator(_sql)] = None
    projection: Annotated[tuple[str, ...] | None, BeforeValidator(_texts)] = None
    window: WindowSection | None = None
    group_by: Annotated[tuple[str, ...] | None, BeforeValidator(_texts)] = None
    aggregates: Annotated[dict[Text, Text] | None, BeforeValidator(_aggregates)] = None
    having: Annotated[Text | None, BeforeValidator(_sql)] = None
    persist: Annotated[_Persist | dict[str, _Persist], BeforeValidator(_persist)] = "auto"
    queue: Annotated[Queue | None, AfterValidator(_queue_or_window)] = Field(
        default=None, validate_default=True
    )
    sink: Sink = Field(discriminator="type")
    query: Annotated[Query, BeforeValidator(_empty_section)] = Query()

    @property
    def persists(self) -> bool:
        """Whether it says that something has a p-stream; ``auto`` leaves that to graphs from Python."""
        persist = self.persist
        return persist == "always" or (isinstance(persist, dict) and "always" in persist.values())

    @model_validator(mode="after")
    def _sections_agree(self) -> Pipeline:
        problems = list(_disagreements(self))
        if problems:
            facts = "; ".join(f"{'.'.join(map(str, path))}: {fact}" for path, fact, _ in problems)
            raise PydanticCustomError("sections", "{facts}", {"facts": facts, "problems": problems})
        return self


_Problem: TypeAlias = tuple[FieldPath, str, str | None]


def _disagreements(pipeline: Pipeline) -> Iterator[_Problem]:
    """Yield what is wrong although every field by itself is right."""
    yield from _source_problems(pipeline.source, pipeline.query)
    yield from _sink_problems(pipeline.sink, pipeline.query)
    yield from _window_problems(pipeline)
    if pipeline.queue is not None:
        yield from _queue_problems(pipeline.queue)


def _window_problems(pipeline: Pipeline) -> Iterator[_Problem]:
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
        for name in ("group_by", "having"):
            if getattr(pipeline, name) is not None:
                yield ((name,), "is for aggregates, and there are none", "write window and aggregates")
    if window is not None and window.slide is not None:
        size_us, slide_us = parse_duration_us(window.size), parse_duration_us(window.slide)
        if slide_us > size_us:
            yield (
                ("window", "slide"),
                f"{window.slide!r} is longer than the size: rows between windows would be in none",
                "write a slide of at most the size, or leave it out",
            )


def _queue_problems(queue: Queue) -> Iterator[_Problem]:
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
            f"the time {queue.budget!r} is for a function to spend, and there is none",
            "set apply, or write a number of rows",
        )


def _source_problems(source: Source, query: Query) -> Iterator[_Problem]:
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
        if source.format == "text" and source.columns is not None:
            yield (
                ("source", "schema"),
                "text files have one column, value",
                "take it apart in the projection",
            )
        if source.format in ("csv", "json") and source.columns is None:
            yield (
                ("source", "schema"),
                f"is required for {source.format} files",
                "write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'",
            )
    elif isinstance(source, KafkaSource):
        given = {name.lower() for name in source.options}
        if "kafka.bootstrap.servers" not in given:
            yield (
                ("source", "options"),
                "has no kafka.bootstrap.servers",
                "name the brokers, such as kafka.bootstrap.servers: 'localhost:9092'",
            )
        if len(given & {"subscribe", "subscribepattern", "assign"}) != 1:
            yield (
                ("source", "options"),
                "needs exactly one of subscribe, subscribePattern, assign",
                "name the topics, such as subscribe: trades",
            )
        if source.value_format == "json" and source.columns is None:
            yield (
                ("source", "schema"),
                "is required for JSON values",
                "write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'",
            )
        if source.value_format == "raw" and source.columns is not None:
            yield (("source", "schema"), "raw values have no columns", "set value_format: json")


def _sink_problems(sink: Sink, query: Query) -> Iterator[_Problem]:
    if isinstance(sink, ParquetSink | KafkaSink) and query.checkpoint is None:
        yield (
            ("query", "checkpoint"),
            f"is required for the {sink.type} sink, so that a restart goes on where it was",
            "name a directory",
        )
    if isinstance(sink, KafkaSink):
        given = {name.lower() for name in sink.options}
        for option, example in (("kafka.bootstrap.servers", "localhost:9092"), ("topic", "newest")):
            if option not in given:
                yield (("sink", "options"), f"has no {option}", f"such as {option}: '{example}'")
    if isinstance(sink, MemorySink) and not re.fullmatch(r"[A-Za-z_]\w*", query.name):
        yield (
            ("query", "name"),
            f"{query.name!r} cannot name a table in memory",
            "use letters, digits and _",
        )


_SOURCES: Final[dict[str, type[_Section]]] = {
    "market": MarketSource,
    "files": FilesSource,
    "kafka": KafkaSource,
    "rate": RateSource,
}
_SINKS: Final[dict[str, type[_Section]]] = {
    "console": ConsoleSink,
    "parquet": ParquetSink,
    "kafka": KafkaSink,
    "memory": MemorySink,
    "noop": NoopSink,
}
_UNIONS: Final = {"source": _SOURCES, "sink": _SINKS}
_PARTS: Final[dict[FieldPath, type[_Section]]] = {
    ("queue",): Queue,
    ("window",): WindowSection,
    ("query",): Query,
}


def _fields(section: FieldPath, data: dict[str, Any]) -> list[str]:
    """Return the names that a section's fields may have."""
    model: type[BaseModel] | None = None
    if not section:
        model = Pipeline
    elif section in _PARTS:
        model = _PARTS[section]
    elif section[0] in _UNIONS and len(section) == 1:
        union = data.get(str(section[0]))
        model = _UNIONS[str(section[0])].get(union.get("type", "")) if isinstance(union, dict) else None
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _did_you_mean(got: Any, allowed: Sequence[str], otherwise: str | None) -> str | None:
    near = difflib.get_close_matches(str(got).lower(), allowed, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _choice(got: Any, allowed: Sequence[str]) -> tuple[str, str | None]:
    return f"{_show(got)} is not one of {', '.join(allowed)}", _did_you_mean(got, allowed, None)


def _missing(path: FieldPath) -> str | None:
    kinds = _UNIONS.get(str(path[0])) if path[1:] == ("type",) else None
    if kinds is not None:
        return f"write one of {', '.join(kinds)}"
    if path == ("queue", "key"):
        return "name the column, or the columns, of the update key"
    if path == ("queue", "time"):
        return "name the column whose greatest value is the newest"
    if path == ("window", "time"):
        return "name the column of the time"
    if path == ("window", "size"):
        return "write a duration, such as '60 s'"
    return None


_KINDS: Final[dict[str, tuple[str, str | None]]] = {
    "string_type": ("is not text", "put it in quotes"),
    "int_type": ("is not a whole number", None),
    "int_from_float": ("is not a whole number", None),
    "int_parsing_size": ("is too large a number", None),
    "float_type": ("is not a number", None),
    "finite_number": ("is not a finite number", None),
    "bool_type": ("is neither true nor false", None),
    "model_type": ("is not a section", "write its fields below it, indented"),
    "model_attributes_type": ("is not a section", "write its fields below it, indented"),
    "dict_type": ("is not a section", "write its fields below it, indented"),
}


def _explain(error: ErrorDetails, data: dict[str, Any]) -> list[_Problem]:
    """Say in our own words what pydantic found."""
    path, kind, got, context = error["loc"], error["type"], error["input"], error.get("ctx", {})
    if len(path) > 1 and path[0] in _UNIONS and path[1] in _UNIONS[str(path[0])]:
        path = (path[0], *path[2:])  # pydantic names the member of the union too
    if kind == "sections":
        return list(context["problems"])
    if kind == "penstock":
        return [(path, context["fact"], context["hint"])]
    if kind == "missing":
        return [(path, "is required", _missing(path))]
    if kind == "extra_forbidden":
        allowed = _fields(path[:-1], data)
        listed = f"the fields here are {', '.join(allowed)}"
        return [(path, "unknown field", _did_you_mean(path[-1], allowed, listed))]
    if kind == "union_tag_not_found":
        path = (*path, "type")
        return [(path, "is required", _missing(path))]
    if kind == "union_tag_invalid":
        return [((*path, "type"), *_choice(got["type"], list(_UNIONS[str(path[0])])))]
    if kind == "literal_error":
        allowed = [a or b.lower() for a, b in re.findall(r"'([^']*)'|(True|False)", context["expected"])]
        return [(path, *_choice(got, allowed))]
    if kind == "greater_than_equal":
        return [(path, f"{_show(got)} is too small", f"it must be at least {context['ge']:g}")]
    if kind == "string_too_short":
        return [(path, "is empty", None)]
    if kind in _KINDS:
        fact, hint = _KINDS[kind]
        scalar = got is not None and not isinstance(got, dict | list)
        return [(path, f"{_show(got)} {fact}", hint if scalar else None)]
    return [(path, error["msg"].removesuffix("."), None)]


def _validate(document: Document) -> Pipeline:
    try:
        return Pipeline.model_validate(document.data)
    except ValidationError as error:
        found = [
            problem
            for details in error.errors(include_url=False)
            for problem in _explain(details, document.data)
        ]
    order = list(document.places)

    def position(problem: _Problem) -> int:
        path = problem[0]
        while path and path not in document.places:
            path = path[:-1]
        return order.index(path) if path else -1

    found.sort(key=position)
    raise PipelineError([describe(document.place(path), path, fact, hint) for path, fact, hint in found])


def example_names() -> list[str]:
    """Return the names of the packaged example pipelines."""
    directory = resources.files("penstock.conf") / "pipelines"
    names = [entry.name for entry in directory.iterdir() if entry.name.endswith(".yaml")]
    return sorted(name.removesuffix(".yaml") for name in names)


def example_text(name: str) -> str:
    """Return the YAML of a packaged example.

    Raises
    ------
    InvalidUsageError
        If there is no example of that name.
    """
    names = example_names()
    if name not in names:
        raise InvalidUsageError(
            f"there is no example {name!r}",
            hint=f"the examples are {', '.join(names)}",
        )
    entry = resources.files("penstock.conf") / "pipelines" / f"{name}.yaml"
    return entry.read_text(encoding="utf-8")


def _read(reference: str) -> Document:
    path = Path(reference)
    if not path.is_file() and reference in example_names():
        return read_document(example_text(reference), f"{reference}.yaml (packaged)")
    try:
        return read_document(path.read_text(encoding="utf-8"), reference)
    except FileNotFoundError:
        names = example_names()
        hint = _did_you_mean(reference, names, f"the packaged examples are {', '.join(names)}")
        raise PipelineError([describe(reference, (), "there is no such file", hint)]) from None
    except UnicodeDecodeError:
        raise PipelineError([describe(reference, (), "not text in UTF-8")]) from None
    except OSError as error:
        fact = f"cannot be read: {error.strerror or error}"
        raise PipelineError([describe(reference, (), fact)]) from None


def refuse_what_cannot_run(pipeline: Pipeline) -> Queue:
    """Return the queue of a pipeline that can run; others can only be explained so far.

    Raises
    ------
    InvalidUsageError
        If the pipeline has a part that cannot run yet; its text names the part.
    """
    if pipeline.window is None and pipeline.queue is not None:
        return pipeline.queue
    raise InvalidUsageError(
        "window: windows cannot run from a pipeline yet, as nothing puts their fragments together",
        hint="penstock explain shows the plan of this one",
    )


def load_pipeline(reference: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline from a YAML file.

    Parameters
    ----------
    reference : str or pathlib.Path
        The file; or the name of a packaged example, such as ``market``, where no file has that name.
    overrides : sequence of str
        ``section.field=value`` each, whose value is YAML; they are applied in order.

    Returns
    -------
    Pipeline

    Raises
    ------
    PipelineError
        If anything is wrong, with one line for each problem, which names the file and line, or the
        override, and the field.
    """
    return load_document(reference, overrides)[0]


def load_document(reference: str | Path, overrides: Sequence[str] = ()) -> tuple[Pipeline, Document]:
    """Read a pipeline as `load_pipeline` does; return it and the document that knows each field's place.

    Raises
    ------
    PipelineError
        If anything is wrong.
    """
    document = _read(str(reference))
    problems: list[str] = []
    for override in overrides:
        try:
            document.set(override, FREE_SECTIONS)
        except PipelineError as error:
            problems.extend(error.problems)
    if problems:
        raise PipelineError(problems)
    return _validate(document), document
