"""A graph that is written: where it begins, what has one input, and what is done with it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import pyarrow as pa

from penstock.ddl import parse_schema, quoted
from penstock.errors import InvalidUsageError
from penstock.operators.graph.builder.streams import Streams
from penstock.operators.graph.builder.windows import Windows
from penstock.operators.graph.nodes import (
    Select,
    Sink,
    Source,
    SourceKind,
    StreamTableJoin,
    UpdateQueue,
    Where,
)
from penstock.operators.sql.expression import Expression, column, did_you_mean, named
from penstock.operators.update_stream.operator_options import QueueArguments, QueueOptions, make_options

if TYPE_CHECKING:
    from penstock.operators.graph.plan import Persist, PhysicalPlan
    from penstock.operators.graph.statistics import Statistics

__all__ = ["Graph", "GraphName", "graph"]

_SINKS: Final = (
    "console",
    "csv",
    "json",
    "kafka",
    "memory",
    "noop",
    "orc",
    "p-stream",
    "parquet",
    "pstream",
    "text",
)


def graph(name: str) -> GraphName:
    """Begin a graph of operators; `GraphName.source` says where its tuples come from.

    Parameters
    ----------
    name : str
        The graph's name.

    Examples
    --------
    >>> readings = "time timestamp, plug int, load double"
    >>> mean = (
    ...     graph("loads")
    ...     .source("readings", readings)
    ...     .where("load > 0")
    ...     .window("time", size="60 s", slide="1 s")
    ...     .group_by("plug")
    ...     .agg(load="avg(load)")
    ...     .sink("console")
    ... )
    >>> print(*mean.schema.names)
    plug window load
    """
    if not name:
        raise InvalidUsageError("a graph needs a name")
    return GraphName(name)


@dataclass(frozen=True, slots=True)
class GraphName:
    """A graph without operators."""

    name: str

    def source(
        self,
        name: str,
        schema: pa.Schema | str | Any,
        *,
        kind: SourceKind = "push",
        options: Mapping[str, str] | None = None,
        key: str | Sequence[str] = (),
        time: str | None = None,
    ) -> Graph:
        """Return the graph of one source.

        Parameters
        ----------
        name : str
            The source's name, unique among those of graphs that are joined or united.
        schema : pyarrow.Schema, str or DataFrame
            What it yields: columns of Arrow; or as in Spark's DDL, ``"time timestamp, load double"``; or
            those of a DataFrame of Spark. A ``timestamp`` of Spark is Arrow's ``timestamp("us", "UTC")``.
        kind : str
            ``push`` for a program that appends, which cannot be asked again; ``files``, ``parquet``,
            ``kafka``, ``p-stream``, ``market`` and ``rate`` can. ``parquet`` are files of which Penstock
            reads what fragments of windows and the newest tuples of keys are made of.
        options : mapping of str to str, optional
            Options of its reader.
        key, time : str or sequence of str, and str, optional
            If it is an update stream: the update key, and the column that orders the updates of a key.
            Then no operator loses or changes the key.

        Raises
        ------
        InvalidUsageError
            If there is no such kind or column, two columns have the same name, or there is a key without a
            time.
        """
        names = (key,) if isinstance(key, str) else tuple(key)
        if bool(names) != bool(time):
            raise InvalidUsageError(
                "an update stream has a key and a time", key=names, time=time, source=name
            )
        node = Source(name, (), _schema_of(schema), kind, tuple((options or {}).items()), names, time)
        return Graph(self.name, node)


def _schema_of(given: Any) -> pa.Schema:
    """Return the columns that a source is said to have."""
    if isinstance(given, str):
        return parse_schema(given)
    struct = getattr(given, "schema", given)
    if isinstance(given, pa.Schema) or not hasattr(struct, "fields"):
        return given
    return parse_schema(
        ", ".join(f"{quoted(one.name)} {one.dataType.simpleString()}" for one in struct.fields)
    )


@dataclass(frozen=True, slots=True)
class Graph(Windows, Streams):
    """A graph of operators, seen from its last. Every method returns another graph; none changes this one.

    Names of columns are resolved as Spark does, in any case. Every operator takes a `name`, by which
    ``plan(persist=...)`` finds it and errors tell of it; by default it is its kind, and a number.

    Parameters
    ----------
    name : str
        The graph's name.
    root : Node
        The last operator.
    groups : tuple of str, optional
        The columns of `group_by`, until `agg`.
    """

    def where(self, predicate: str, *, name: str | None = None) -> Self:
        """Keep the tuples for which a condition is true.

        Raises
        ------
        InvalidUsageError
            If it is no condition over the columns.
        """
        own = self._open("where", name)
        return self._with(Where(own, (self.root,), self._expression(predicate, own)))

    def select(self, *columns: str, name: str | None = None, **expressions: str) -> Self:
        """Compute columns: ``select("plug", "value * 2 AS twice", house="house div 10")``.

        ``"*"`` stands for all columns there are.

        Raises
        ------
        InvalidUsageError
            If a column is not there or two have the same name, or if an update stream would lose or change
            its key.
        """
        own = self._open("select", name)
        made: list[tuple[str, Expression]] = []
        for text in columns:
            if text.strip() == "*":
                made += [(each, column(each)) for each in self.schema.names]
            else:
                label, expression = named(text)
                made.append((label, expression.resolve(self.schema.names, node=own)))
        made += [(label, self._expression(text, own)) for label, text in expressions.items()]
        return self._with(Select(own, (self.root,), tuple(made)))

    def update_queue(
        self,
        key: str | Sequence[str],
        time: str,
        *,
        name: str | None = None,
        **options: Unpack[QueueArguments],
    ) -> Self:
        """Keep of each key only the newest tuple; the arguments are those of `penstock.update_queue`.

        Raises
        ------
        InvalidUsageError
            If key or time are not there, or an option is wrong.
        """
        own = self._open("update_queue", name)
        made = make_options(QueueOptions, options, QueueArguments.__annotations__, node=own)
        names = (key,) if isinstance(key, str) else tuple(key)
        columns = tuple(self._column(each, own) for each in names)
        return self._with(UpdateQueue(own, (self.root,), columns, self._column(time, own), made))

    def lookup(
        self, table: str, schema: pa.Schema, *, on: str | Sequence[str], name: str | None = None
    ) -> Self:
        """Join with a static table, by columns of the same name; tuples that it does not have are dropped.

        Raises
        ------
        InvalidUsageError
            If a column is not on both sides, or others have the same name.
        """
        own = self._open("lookup", name)
        names = (on,) if isinstance(on, str) else tuple(on)
        return self._with(
            StreamTableJoin(
                own, (self.root,), table, schema, tuple(self._column(each, own) for each in names)
            )
        )

    def sink(self, kind: str, *, name: str | None = None, **options: Any) -> Self:
        """Say where the results go; nothing may follow.

        Parameters
        ----------
        kind : str
            ``pstream``, or Spark's name of a format, such as ``console``, ``parquet`` or ``kafka``.
        **options
            Of the format, such as ``path=``.

        Raises
        ------
        InvalidUsageError
            If the kind looks like one of Spark's, but is spelt otherwise.
        """
        own = self._open("sink", name)
        if kind not in _SINKS and difflib.get_close_matches(kind.lower(), _SINKS, n=1):
            hint = did_you_mean(kind, _SINKS, "kinds")
            raise InvalidUsageError("there is no such kind of sink", hint=hint, kind=kind, node=own)
        return self._with(Sink(own, (self.root,), kind, tuple(options.items())))

    def measure(self, sample: pa.Table | Mapping[str, pa.Table], *, compress: bool = True) -> Statistics:
        """Take samples of its sources for `plan`; see `penstock.operators.graph.measure`.

        Raises
        ------
        InvalidUsageError
            If a sample is of no source, is empty, or lacks a column.
        """
        from penstock.operators.graph.statistics import measure

        return measure(self.root, sample, compress=compress)

    def plan(self, statistics: Statistics | None = None, persist: Persist = "auto") -> PhysicalPlan:
        """Apply the push-up rules and place p-streams; see `penstock.operators.graph.plan.plan`.

        Raises
        ------
        InvalidUsageError
            If `persist` names no operator, or what it says cannot be.
        """
        from penstock.operators.graph.plan import plan

        return plan(replace(self, root=self._ready()), statistics, persist)

    def explain(self, statistics: Statistics | None = None, persist: Persist = "auto") -> str:
        """Return the plan as text: before and after, with what every operator lets through."""
        from penstock.operators.graph.explain import explain

        return explain(self.plan(statistics, persist))
