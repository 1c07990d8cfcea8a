"""Operators without state, sources and sinks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from penstock.dataflow.nodes.base import Node, distinct, find_column, infer
from penstock.ddl import type_text
from penstock.operators.scan.spec import Scan
from penstock.operators.types import UNKNOWN, declared_type, scan_schema
from penstock.sql.expression import Expression, column
from penstock.units import duration_text

__all__ = [
    "Materialize",
    "PushedScan",
    "Select",
    "Sink",
    "Source",
    "SourceKind",
    "StreamTableJoin",
    "Union",
    "Where",
]

SourceKind: TypeAlias = Literal["push", "files", "parquet", "kafka", "p-stream", "market", "rate", "spark"]

_REPLAYABLE: Final = frozenset(get_args(SourceKind)) - {"push"}


@dataclass(frozen=True, slots=True)
class Source(Node):
    """A source of tuples.

    Parameters
    ----------
    columns : pyarrow.Schema
        The source's columns.
    kind : str
        ``push`` is a program that appends tuples; it cannot replay them. All other kinds can replay.
    options : tuple of pairs of str
        Options of the reader, such as the path.
    update_key : tuple of str
        The update key, if the source is an update stream (UpStream §3.1).
    time : str, optional
        The column that orders the updates of a key.
    rejects_to : str, optional
        The p-stream to which the reader writes records that it cannot read. The node only displays it.
    """

    label: ClassVar[str] = "source"

    columns: pa.Schema
    kind: SourceKind = "push"
    options: tuple[tuple[str, str], ...] = ()
    update_key: tuple[str, ...] = ()
    time: str | None = None
    rejects_to: str | None = None

    def _schema(self) -> pa.Schema:
        if self.kind not in get_args(SourceKind):
            raise self.wrong(
                "the kind of source is unknown", kind=self.kind, known=", ".join(get_args(SourceKind))
            )
        for name in (*self.update_key, *((self.time,) if self.time else ())):
            find_column(self, name, self.columns)
        return distinct(self, self.columns)

    def _key(self) -> tuple[str, ...]:
        return self.update_key

    @property
    def replayable(self) -> bool:
        """Return whether tuples can be read more than once."""
        return self.kind in _REPLAYABLE

    def describe(self) -> str:
        """Return the kind, the update key, and the destination of bad records."""
        kind = f"{self.name} ({self.kind}{', replayable' if self.replayable else ''})"
        kind += f", updates of ({', '.join(self.key)}) by {self.time}" if self.key else ""
        return kind if self.rejects_to is None else f"{kind}, bad records to {self.rejects_to}"


@dataclass(frozen=True, slots=True)
class Where(Node):
    """Selection: keep the tuples for which the predicate is true."""

    label: ClassVar[str] = "where"

    predicate: Expression

    def _schema(self) -> pa.Schema:
        kind = infer(self, self.predicate, self.inputs[0].schema)
        if kind not in (UNKNOWN, pa.bool_()):
            raise self.wrong("a predicate is not boolean", expression=self.predicate.text, type=kind)
        return self.inputs[0].schema

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the required columns and the predicate's columns."""
        return (required | set(self.predicate.columns),)

    def describe(self) -> str:
        """Return the predicate."""
        return self.predicate.text


@dataclass(frozen=True, slots=True)
class Select(Node):
    """Projection: compute the output columns. On an update stream it keeps the update key unchanged."""

    label: ClassVar[str] = "select"

    columns: tuple[tuple[str, Expression], ...]

    def _schema(self) -> pa.Schema:
        schema = self.inputs[0].schema
        if not self.columns:
            raise self.wrong("a select has no columns")
        expressions = dict(self.columns)
        for name in self.inputs[0].key:
            if expressions.get(name) != column(name):
                raise self.wrong(
                    "an update stream would lose its key"
                    if name not in expressions
                    else "the update key would change",
                    f"keep {name} as it is; other columns may be computed from it",
                    column=name,
                )
        for _, expression in self.columns:
            infer(self, expression, schema)
        fields = [pa.field(name, declared_type(expression, schema)) for name, expression in self.columns]
        return distinct(self, pa.schema(fields))

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the columns that the required expressions read."""
        expressions = [expression for name, expression in self.columns if name in required]
        return (frozenset(name for expression in expressions for name in expression.columns),)

    def describe(self) -> str:
        """Return the columns, as a select list."""
        return ", ".join(
            name if expression == column(name) else f"{expression.text} AS {column(name).text}"
            for name, expression in self.columns
        )


@dataclass(frozen=True, slots=True)
class Union(Node):
    """The union of streams with the same columns."""

    label: ClassVar[str] = "union"

    def _schema(self) -> pa.Schema:
        first = self.inputs[0].schema
        for number, other in enumerate(self.inputs[1:], 2):
            if differences := _differences(first, other.schema):
                raise self.wrong(
                    f"the streams of a union differ: stream {number} and the first",
                    "make the same columns with select (in a pipeline, with projection)",
                    **differences,
                )
        return first

    def _key(self) -> tuple[str, ...]:
        keys = {input.key for input in self.inputs}
        if len(keys) > 1:
            raise self.wrong("the update keys of a union differ", keys=" and ".join(map(str, sorted(keys))))
        return keys.pop()


@dataclass(frozen=True, slots=True)
class StreamTableJoin(Node):
    """Lookup in a static table: an inner join by columns of the same name."""

    label: ClassVar[str] = "lookup"

    table: str
    columns: pa.Schema
    on: tuple[str, ...]

    def _schema(self) -> pa.Schema:
        for schema in (self.inputs[0].schema, self.columns):
            for name in self.on:
                find_column(self, name, schema)
        fields = [*self.inputs[0].schema, *(field for field in self.columns if field.name not in self.on)]
        return distinct(self, pa.schema(fields))

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the stream's required columns and the join columns."""
        return ((required | set(self.on)) & set(self.inputs[0].schema.names),)

    def describe(self) -> str:
        """Return the table and the join columns."""
        return f"in {self.table} by {', '.join(self.on)}"


@dataclass(frozen=True, slots=True)
class Materialize(Node):
    """A p-stream: its tuples are durable, compressed and replayable (Scabbard §3.1)."""

    label: ClassVar[str] = "p-stream"

    def describe(self) -> str:
        """Return the name and columns of the p-stream."""
        return f"{self.name}: {', '.join(self.schema.names)}"


@dataclass(frozen=True, slots=True)
class PushedScan(Node):
    """The operators that a reader of a p-stream or of Parquet runs, as one `Scan`."""

    label: ClassVar[str] = "scan"

    scan: Scan

    def _schema(self) -> pa.Schema:
        return scan_schema(self.scan, self.inputs[0].schema)

    def describe(self) -> str:
        """Return the steps of the scan."""
        scan = self.scan
        parts = [] if scan.where is None else [f"where {scan.where}"]
        if scan.select is not None:
            texts = (f"{text} AS {name}" for name, text in scan.select.items() if text != column(name).text)
            items = ", ".join(texts)
            parts += [f"computes {items}"] if items else []
        if scan.latest_by is not None:
            parts.append(f"newest of ({', '.join(scan.latest_by.key)}) by {scan.latest_by.time}")
        if scan.fragments is not None:
            fragments = scan.fragments
            partials = ", ".join(f"{partial.kind}({partial.expression})" for partial in fragments.partials)
            groups = f" and {', '.join(fragments.group_by)}" if fragments.group_by else ""
            parts.append(f"{partials} by {duration_text(fragments.pane_ms)} pane{groups}")
        return "; ".join([f"reads {', '.join(scan.columns) or 'no column'}", *parts])


@dataclass(frozen=True, slots=True)
class Sink(Node):
    """The sink of the results."""

    label: ClassVar[str] = "sink"

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return all columns."""
        return (frozenset(self.inputs[0].schema.names),)

    def describe(self) -> str:
        """Return the kind of the sink."""
        return self.kind


def _differences(first: pa.Schema, other: pa.Schema) -> dict[str, str]:
    """Return how a schema differs from the first, in any order; unknown types match any type."""
    both = [(field, other.field(field.name)) for field in first if field.name in other.names]
    types = [(one, two) for one, two in both if one.type != two.type and UNKNOWN not in (one.type, two.type)]
    differences = {
        "missing": _columns(field for field in first if field.name not in other.names),
        "more": _columns(field for field in other if field.name not in first.names),
        "changed": ", ".join(
            f"{one.name} is {type_text(two.type)}, not {type_text(one.type)}" for one, two in types
        ),
    }
    return {name: text for name, text in differences.items() if text}


def _columns(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{field.name} {type_text(field.type)}" for field in fields)
