"""The operators of a graph: immutable nodes that hold their inputs, so that a node is the graph above it.

Every node knows its output's schema, and is checked when it is made: by the builder, and again by every
rule that rewrites it. A column whose type only Spark knows has the type `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.expression import Expression, column, did_you_mean
from penstock.operators.graph.types import UNKNOWN, aggregate_type, expression_type, scan_schema
from penstock.operators.partials import Decomposition, decompose, pane_ms
from penstock.operators.scan import PANE, Scan, TimeUnit

__all__ = [
    "UNKNOWN",
    "WINDOW",
    "Aggregate",
    "Assemble",
    "Fused",
    "Join",
    "Node",
    "PStream",
    "Select",
    "Sink",
    "Source",
    "SourceKind",
    "StreamTableJoin",
    "Union",
    "UpdateQueue",
    "Where",
    "Window",
    "infer",
    "rebuild",
    "topological",
]

WINDOW: Final = "window"
"""The column of an aggregate that says of which window it is: a struct of ``start`` and ``end``."""

SourceKind: TypeAlias = Literal["push", "files", "kafka", "p-stream", "market", "rate"]

_REPLAYABLE: Final = frozenset({"files", "kafka", "p-stream", "market", "rate"})
_INSTANT: Final = pa.timestamp("us", "UTC")
_WINDOW_TYPE: Final = pa.struct({"start": _INSTANT, "end": _INSTANT})


@dataclass(frozen=True, slots=True)
class Node:
    """What all operators share.

    Parameters
    ----------
    name : str
        Unique in a graph as it was built.
    inputs : tuple of Node
        Where its tuples come from.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of its output.
    key : tuple of str
        The update key, if its output is an update stream; else empty.
    """

    stateful: ClassVar[bool] = False
    label: ClassVar[str] = "node"

    name: str
    inputs: tuple[Node, ...]
    schema: pa.Schema = field(init=False, compare=False, repr=False)
    key: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", self._schema())
        object.__setattr__(self, "key", self._key())

    def _schema(self) -> pa.Schema:
        return self.inputs[0].schema

    def _key(self) -> tuple[str, ...]:
        return self.inputs[0].key if self.inputs else ()

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return which columns of each input it needs to make the required columns of its output."""
        return tuple(required for _ in self.inputs)

    def describe(self) -> str:
        """Return what it does, on one line, without its label."""
        return ""

    def wrong(self, fact: str, hint: str | None = None, **context: Any) -> InvalidUsageError:
        """Return the error that says what is wrong with it."""
        return InvalidUsageError(fact, hint=hint, **context, node=self.name)


@dataclass(frozen=True, slots=True)
class Source(Node):
    """Where tuples come from.

    Parameters
    ----------
    columns : pyarrow.Schema
        What it yields.
    kind : str
        ``push``: a program that appends and cannot be asked again; others can replay.
    options : tuple of pairs of str
        What the one that reads it is told, such as its path.
    """

    label: ClassVar[str] = "source"

    columns: pa.Schema
    kind: SourceKind = "push"
    options: tuple[tuple[str, str], ...] = ()

    def _schema(self) -> pa.Schema:
        if self.kind not in get_args(SourceKind):
            raise self.wrong(
                "there is no such kind of source", kind=self.kind, known=", ".join(get_args(SourceKind))
            )
        return _distinct(self, self.columns)

    @property
    def replayable(self) -> bool:
        """Whether tuples that were read once can be read again."""
        return self.kind in _REPLAYABLE

    def describe(self) -> str:
        """Return its kind."""
        return f"{self.name} ({self.kind}{', replayable' if self.replayable else ''})"


@dataclass(frozen=True, slots=True)
class Where(Node):
    """Selection: keeps the tuples for which the predicate is true."""

    label: ClassVar[str] = "where"

    predicate: Expression

    def _schema(self) -> pa.Schema:
        kind = infer(self, self.predicate, self.inputs[0].schema)
        if kind not in (UNKNOWN, pa.bool_()):
            raise self.wrong("a predicate is not boolean", expression=self.predicate.text, type=kind)
        return self.inputs[0].schema

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Add the predicate's columns."""
        return (required | set(self.predicate.columns),)

    def describe(self) -> str:
        """Return the predicate."""
        return self.predicate.text


@dataclass(frozen=True, slots=True)
class Select(Node):
    """Projection: computes its output's columns. On an update stream it keeps the update key as it is."""

    label: ClassVar[str] = "select"

    columns: tuple[tuple[str, Expression], ...]

    def _schema(self) -> pa.Schema:
        schema = self.inputs[0].schema
        if not self.columns:
            raise self.wrong("a select has no columns")
        made = dict(self.columns)
        for name in self.inputs[0].key:
            if made.get(name) != column(name):
                raise self.wrong(
                    "an update stream would lose its key"
                    if name not in made
                    else "the update key would change",
                    f"select {name} as it is; other columns may be computed from it",
                    column=name,
                )
        fields = [pa.field(name, infer(self, expression, schema)) for name, expression in self.columns]
        return _distinct(self, pa.schema(fields))

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the columns of the expressions that are required."""
        kept = [expression for name, expression in self.columns if name in required]
        return (frozenset(name for expression in kept for name in expression.columns),)

    def describe(self) -> str:
        """Return the columns, as a select list."""
        return ", ".join(
            name if expression == column(name) else f"{expression.text} AS {column(name).text}"
            for name, expression in self.columns
        )


@dataclass(frozen=True, slots=True)
class Window(Node):
    """Says into which windows of time the aggregate after it puts tuples; ``[start, end)``, as Spark's."""

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "window"

    time: str
    time_unit: TimeUnit
    size_ms: int
    slide_ms: int

    def _schema(self) -> pa.Schema:
        _known(self, self.time, self.inputs[0].schema)
        _ = self.pane_ms
        return self.inputs[0].schema

    @property
    def pane_ms(self) -> int:
        """The length of its panes."""
        return pane_ms(self.size_ms, self.slide_ms)

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Add the time."""
        return (required | {self.time},)

    def describe(self) -> str:
        """Return size, slide and time."""
        return f"{_duration(self.size_ms)} by {_duration(self.slide_ms)} over {self.time}"


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """Aggregates each group: of a window, or of the `WINDOW` of an aggregate before it.

    The output has the group's columns, `WINDOW`, and the aggregates.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "aggregate"

    group_by: tuple[str, ...]
    aggregates: tuple[tuple[str, Expression], ...]

    def _schema(self) -> pa.Schema:
        schema = self.inputs[0].schema
        if not self.aggregates:
            raise self.wrong("nothing is aggregated", "such as agg(load='avg(value)')")
        windowed = isinstance(self.inputs[0], Window)
        if not windowed and WINDOW not in self.group_by:
            raise self.wrong("an aggregate over a stream needs a window", "call window(...) before group_by")
        fields = [_known(self, name, schema) for name in self.group_by]
        if windowed:
            fields.append(pa.field(WINDOW, _WINDOW_TYPE))
        for name, expression in self.aggregates:
            for used in expression.columns:
                _known(self, used, schema, expression)
            fields.append(pa.field(name, aggregate_type(expression, schema)))
        _ = self.decomposition
        return _distinct(self, pa.schema(fields))

    def _key(self) -> tuple[str, ...]:
        return ()

    @property
    def decomposition(self) -> Decomposition | None:
        """The aggregates as partials; None where that cannot be."""
        window = self.inputs[0]
        time = window.time if isinstance(window, Window) else WINDOW
        texts = {name: expression.text for name, expression in self.aggregates}
        return decompose(texts, time, self.group_by)

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the group's columns and what is aggregated."""
        used = {name for _, expression in self.aggregates for name in expression.columns}
        return (frozenset(used | set(self.group_by)),)

    def describe(self) -> str:
        """Return groups and aggregates."""
        made = ", ".join(f"{expression.text} AS {name}" for name, expression in self.aggregates)
        return f"{made} by {', '.join(self.group_by)}" if self.group_by else made


@dataclass(frozen=True, slots=True)
class UpdateQueue(Node):
    """An update queue (UpStream §3): of each key only the newest tuple waits.

    Parameters
    ----------
    update_key, time, policy, budget
        As of `penstock.update_queue`.
    combine : bool
        Whether tuples may be conflated before they reach the queue.
    options : tuple of pairs
        Its other arguments.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "update queue"

    update_key: tuple[str, ...]
    time: str
    policy: str = "in_place"
    budget: int | str | None = None
    combine: bool = True
    options: tuple[tuple[str, Any], ...] = ()

    def _schema(self) -> pa.Schema:
        schema = self.inputs[0].schema
        for name in (*self.update_key, self.time, *self._arrival()):
            _known(self, name, schema)
        # What `apply` returns is written in Spark's DDL: its columns are known when the graph runs.
        return schema

    def _arrival(self) -> tuple[str, ...]:
        arrival = dict(self.options).get("arrival")
        return () if arrival is None else (arrival,)

    def _key(self) -> tuple[str, ...]:
        return self.update_key

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Add key and time; a function in it may need every column."""
        if "apply" in dict(self.options):
            return (frozenset(self.inputs[0].schema.names),)
        return (required | {*self.update_key, self.time, *self._arrival()},)

    def describe(self) -> str:
        """Return key, time, policy and budget."""
        budget = "" if self.budget is None else f", budget {self.budget}"
        return f"({', '.join(self.update_key)}) newest by {self.time}, {self.policy}{budget}"


@dataclass(frozen=True, slots=True)
class Union(Node):
    """All tuples of streams of the same columns."""

    label: ClassVar[str] = "union"

    def _schema(self) -> pa.Schema:
        first = self.inputs[0].schema
        for other in self.inputs[1:]:
            if other.schema != first:
                raise self.wrong(
                    "the streams of a union differ",
                    "make the same columns in the same order with select",
                    first=_columns(first),
                    other=_columns(other.schema),
                )
        return first

    def _key(self) -> tuple[str, ...]:
        keys = {input.key for input in self.inputs}
        if len(keys) > 1:
            raise self.wrong("the update keys of a union differ", keys=" and ".join(map(str, sorted(keys))))
        return keys.pop()


@dataclass(frozen=True, slots=True)
class Join(Node):
    """Joins two streams by columns of the same name, within an interval of time."""

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "join"

    on: tuple[str, ...]
    time: str
    within_ms: int
    condition: Expression | None = None

    def _schema(self) -> pa.Schema:
        left, right = (input.schema for input in self.inputs)
        for schema in (left, right):
            for name in (*self.on, self.time):
                _known(self, name, schema)
        shared = {*self.on, self.time}
        fields = [*left, *(one for one in right if one.name not in shared)]
        schema = _distinct(self, pa.schema(fields))
        if self.condition is not None:
            infer(self, self.condition, schema)
        return schema

    def _key(self) -> tuple[str, ...]:
        return self.on if all(input.key for input in self.inputs) else ()

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return for each side what is required of it, with keys and time."""
        used = required | {*self.on, self.time} | set(self.condition.columns if self.condition else ())
        return tuple(used & set(input.schema.names) for input in self.inputs)

    def describe(self) -> str:
        """Return keys, interval and condition."""
        more = f" and {self.condition.text}" if self.condition else ""
        return f"on {', '.join(self.on)} within {_duration(self.within_ms)} of {self.time}{more}"


@dataclass(frozen=True, slots=True)
class StreamTableJoin(Node):
    """Looks columns of a static table up: an inner join with it, by columns of the same name."""

    label: ClassVar[str] = "lookup"

    table: str
    columns: pa.Schema
    on: tuple[str, ...]

    def _schema(self) -> pa.Schema:
        for schema in (self.inputs[0].schema, self.columns):
            for name in self.on:
                _known(self, name, schema)
        fields = [*self.inputs[0].schema, *(one for one in self.columns if one.name not in self.on)]
        return _distinct(self, pa.schema(fields))

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return what is required of the stream, with the keys."""
        return ((required | set(self.on)) & set(self.inputs[0].schema.names),)

    def describe(self) -> str:
        """Return table and keys."""
        return f"in {self.table} by {', '.join(self.on)}"


@dataclass(frozen=True, slots=True)
class PStream(Node):
    """A p-stream: what reaches it is durable, compressed, and can be read again (Scabbard §3.1)."""

    label: ClassVar[str] = "p-stream"

    def describe(self) -> str:
        """Return its name and columns."""
        return f"{self.name}: {', '.join(self.schema.names)}"


@dataclass(frozen=True, slots=True)
class Fused(Node):
    """What a p-stream's reader does before a tuple leaves it: operators that became one `Scan`."""

    label: ClassVar[str] = "scan"

    scan: Scan

    def _schema(self) -> pa.Schema:
        return scan_schema(self.scan, self.inputs[0].schema)

    def describe(self) -> str:
        """Return its steps."""
        scan = self.scan
        parts = [] if scan.where is None else [f"where {scan.where}"]
        if scan.select is not None:
            made = (f"{text} AS {name}" for name, text in scan.select.items() if text != column(name).text)
            computed = ", ".join(made)
            parts += [f"computes {computed}"] if computed else []
        if scan.latest_by is not None:
            parts.append(f"newest of ({', '.join(scan.latest_by.key)}) by {scan.latest_by.time}")
        if scan.fragments is not None:
            found = scan.fragments
            partials = ", ".join(f"{one.kind}({one.expression})" for one in found.partials)
            groups = f" and {', '.join(found.group_by)}" if found.group_by else ""
            parts.append(f"{partials} by {_duration(found.pane_ms)} pane{groups}")
        return "; ".join([f"reads {', '.join(scan.columns) or 'no column'}", *parts])


@dataclass(frozen=True, slots=True)
class Assemble(Node):
    """The assembly function of an aggregate whose fragments a reader makes (Scabbard §2.3).

    It adds partials of the same pane and group, makes windows of panes, and computes the aggregates.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "assemble"

    aggregate: Aggregate
    decomposition: Decomposition

    def _schema(self) -> pa.Schema:
        return self.aggregate.schema

    def _key(self) -> tuple[str, ...]:
        return ()

    @property
    def window(self) -> Window:
        """The windows that it makes."""
        found = self.aggregate.inputs[0]
        assert isinstance(found, Window)  # noqa: S101  # an aggregate without a window has no panes
        return found

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return panes, groups and partials."""
        partials = {partial.name for partial in self.decomposition.partials}
        return (frozenset({PANE, *self.aggregate.group_by} | partials),)

    def describe(self) -> str:
        """Return windows, aggregates and groups."""
        made = ", ".join(f"{text} AS {name}" for name, text in self.decomposition.assembly.items())
        groups = f" by {', '.join(self.aggregate.group_by)}" if self.aggregate.group_by else ""
        return f"{self.window.describe()}: {made}{groups}"


@dataclass(frozen=True, slots=True)
class Sink(Node):
    """Where the results go."""

    label: ClassVar[str] = "sink"

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return all columns."""
        return (frozenset(self.inputs[0].schema.names),)

    def describe(self) -> str:
        """Return its kind."""
        return self.kind


def infer(node: Node, expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return an expression's type, `UNKNOWN` where only Spark knows it.

    Raises
    ------
    InvalidUsageError
        If it uses a column that is not there, or aggregates.
    """
    if expression.aggregate:
        raise node.wrong("an aggregate is for agg", expression=expression.text)
    for name in expression.columns:
        _known(node, name, schema, expression)
    return expression_type(expression, schema)


def topological(root: Node) -> Iterator[Node]:
    """Yield every node once, inputs first."""
    seen: set[int] = set()
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            waiting.append((node, True))
            waiting += [(input, False) for input in reversed(node.inputs)]


def rebuild(root: Node, change: Callable[[Node], Node]) -> Node:
    """Return the graph in which `change` was applied to every node, inputs first.

    A node that is the input of several stays one node.
    """
    made: dict[int, Node] = {}
    for node in topological(root):
        inputs = tuple(made[id(input)] for input in node.inputs)
        same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        made[id(node)] = change(node if same else replace(node, inputs=inputs))
    return made[id(root)]


def _known(node: Node, name: str, schema: pa.Schema, expression: Expression | None = None) -> pa.Field[Any]:
    if name not in schema.names:
        context: Mapping[str, Any] = {} if expression is None else {"expression": expression.text}
        raise node.wrong(f"there is no column {name!r}", did_you_mean(name, schema.names), **context)
    return schema.field(name)


def _distinct(node: Node, schema: pa.Schema) -> pa.Schema:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise node.wrong("two columns have the same name", "give one another name", column=name)
    return schema


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name} {one.type}" for one in schema)


def _duration(ms: int) -> str:
    return f"{ms // 1000} s" if ms % 1000 == 0 else f"{ms} ms"
