"""Translate pydantic's errors in a pipeline into Penstock's messages."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from penstock.conf.document import FieldPath, Problem
from penstock.conf.kafka_source import KafkaSource, RegistrySection
from penstock.conf.sections import (
    ByWindowSection,
    ConsoleSink,
    DatabaseSection,
    FilesSource,
    ForeachBatchSink,
    Input,
    JoinSection,
    KafkaSink,
    LookupSection,
    MarketSource,
    MemorySink,
    NoopSink,
    OperatorSection,
    OtherWindow,
    ParquetSink,
    PStreamSink,
    PStreamSource,
    Query,
    Queue,
    RateSource,
    ResultsSection,
    SparkSink,
    SparkSource,
    TableSection,
    UnionSection,
    UpsertSink,
    WindowJoinSection,
    WindowSection,
)
from penstock.conf.values import Section, choice, did_you_mean, show

__all__ = ["REQUIRED", "UNKNOWN_FIELD", "explain_error"]

REQUIRED: Final = "is required"
UNKNOWN_FIELD: Final = "unknown field"

_SOURCES: Final[dict[str, type[Section]]] = {
    "market": MarketSource,
    "files": FilesSource,
    "kafka": KafkaSource,
    "pstream": PStreamSource,
    "spark": SparkSource,
    "rate": RateSource,
}
_SINKS: Final[dict[str, type[Section]]] = {
    "console": ConsoleSink,
    "parquet": ParquetSink,
    "kafka": KafkaSink,
    "pstream": PStreamSink,
    "spark": SparkSink,
    "foreach_batch": ForeachBatchSink,
    "upsert": UpsertSink,
    "memory": MemorySink,
    "noop": NoopSink,
}
_STORES: Final = (
    "postgresql", "postgres", "mysql", "mariadb", "sqlite", "duckdb", "redis", "rediss", "delta", "iceberg"
)  # fmt: skip
_SINK_HINTS: Final = {
    **{name: f"write type: upsert, and the address in to, such as {name}://" for name in _STORES},
    **{name: f"write type: spark and format: {name}" for name in ("csv", "json", "orc", "text", "avro")},
}
_UNIONS: Final = {"source": _SOURCES, "sink": _SINKS}
_PARTS: Final[dict[FieldPath, type[Section]]] = {
    ("source", "registry"): RegistrySection,
    ("union", "inputs", "*", "source", "registry"): RegistrySection,
    ("join", "with", "source", "registry"): RegistrySection,
    ("queue",): Queue,
    ("window",): WindowSection,
    ("window_join",): WindowJoinSection,
    ("window_join", "window"): OtherWindow,
    ("window_join", "by_window"): ByWindowSection,
    ("by_window",): ByWindowSection,
    ("union",): UnionSection,
    ("union", "inputs", "*"): Input,
    ("operator",): OperatorSection,
    ("database",): DatabaseSection,
    ("database", "initial", "*"): TableSection,
    ("join",): JoinSection,
    ("join", "with"): Input,
    ("lookup",): LookupSection,
    ("lookup", "table"): TableSection,
    ("results",): ResultsSection,
    ("query",): Query,
}


def _fields(section: FieldPath, data: dict[str, Any], root: type[BaseModel]) -> list[str]:
    """Return the names that a section's fields may have."""
    model: type[BaseModel] | None = root
    at: Any = data
    for place, part in enumerate(section):
        at = at.get(part) if isinstance(at, dict) else None
        if part in _UNIONS:
            model = _UNIONS[str(part)].get(at.get("type", "")) if isinstance(at, dict) else None
        else:
            model = _PARTS.get(_general(section[: place + 1]))
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _place_of_unknown(path: FieldPath, data: dict[str, Any], root: type[BaseModel]) -> str | None:
    """Return the hint for an unknown field: its right place, a similar field, or all fields there."""
    name, allowed = path[-1], _fields(path[:-1], data, root)
    if name in _fields((), data, root):
        return f"write {name} at the top level of the file"
    others = data.keys() - _UNIONS  # the fields of sources and sinks depend on their type
    if owners := [section for section in others if name in _fields((section,), data, root)]:
        return f"{name} is a field of {' and '.join(sorted(owners))}"
    return did_you_mean(name, allowed, f"the fields here are {', '.join(allowed)}")


def _general(path: FieldPath) -> FieldPath:
    """Return a path with ``*`` for the name of a union's input, or of a database's table."""
    named = path[:2] in (("union", "inputs"), ("database", "initial"))
    return (*path[:2], "*", *path[3:]) if named and len(path) > 2 else path


def _explain_missing(path: FieldPath) -> str | None:
    kinds = _UNIONS.get(str(path[-2])) if path[-1] == "type" and len(path) > 1 else None
    if kinds is not None:
        return f"write one of {', '.join(kinds)}"
    if path[1:] == ("key",) and path[0] != "lookup":
        return "name the column, or the columns, of the update key"
    if path in (("queue", "time"), ("union", "time")):
        return "name the column whose greatest value is the newest"
    if path in (("window", "time"), ("join", "time")):
        return "name the column of the time"
    if path == ("join", "within"):
        return "write how far two times may be apart, such as '10 s'"
    if path == ("join", "with"):
        return "write the other stream: its source, and if need be its filter and projection"
    if path == ("union", "inputs"):
        return "write a name and a source for each other input"
    if path == ("operator", "class"):
        return "write module:Class, such as my_package.sessions:Sessions"
    if path == ("database", "file"):
        return "name the Python file that makes the database"
    if path == ("database", "procedure"):
        return "name the procedure that runs for each row"
    if path[-1] == "function":
        return "write module:function, such as my_package.tables:write"
    if path[-1] == "schema":
        return "write the columns as in CREATE TABLE, such as 'symbol STRING, price DOUBLE'"
    if path == ("lookup", "key"):
        return "name the column, or the columns, of stream and table"
    if path[-1] == "aggregates":
        return "write a name and an expression for each, such as load: avg(value)"
    if path == ("window", "size"):
        return "write a duration, such as '60 s', or a number of rows, such as '100 rows'"
    if path == ("window_join", "window", "size"):
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


def explain_error(error: ErrorDetails, data: dict[str, Any], root: type[BaseModel]) -> list[Problem]:
    """Return the problems in a pydantic error as Penstock's messages."""
    path, kind, got, context = error["loc"], error["type"], error["input"], error.get("ctx", {})
    for place in range(len(path) - 1, 0, -1):
        before = path[place - 1]
        if before in _UNIONS and path[place] in _UNIONS[str(before)]:
            path = (*path[:place], *path[place + 1 :])  # pydantic's path also names the member of the union
    if kind == "sections":
        return list(context["problems"])
    if kind == "penstock":
        return [(path, context["fact"], context["hint"])]
    if kind == "missing":
        return [(path, REQUIRED, _explain_missing(path))]
    if kind == "extra_forbidden":
        return [(path, UNKNOWN_FIELD, _place_of_unknown(path, data, root))]
    if kind == "union_tag_not_found":
        path = (*path, "type")
        return [(path, REQUIRED, _explain_missing(path))]
    if kind == "union_tag_invalid":
        fact, hint = choice(got["type"], list(_UNIONS[str(path[-1])]))
        if path[-1] == "sink":
            hint = _SINK_HINTS.get(str(got["type"]).lower(), hint)
        return [((*path, "type"), fact, hint)]
    if kind == "literal_error":
        allowed = [a or b.lower() for a, b in re.findall(r"'([^']*)'|(True|False)", context["expected"])]
        return [(path, *choice(got, allowed))]
    if kind == "too_short":
        return [(path, "is empty", _explain_missing(path))]
    if kind == "greater_than_equal":
        return [(path, f"{show(got)} is too small", f"it must be at least {context['ge']:g}")]
    if kind == "string_too_short":
        return [(path, "is empty", None)]
    if kind in _KINDS:
        fact, hint = _KINDS[kind]
        scalar = got is not None and not isinstance(got, dict | list)
        return [(path, f"{show(got)} {fact}", hint if scalar else None)]
    return [(path, error["msg"].removesuffix("."), None)]
