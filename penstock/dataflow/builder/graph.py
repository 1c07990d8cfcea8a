"""The graph builder: entry points, single-input operators, planning and explanation."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, Unpack

import pyarrow as pa

from penstock.conf.arguments import check_keywords
from penstock.dataflow.builder.streams import Streams
from penstock.dataflow.builder.windows import Windows
from penstock.dataflow.draw import draw_html
from penstock.dataflow.nodes import (
    Apply,
    ApplyArguments,
    Select,
    Sink,
    Source,
    SourceKind,
    StreamTableJoin,
    Transactions,
    UpdateQueue,
    Where,
)
from penstock.dataflow.plan import Persist, PhysicalPlan, plan
from penstock.dataflow.statistics import Statistics, measure
from penstock.ddl import parse_schema, quote
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.own.abc import Operator
from penstock.operators.types import check_condition
from penstock.operators.update_stream.operator_options import (
    QueueArguments,
    QueueOptions,
    StateOptions,
    TransactionArguments,
    TransactionOptions,
    make_options,
)
from penstock.operators.update_stream.options import column_names
from penstock.procedures.procedure import Procedure
from penstock.procedures.workflows.workflow import Workflow
from penstock.sql.expression import Expression, column, split_alias

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


@check_keywords
def graph(name: str) -> GraphName:
    """Begin a graph of operators; `GraphName.source` adds the first source.

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


@check_keywords
@dataclass(frozen=True, slots=True)
class GraphName:
    """The name of a new graph, which has no operators yet."""

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
        rejects_to: str | None = None,
    ) -> Graph:
        """Return a graph with a single source.

        Parameters
        ----------
        name : str
            The source's name, unique among graphs that are joined or united.
        schema : pyarrow.Schema, str or DataFrame
            The source's columns: an Arrow schema, Spark DDL such as ``"time timestamp, load double"``, or a
            Spark DataFrame with these columns. Spark's ``timestamp`` is Arrow's ``timestamp("us", "UTC")``.
        kind : str
            ``push`` for a program that appends rows; such a source cannot be replayed. ``files``,
            ``parquet``, ``kafka``, ``p-stream``, ``market``, ``rate`` and ``spark`` (any other source of
            Spark) can be replayed. If a window or a queue follows a ``parquet`` source, Penstock itself reads
            the files, and aggregates or conflates the rows while reading.
        options : mapping of str to str, optional
            Options of the source's reader.
        key, time : str or sequence of str, and str, optional
            For an update stream: the update key, and the column that orders the updates of a key. No operator
            may then drop or change the key.
        rejects_to : str, optional
            The p-stream to which the reader writes records that it cannot read. `explain` shows it.

        Raises
        ------
        InvalidUsageError
            If the kind or a column is unknown, two columns have the same name, or only one of key and time
            is given.
        """
        names = column_names("key", key)
        if time is not None:
            column_names("time", time)
        if bool(names) != bool(time):
            raise InvalidUsageError(
                "an update stream needs a key and a time", key=names, time=time, source=name
            )
        columns, given = _schema_of(schema), tuple((options or {}).items())
        node = Source(name, (), columns, kind, given, names, time, rejects_to)
        return Graph(self.name, node)


def _schema_of(declaration: Any) -> pa.Schema:
    """Return the declared columns of a source as an Arrow schema."""
    if isinstance(declaration, str):
        return parse_schema(declaration)
    struct = getattr(declaration, "schema", declaration)
    if isinstance(declaration, pa.Schema) or not hasattr(struct, "fields"):
        return declaration
    return parse_schema(
        ", ".join(f"{quote(field.name)} {field.dataType.simpleString()}" for field in struct.fields)
    )


@check_keywords
@dataclass(frozen=True, slots=True)
class Graph(Windows, Streams):
    """An immutable graph of operators, identified by its last operator.

    Each operator method returns a new graph.

    Column names are case-insensitive, as in Spark. Every operator takes a `name`, which ``plan(persist=...)``
    and errors use. The default name is the operator's kind; a number follows if the name is taken.

    Parameters
    ----------
    name : str
        The graph's name.
    root : Node
        The last operator.
    groups : tuple of str, optional
        The columns that `group_by` has set for the next `agg`.
    """

    def where(self, predicate: str, *, name: str | None = None) -> Self:
        """Keep the tuples for which a condition is true.

        Raises
        ------
        InvalidUsageError
            If the condition is not a boolean expression over the columns.
        """
        label = self._open("where", name)
        condition = self._expression(predicate, label)
        check_condition(condition, self.schema, "filter", node=label)
        return self._append(Where(label, (self.root,), condition))

    def select(self, *columns: str, name: str | None = None, **expressions: str) -> Self:
        """Compute columns: ``select("plug", "value * 2 AS twice", house="house div 10")``.

        ``"*"`` stands for all columns.

        Raises
        ------
        InvalidUsageError
            If a column is missing, two columns have the same name, or an update stream would lose or change
            its key.
        """
        node_name = self._open("select", name)
        entries: list[tuple[str, Expression]] = []
        for text in columns:
            if text.strip() == "*":
                entries += [(column_name, column(column_name)) for column_name in self.schema.names]
            else:
                label, expression = split_alias(text)
                entries.append((label, expression.resolve(self.schema.names, node=node_name)))
        entries += [(label, self._expression(text, node_name)) for label, text in expressions.items()]
        return self._append(Select(node_name, (self.root,), tuple(entries)))

    def update_queue(
        self,
        key: str | Sequence[str],
        time: str,
        *,
        name: str | None = None,
        **options: Unpack[QueueArguments],
    ) -> Self:
        """Keep only the newest tuple of each key; takes the arguments of `penstock.update_queue`.

        Raises
        ------
        InvalidUsageError
            If key or time is missing, or an option is invalid.
        """
        node_name = self._open("update_queue", name)
        queue_options = make_options(QueueOptions, options, node=node_name)
        names = column_names("key", key)
        columns = tuple(self._column(column_name, node_name) for column_name in names)
        return self._add_queue(
            UpdateQueue(node_name, (self.root,), columns, self._column(time, node_name), queue_options)
        )

    def apply(
        self,
        operator: Operator,
        key: str | Sequence[str],
        *,
        time: str | None = None,
        name: str | None = None,
        **options: Unpack[ApplyArguments],
    ) -> Self:
        """Run a user-defined operator; takes the arguments of `penstock.apply`.

        Raises
        ------
        InvalidUsageError
            If key or time is missing, an option is invalid, or the operator has no output.
        """
        node_name = self._open("apply", name)
        state_options = make_options(StateOptions, options, node=node_name)
        names = column_names("key", key)
        by = tuple(self._column(column_name, node_name) for column_name in names)
        order = None if time is None else self._column(time, node_name)
        return self._append(Apply(node_name, (self.root,), operator, by, order, state_options))

    def transactions(
        self,
        procedure: Procedure | Workflow,
        *,
        time: str | None = None,
        keep: str | Sequence[str] = (),
        initial: Sequence[str] = (),
        name: str | None = None,
        **options: Unpack[TransactionArguments],
    ) -> Self:
        """Run a transaction for each tuple; takes the arguments of `penstock.transactions`.

        `initial` names the tables that have initial rows: ``penstock.start(..., tables={name: df})``.

        Raises
        ------
        InvalidUsageError
            If the procedure does not compile for these columns, a column is missing, or an option is invalid.
        """
        node_name = self._open("transactions", name)
        transaction_options = make_options(TransactionOptions, options, node=node_name)
        if transaction_options.state_location is None:
            transaction_options = replace(
                transaction_options, state_location=getattr(procedure, "location", None)
            )
        names = column_names("keep", keep)
        kept_columns = tuple(self._column(column_name, node_name) for column_name in names)
        order = None if time is None else self._column(time, node_name)
        return self._append(
            Transactions(
                node_name, (self.root,), procedure, order, kept_columns, tuple(initial), transaction_options
            )
        )

    def lookup(
        self, table: str, schema: pa.Schema | str | Any, *, on: str | Sequence[str], name: str | None = None
    ) -> Self:
        """Join the stream with a static table by columns of the same name (inner join).

        Parameters
        ----------
        table : str
            The name under which `penstock.start` gets the table.
        schema : pyarrow.Schema, str or DataFrame
            The table's columns, as for `source`.
        on : str or sequence of str
            The columns to join by.

        Raises
        ------
        InvalidUsageError
            If a join column is missing on one side, or columns other than the join columns share a name.
        """
        node_name = self._open("lookup", name)
        names = column_names("on", on)
        return self._append(
            StreamTableJoin(
                node_name,
                (self.root,),
                table,
                _schema_of(schema),
                tuple(self._column(column_name, node_name) for column_name in names),
            )
        )

    def sink(self, kind: str, *, name: str | None = None, **options: Any) -> Self:
        """Write the results to a sink; no operator may follow.

        Parameters
        ----------
        kind : str
            ``pstream``, or the name of a Spark format, such as ``console``, ``parquet`` or ``kafka``.
        **options
            Options of the format, such as ``path=``.

        Raises
        ------
        InvalidUsageError
            If the kind looks like a misspelt Spark format, or an option is a mapping.
        """
        node_name = self._open("sink", name)
        if mappings := [option for option, value in options.items() if isinstance(value, Mapping)]:
            raise InvalidUsageError(
                "an option of a sink is a text, a number or a truth value",
                hint='pass each option by its name, such as path="results"',
                option=mappings[0],
                node=node_name,
            )
        if kind not in _SINKS and difflib.get_close_matches(kind.lower(), _SINKS, n=1):
            hint = did_you_mean(kind, _SINKS, "kinds")
            raise InvalidUsageError("the kind of sink is unknown", hint=hint, kind=kind, node=node_name)
        return self._append(Sink(node_name, (self.root,), kind, tuple(options.items())))

    def measure(self, sample: pa.Table | Mapping[str, pa.Table], *, compress: bool = True) -> Statistics:
        """Measure samples of the sources for `plan`; see `penstock.dataflow.measure`.

        Raises
        ------
        InvalidUsageError
            If a sample belongs to no source, is empty, or lacks a column.
        """
        return measure(self.root, sample, compress=compress)

    def plan(self, statistics: Statistics | None = None, persist: Persist = "auto") -> PhysicalPlan:
        """Apply the push-up rules and place p-streams; see `penstock.dataflow.plan.plan`.

        Raises
        ------
        InvalidUsageError
            If `persist` names an unknown operator, or requests a p-stream that cannot exist.
        """
        return plan(self.name, self._ready(), statistics, persist)

    def explain(self, statistics: Statistics | None = None, persist: Persist = "auto") -> str:
        """Return the plan as text: the graph before and after the rules, with each operator's selectivity."""
        return self.plan(statistics, persist).explain()

    def _repr_html_(self) -> str:
        """Return a drawing of the graph as written, for notebooks."""
        return draw_html(PhysicalPlan(self.name, self.root, self.root, (), (), None), planned=False)
