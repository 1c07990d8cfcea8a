"""How a graph is written: ``graph(name).source(...).where(...).select(...)...sink(...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.operators.expression import Expression, column, did_you_mean, named
from penstock.operators.graph.nodes import (
    WINDOW,
    Aggregate,
    Join,
    Node,
    Select,
    Sink,
    Source,
    SourceKind,
    StreamTableJoin,
    Union,
    UpdateQueue,
    UpdateUnion,
    Where,
    Window,
    WindowJoin,
    topological,
    update_time,
)
from penstock.operators.graph.types import UNKNOWN
from penstock.operators.partials import split_distinct
from penstock.operators.scan import TimeUnit
from penstock.operators.steps import steps_of
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    from penstock.operators.graph.plan import Persist, PhysicalPlan
    from penstock.operators.graph.statistics import Statistics

__all__ = ["Graph", "graph"]

_POLICIES: Final = ("fifo", "in_place", "linecutting")


def graph(name: str) -> GraphName:
    """Begin a graph of operators; `GraphName.source` says where its tuples come from.

    Parameters
    ----------
    name : str
        The graph's name.

    Examples
    --------
    >>> import pyarrow as pa
    >>> readings = pa.schema({"time": pa.timestamp("us"), "plug": pa.int32(), "load": pa.float64()})
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
        schema: pa.Schema,
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
        schema : pyarrow.Schema
            What it yields.
        kind : str
            ``push`` for a program that appends, which cannot be asked again; ``files``, ``kafka``,
            ``p-stream``, ``market`` and ``rate`` can.
        options : mapping of str to str, optional
            What the one that reads it is told.
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
        node = Source(name, (), schema, kind, tuple((options or {}).items()), names, time)
        return Graph(self.name, node)


@dataclass(frozen=True, slots=True)
class Graph:
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
        What `group_by` said, until `agg`.
    """

    name: str
    root: Node
    groups: tuple[str, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of its output."""
        return self.root.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The update key, if its output is an update stream; else empty."""
        return self.root.key

    def where(self, predicate: str, *, name: str | None = None) -> Graph:
        """Keep the tuples for which a condition is true.

        Raises
        ------
        InvalidUsageError
            If it is no condition over the columns.
        """
        own = self._open("where", name)
        return self._with(Where(own, (self.root,), self._expression(predicate, own)))

    def select(self, *columns: str, name: str | None = None, **expressions: str) -> Graph:
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

    def window(
        self,
        time: str,
        *,
        size: str | timedelta,
        slide: str | timedelta | None = None,
        unit: TimeUnit | None = None,
        delay: str | timedelta | None = None,
        name: str | None = None,
    ) -> Graph:
        """Say into which windows of time the aggregate that follows puts tuples.

        Parameters
        ----------
        time : str
            A column of timestamps, or of integers with a `unit`.
        size, slide : str or timedelta
            Such as ``"60 s"``; without a slide, windows do not overlap.
        unit : str, optional
            Of integers: ``s``, ``ms``, ``us`` or ``ns`` since 1970-01-01T00:00:00Z.
        delay : str or timedelta, optional
            How long tuples may be behind the newest one; a window closes that much later.

        Raises
        ------
        InvalidUsageError
            If there is no such time, or the slide is longer than the size.
        """
        own = self._open("window", name)
        time = self._column(time, own)
        size_ms = _milliseconds(size)
        slide_ms = size_ms if slide is None else _milliseconds(slide)
        found = _unit(self.schema.field(time).type)
        if found is not None and unit not in (None, found):
            raise InvalidUsageError("the time has another unit", unit=unit, type=self.schema.field(time).type)
        found = found or unit
        if found is None or not _countable(self.schema.field(time).type):
            raise InvalidUsageError(
                "the time of a window is a timestamp, or an integer with a unit",
                hint="such as unit='s' for seconds",
                column=time,
                type=self.schema.field(time).type,
                node=own,
            )
        delay_ms = 0 if delay is None else _milliseconds(delay, least_us=0)
        return self._with(Window(own, (self.root,), time, found, size_ms, slide_ms, delay_ms))

    def group_by(self, *columns: str, **expressions: str) -> Graph:
        """Group the aggregate that follows by columns, and by expressions that get a name.

        After an aggregate, grouping by ``"window"`` aggregates its windows.

        Raises
        ------
        InvalidUsageError
            If a column is not there, or `agg` did not follow the last `group_by`.
        """
        if self.groups is not None:
            raise InvalidUsageError("group_by twice", hint="call agg between")
        groups = tuple(self._column(each, "group_by") for each in columns)
        computed = self._beneath(expressions) if expressions else self
        return replace(computed, groups=(*groups, *expressions))

    def _beneath(self, expressions: Mapping[str, str]) -> Graph:
        """Return the graph in which a select makes more columns, below the window if there is one."""
        window = self.root if isinstance(self.root, Window) else None
        below = self if window is None else replace(self, root=window.inputs[0])
        wider = below.select("*", **expressions)
        return wider if window is None else wider._with(replace(window, inputs=(wider.root,)))

    def agg(self, aggs: Mapping[str, str] | None = None, /, *, name: str | None = None, **more: str) -> Graph:
        """Aggregate each group of each window: ``agg(load="avg(value)", n="count(*)")``.

        The output has the group's columns, ``window`` (``start`` and ``end``), and the aggregates. With a
        ``count(DISTINCT x)``, windows are made of each value of x first, and then aggregated by window.

        Raises
        ------
        InvalidUsageError
            If there is no window, or an expression is no aggregate over the columns.
        """
        own = self._named("aggregate", name)
        texts = {**(aggs or {}), **more}
        made = tuple((label, self._expression(text, own)) for label, text in texts.items())
        at = self.root
        column_name = _free("value", (*self.schema.names, *texts))
        distinct = split_distinct(
            {label: one.text for label, one in made},
            column_name,
            at.time if isinstance(at, Window) else WINDOW,
            self.groups or (),
        )
        if distinct is None:
            return self._with(Aggregate(own, (at,), self.groups or (), made))
        # Each value is a group of its own first; then those of a window are counted, which needs no state.
        each = replace(self, groups=None)._beneath({column_name: distinct.value})
        groups = (*(self.groups or ()), column_name)
        inner = replace(each, groups=groups).agg(distinct.inner, name=f"{own}.distinct")
        outer = self.groups or ()
        outer = outer if WINDOW in outer else (*outer, WINDOW)
        return replace(inner, groups=outer).agg(distinct.outer, name=own)

    def update_queue(
        self,
        key: str | Sequence[str],
        time: str,
        *,
        policy: str = "in_place",
        budget: int | str | None = None,
        combine: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> Graph:
        """Keep of each key only the newest tuple; the arguments are those of `penstock.update_queue`.

        Raises
        ------
        InvalidUsageError
            If key or time are not there, or there is no such policy.
        """
        own = self._open("update_queue", name)
        if policy not in _POLICIES:
            raise InvalidUsageError("there is no such policy", policy=policy, known=", ".join(_POLICIES))
        names = (key,) if isinstance(key, str) else tuple(key)
        columns = tuple(self._column(each, own) for each in names)
        when = self._column(time, own)
        # A queue that may append must see every tuple.
        combine = combine and options.get("semantics", "update") == "update"
        return self._with(
            UpdateQueue(own, (self.root,), columns, when, policy, budget, combine, tuple(options.items()))
        )

    def lookup(
        self, table: str, schema: pa.Schema, *, on: str | Sequence[str], name: str | None = None
    ) -> Graph:
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

    def union(
        self,
        *others: Graph,
        key: str | Sequence[str] = (),
        time: str | None = None,
        prefer: int | str | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Graph:
        """Return all tuples of this and other graphs, which have the same columns.

        Of update streams, which all have the same key, it is an update stream: the newest tuple of each key,
        and at most one of each key and time, as `penstock.update_union` says.

        Parameters
        ----------
        key, time : str or sequence of str, and str, optional
            Take the inputs for update streams of this key, ordered by this time; needless for those that are.
        prefer : int or str, optional
            Of update streams, whose truth wins a tie: by position, this graph being 0; or the name of an
            input's last operator or of its source.
        **options
            Of update streams: other arguments of `penstock.update_union`, such as ``nulls="drop"``.

        Raises
        ------
        InvalidUsageError
            If the columns or the update keys differ, the time of an update stream is gone, or there is no
            such input to prefer.
        """
        own = self._open("union", name)
        inputs = (self.root, *(other._ready() for other in others))
        names = (key,) if isinstance(key, str) else tuple(key)
        if bool(names) != bool(time):
            raise InvalidUsageError("an update stream has a key and a time", key=names, time=time, node=own)
        if time:
            columns = tuple(self._column(each, own) for each in names)
            place = _input(prefer, own, inputs)
            return self._with(
                UpdateUnion(own, inputs, columns, self._column(time, own), place, tuple(options.items()))
            )
        plain = Union(own, inputs)
        if not plain.key:
            if prefer is not None or options:
                raise plain.wrong(
                    "only a union of update streams has options",
                    "say what the streams are with source(key=..., time=...) or update_queue",
                    options=", ".join([*(["prefer"] if prefer is not None else []), *options]),
                )
            return self._with(plain)
        times = [update_time(node) for node in inputs]
        if None in times or len(set(times)) > 1:
            raise plain.wrong(
                "the update streams of a union have no time in common",
                "keep it, as it is, in every select",
                times=", ".join(str(each) for each in times),
            )
        place = _input(prefer, own, inputs)
        return self._with(UpdateUnion(own, inputs, plain.key, str(times[0]), place, tuple(options.items())))

    def join(
        self,
        other: Graph,
        *,
        on: str | Sequence[str],
        time: str,
        within: str | timedelta,
        condition: str | None = None,
        unit: TimeUnit | None = None,
        updates: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> Graph:
        """Join with another graph by columns of the same name, within an interval of a time that both have.

        The output has the columns of both, those of the join and the time once, from this graph. Update
        streams are joined by their key: of each key the newest match comes out, with the greater of both
        times, as `penstock.update_join` says; other streams cannot be joined in a graph that runs.

        Parameters
        ----------
        on : str or sequence of str
            The columns; of update streams the key.
        time : str
            A timestamp, a date, or an integer with a `unit`.
        within : str or timedelta
            How far two times may be apart, such as ``"10 s"``; both ends are included.
        condition : str, optional
            What else must be true, over the columns of the output.
        unit : str, optional
            Of a time of integers: ``s``, ``ms``, ``us`` or ``ns``.
        updates : bool
            Whether to take both for update streams whose key is `on`; needless for those that are.
        **options
            Other arguments of `penstock.update_join`, such as ``delay="1 minute"``.

        Raises
        ------
        InvalidUsageError
            If a column is not on both sides or of other types there, others have the same name, update
            streams are not joined by their key, or the condition is none.
        """
        own = self._open("join", name)
        names = (on,) if isinstance(on, str) else tuple(on)
        inputs = (self.root, other._ready())
        joined = Join(
            *(own, inputs, names, time, _milliseconds(within, least_us=0)),
            updates=updates, unit=unit, options=tuple(options.items()),
        )  # fmt: skip
        if joined.key:
            kind = joined.schema.field(time).type
            for option, duration in (("within", within), ("delay", options.get("delay"))):
                if duration is not None and kind != UNKNOWN:
                    steps_of(option, duration, kind, unit)
        if condition is not None:
            predicate = Expression.parse(condition).resolve(joined.schema.names, node=own)
            joined = replace(joined, condition=predicate)
        return self._with(joined)

    def join_windows(
        self,
        other: Graph,
        *,
        on: str | Sequence[str] = (),
        condition: str | None = None,
        name: str | None = None,
    ) -> Graph:
        """Join the windows of this aggregate with those of another that end at the same time.

        Both have the same slide; their sizes may differ. It is a join in tumbling windows as long as the
        slide, each of which has the windows that end with it. The output has the columns of both, those of
        the join once, and ``window`` is the tumbling one.

        Parameters
        ----------
        other : Graph
            One with an aggregate of windows at its end, but for `where` and `select`; both may be built on
            one.
        on : str or sequence of str
            Columns that both have; by default windows that end together are joined, each with each.
        condition : str, optional
            What else must be true, over the columns of both.

        Raises
        ------
        InvalidUsageError
            If windows do not end together, a column is not on both sides, or others have the same name.
        """
        own = self._open("join_windows", name)
        names = (on,) if isinstance(on, str) else tuple(on)
        columns = tuple(self._column(each, own) for each in names)
        joined = WindowJoin(own, (self.root, other._ready()), columns)
        if condition is not None:
            predicate = Expression.parse(condition).resolve(joined.schema.names, node=own)
            joined = replace(joined, condition=predicate)
        return self._with(joined)

    def sink(self, kind: str, *, name: str | None = None, **options: Any) -> Graph:
        """Say where the results go; nothing may follow."""
        own = self._open("sink", name)
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

    def _ready(self) -> Node:
        if self.groups is not None or isinstance(self.root, Window):
            raise InvalidUsageError(
                "a window or group_by without an aggregate", hint="call agg after it", graph=self.name
            )
        return self.root

    def _open(self, kind: str, name: str | None) -> str:
        """Check that an operator may follow, and return its name."""
        if isinstance(self.root, Sink):
            raise InvalidUsageError("nothing may follow a sink", graph=self.name)
        self._ready()
        return self._named(kind, name)

    def _named(self, kind: str, name: str | None) -> str:
        taken = {node.name for node in topological(self.root)}
        if name is not None:
            if name in taken:
                raise InvalidUsageError("two operators have the same name", name=name, graph=self.name)
            return name
        number = 2
        name = kind
        while name in taken:
            name, number = f"{kind}_{number}", number + 1
        return name

    def _with(self, node: Node) -> Graph:
        sources = [each.name for each in topological(node) if isinstance(each, Source)]
        twice = sorted({each for each in sources if sources.count(each) > 1})
        if twice:
            raise InvalidUsageError(
                "two sources have the same name",
                hint="build both graphs on one",
                name=twice[0],
                graph=self.name,
            )
        return Graph(self.name, node)

    def _expression(self, text: str, node: str) -> Expression:
        return Expression.parse(text).resolve(self.schema.names, node=node)

    def _column(self, name: str, node: str) -> str:
        names = self.schema.names
        if name in names:
            return name
        found = [each for each in names if each.lower() == name.lower()]
        if len(found) != 1:
            raise InvalidUsageError(f"there is no column {name!r}", hint=did_you_mean(name, names), node=node)
        return found[0]


def _input(prefer: int | str | None, union: str, inputs: Sequence[Node]) -> int | None:
    """Return the position of the input whose truth wins."""
    names = [
        {node.name, *(one.name for one in topological(node) if isinstance(one, Source))} for node in inputs
    ]
    if prefer is None or (type(prefer) is int and 0 <= prefer < len(names)):
        return prefer
    found = [place for place, some in enumerate(names) if prefer in some]
    if len(found) == 1:
        return found[0]
    raise InvalidUsageError(
        "several inputs have the name to prefer" if found else "there is no such input to prefer",
        hint="say its position, or one of " + ", ".join(sorted(set().union(*names))),
        prefer=prefer,
        node=union,
    )


def _milliseconds(duration: str | timedelta, *, least_us: int = 1) -> int:
    us = parse_duration_us(duration)
    if us < least_us or us % 1000:
        raise InvalidUsageError("not a whole number of milliseconds", duration=duration)
    return us // 1000


def _unit(kind: pa.DataType) -> TimeUnit | None:
    return kind.unit if pa.types.is_timestamp(kind) else None


def _countable(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_integer(kind)


def _free(name: str, taken: Sequence[str]) -> str:
    """Return a name that is not taken."""
    number, free = 2, name
    while free in taken:
        number, free = number + 1, f"{name}_{number}"
    return free
