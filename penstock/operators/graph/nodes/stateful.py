"""Operators with state: windows' aggregates, update queues, joins of streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.expression import Expression, column
from penstock.operators.graph.nodes.base import Node, distinct, duration, infer, known
from penstock.operators.graph.nodes.service import check_service
from penstock.operators.graph.nodes.stateless import Select, Source, Union
from penstock.operators.graph.types import UNKNOWN, aggregate_type, partial_type
from penstock.operators.partials import Decomposition, decompose, pane_ms
from penstock.operators.scan import PANE, WEIGHT, Partial, TimeUnit

__all__ = [
    "POLICIES",
    "WINDOW",
    "Aggregate",
    "Assemble",
    "Join",
    "UpdateQueue",
    "UpdateUnion",
    "Window",
    "update_time",
    "window_by_key",
]

WINDOW: Final = "window"
"""The column of an aggregate that says of which window it is: a struct of ``start`` and ``end``."""

POLICIES: Final = ("fifo", "in_place", "linecutting")
"""The names of key schedulers (`penstock.operators.key_queue.Policy`)."""

_MODES: Final = ("append", "lazy", "eager")
_INSTANT: Final = pa.timestamp("us", "UTC")
_WINDOW_TYPE: Final = pa.struct({"start": _INSTANT, "end": _INSTANT})


@dataclass(frozen=True, slots=True)
class Window(Node):
    """Says into which windows of time the aggregate after it puts tuples; ``[start, end)``, as Spark's.

    Parameters
    ----------
    time, time_unit, size_ms, slide_ms, delay_ms
        As of `Graph.window`.
    mode : str
        ``append``: all windows come out, those of all groups that end together in one micro-batch. ``lazy``,
        ``eager``: of each group the most recent one, served group by group (UpStream §6).
    policy, budget, cost, weight
        As of `penstock.update_window`; None if the mode is ``append``.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "window"

    time: str
    time_unit: TimeUnit
    size_ms: int
    slide_ms: int
    delay_ms: int = 0
    mode: str = "append"
    policy: str | None = None
    budget: int | str | None = None
    cost: str | None = None
    weight: str | Mapping[Any, float] | None = None

    def _schema(self) -> pa.Schema:
        for name in (self.time, *((self.weight,) if isinstance(self.weight, str) else ())):
            known(self, name, self.inputs[0].schema)
        _ = self.pane_ms
        if self.mode not in _MODES:
            raise self.wrong("there is no such mode", mode=self.mode, known=", ".join(_MODES))
        if self.policy not in (None, *POLICIES):
            raise self.wrong("there is no such policy", policy=self.policy, known=", ".join(POLICIES))
        for option in ("budget", "policy", "cost", "weight"):
            if getattr(self, option) is not None and not self.by_key:
                raise self.wrong(
                    "windows in append mode are all emitted at once",
                    "mode='lazy' or mode='eager' serves key by key",
                    option=option,
                )
        check_service(self, budget=self.budget, cost=self.cost, weight=self.weight)
        return self.inputs[0].schema

    @property
    def by_key(self) -> bool:
        """Whether of each group only the most recent window is served, in the order of a policy."""
        return self.mode != "append"

    @property
    def pane_ms(self) -> int:
        """The length of its panes."""
        return pane_ms(self.size_ms, self.slide_ms)

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Add the time."""
        return (required | {self.time},)

    def describe(self) -> str:
        """Return size, slide and time; of windows that are served by key also how."""
        late = f", {duration(self.delay_ms)} late" if self.delay_ms else ""
        served = ""
        if self.by_key:
            served = f", {self.mode}, {self.policy or 'in_place'}"
            served += "" if self.budget is None else f", budget {self.budget}"
            if self.weight is not None:
                served += f", weight {self.weight}" if isinstance(self.weight, str) else ", weights by key"
        return f"{duration(self.size_ms)} by {duration(self.slide_ms)} over {self.time}{late}{served}"


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """Aggregates each group: of a window, or of the `WINDOW` of an aggregate before it.

    The output has the group's columns, `WINDOW`, and the aggregates but for `WEIGHT`. Windows over an update
    stream, and those that are served by key, are updates of their groups, so these are its key (UpStream
    §3.2).
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "aggregate"

    group_by: tuple[str, ...]
    aggregates: tuple[tuple[str, Expression], ...]

    def _schema(self) -> pa.Schema:
        above = self.inputs[0]
        schema = above.schema
        if not self.aggregates:
            raise self.wrong("nothing is aggregated", "such as agg(load='avg(value)')")
        windowed = isinstance(above, Window)
        if isinstance(above, Window):
            check_service(self, weight=above.weight, key=self.group_by)
        if not windowed and WINDOW not in self.group_by:
            raise self.wrong("an aggregate over a stream needs a window", "call window(...) before group_by")
        apart = None if windowed else window_by_key(above)
        if apart is not None:
            raise self.wrong(
                "windows that are served by key are not aggregated by window",
                "their groups do not close together; mode='append' has all windows",
                mode=apart.mode,
            )
        fields = [known(self, name, schema) for name in self.group_by]
        if windowed:
            fields.append(pa.field(WINDOW, _WINDOW_TYPE))
        for name, expression in self.aggregates:
            for used in expression.columns:
                known(self, used, schema, expression)
            if name != WEIGHT:
                fields.append(pa.field(name, aggregate_type(expression, schema)))
        for partial in () if self.decomposition is None else self.decomposition.partials:
            self._check_fold(partial, schema)
        return distinct(self, pa.schema(fields))

    def _check_fold(self, partial: Partial, schema: pa.Schema) -> None:
        """Refuse what is surely no number and no time, of which partials cannot be made."""
        if partial.kind in ("count", "first", "last"):
            return
        kind = partial_type(replace(partial, kind="min"), schema)
        if kind != UNKNOWN and not (_is_number(kind) or pa.types.is_temporal(kind)):
            raise self.wrong(
                f"windows have no {partial.kind} of this type",
                "min, max and sum are of integers, floats, dates and times; first and last of any type",
                expression=partial.expression,
                type=kind,
            )

    def _key(self) -> tuple[str, ...]:
        above = self.inputs[0]
        if not isinstance(above, Window):
            # What closes together is aggregated over groups, whatever they are keys of.
            return tuple(name for name in self.group_by if name in above.key)
        lost = [name for name in above.key if name not in self.group_by]
        if lost:
            raise self.wrong(
                "an update stream would lose its key",
                f"group by {', '.join(above.key)}; group_by('window') behind that aggregates all groups",
                column=lost[0],
            )
        return self.group_by if above.key or above.by_key else ()

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
        made = ", ".join(f"{one.text} AS {name}" for name, one in self.aggregates if name != WEIGHT)
        return f"{made} by {', '.join(self.group_by)}" if self.group_by else made


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
        return self.aggregate.key

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
        assembly = self.decomposition.assembly.items()
        made = ", ".join(f"{text} AS {name}" for name, text in assembly if name != WEIGHT)
        groups = f" by {', '.join(self.aggregate.group_by)}" if self.aggregate.group_by else ""
        return f"{self.window.describe()}: {made}{groups}"


def _more_columns(options: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    """Return the columns that an update queue's other arguments name."""
    given = (dict(options).get(name) for name in ("arrival", "weight"))
    return tuple(name for name in given if isinstance(name, str))


def _check_results(node: Node, key: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> None:
    """Refuse results of a queue's function that would lose the key, where their columns can be told."""
    output = dict(options).get("output_schema")
    if not isinstance(output, str):
        return
    try:
        names = parse_schema(output).names
    except InvalidUsageError:
        return  # Spark knows more than we do, and is asked when the graph starts
    lost = [name for name in key if name not in names]
    if lost:
        raise node.wrong("an update stream would lose its key", "keep it in output_schema", column=lost[0])


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
        for name in (*self.update_key, self.time, *_more_columns(self.options)):
            known(self, name, schema)
        options = dict(self.options)
        check_service(
            self, budget=self.budget, cost=options.get("cost"), weight=options.get("weight"),
            key=self.update_key, timed=options.get("apply") is not None,
        )  # fmt: skip
        # What `apply` returns is written in Spark's DDL: its columns are known when the graph runs.
        return schema

    def _key(self) -> tuple[str, ...]:
        lost = [name for name in self.inputs[0].key if name not in self.update_key]
        if lost:
            raise self.wrong(
                "an update stream would lose its key",
                "the key of a queue has that of the update stream above it",
                column=lost[0],
                key=", ".join(self.update_key),
            )
        _check_results(self, self.update_key, self.options)
        return self.update_key

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Add key and time; a function in it may need every column."""
        if "apply" in dict(self.options):
            return (frozenset(self.inputs[0].schema.names),)
        return (required | {*self.update_key, self.time, *_more_columns(self.options)},)

    def describe(self) -> str:
        """Return key, time, policy and budget."""
        budget = "" if self.budget is None else f", budget {self.budget}"
        semantics = dict(self.options).get("semantics", "update")
        more = "" if semantics == "update" else f", {semantics}"
        return f"({', '.join(self.update_key)}) newest by {self.time}, {self.policy}{budget}{more}"


@dataclass(frozen=True, slots=True)
class UpdateUnion(Union):
    """One update stream of several with the same key: the newest tuple of each key (UpStream §3.2).

    Parameters
    ----------
    update_key : tuple of str
        The update key, which is that of those inputs that are update streams.
    time : str
        The column that orders the updates of a key.
    prefer : int, optional
        The input whose truth wins a tie.
    options : tuple of pairs
        Other arguments of `penstock.update_union`.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "update union"

    update_key: tuple[str, ...]
    time: str
    prefer: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def _schema(self) -> pa.Schema:
        # Without the zero-argument form, which finds no class that has slots.
        schema = Union._schema(self)
        for name in (*self.update_key, self.time, *_more_columns(self.options)):
            known(self, name, schema)
        options = dict(self.options)
        check_service(
            self, budget=options.get("budget"), cost=options.get("cost"), weight=options.get("weight"),
            key=self.update_key, timed=options.get("apply") is not None,
        )  # fmt: skip
        return schema

    def _key(self) -> tuple[str, ...]:
        for input in self.inputs:
            if input.key and set(input.key) != set(self.update_key):
                raise self.wrong(
                    "the update keys of a union differ",
                    key=", ".join(self.update_key),
                    input=", ".join(input.key),
                )
        _check_results(self, self.update_key, self.options)
        return self.update_key

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Add key and time; a function in it may need every column."""
        if "apply" in dict(self.options):
            required = frozenset(self.schema.names)
        return (required | {*self.update_key, self.time, *_more_columns(self.options)},) * len(self.inputs)

    def describe(self) -> str:
        """Return key, time, and the input whose truth wins."""
        prefer = "" if self.prefer is None else f", ties to {self.inputs[self.prefer].name}"
        return f"({', '.join(self.key)}) newest by {self.time}{prefer}"


@dataclass(frozen=True, slots=True)
class Join(Node):
    """Joins two streams by columns of the same name, within an interval of time.

    Two tuples match if their times differ by at most `within_ms`. Of update streams, which are joined by
    their key, the newest match of each key comes out, with the greater of both times (UpStream §3.2).

    Parameters
    ----------
    on, time, within_ms, condition
        As of `Graph.join`.
    updates : bool
        Whether its inputs are taken for update streams whose key is `on`.
    unit : str, optional
        Of a time of integers.
    options : tuple of pairs
        Other arguments of `penstock.update_join`.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "join"

    on: tuple[str, ...]
    time: str
    within_ms: int
    condition: Expression | None = None
    updates: bool = False
    unit: TimeUnit | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def _schema(self) -> pa.Schema:
        left, right = (input.schema for input in self.inputs)
        for schema in (left, right):
            for name in (*self.on, self.time):
                known(self, name, schema)
        for name in (*self.on, self.time):
            types = [schema.field(name).type for schema in (left, right)]
            if types[0] != types[1] and UNKNOWN not in types:
                raise self.wrong(
                    "a column has other types on the sides of a join",
                    "cast one of them",
                    column=name,
                    left=types[0],
                    right=types[1],
                )
        shared = {*self.on, self.time}
        fields = [*left, *(one for one in right if one.name not in shared)]
        schema = distinct(self, pa.schema(fields))
        if self.condition is not None and infer(self, self.condition, schema) not in (UNKNOWN, pa.bool_()):
            raise self.wrong("a join's condition is not boolean", expression=self.condition.text)
        return schema

    def _key(self) -> tuple[str, ...]:
        left, right = (input.key for input in self.inputs)
        if self.updates:
            left, right = left or self.on, right or self.on
        if not left and not right:
            return ()
        if set(left) != set(self.on) or set(right) != set(self.on):
            raise self.wrong(
                "update streams are joined by their key",
                "say on=KEY, and what else must be equal in the condition",
                on=", ".join(self.on),
                left=", ".join(left) or "none",
                right=", ".join(right) or "none",
            )
        return left

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return for each side what is required of it, with keys and time."""
        used = required | {*self.on, self.time} | set(self.condition.columns if self.condition else ())
        return tuple(used & set(input.schema.names) for input in self.inputs)

    def describe(self) -> str:
        """Return keys, interval and condition."""
        more = f" and {self.condition.text}" if self.condition else ""
        return f"on {', '.join(self.on)} within {duration(self.within_ms)} of {self.time}{more}"


def update_time(node: Node) -> str | None:
    """Return the column that orders the updates of a key in what leaves a node; None if it is not there.

    It is that of the operator or source that made an update stream, unless a projection drops or changes it.
    """
    while node.inputs:
        if isinstance(node, UpdateQueue | UpdateUnion | Join):
            return node.time
        if isinstance(node, Aggregate | Assemble):
            return None  # of windows it is in a struct
        if isinstance(node, Select):
            above = update_time(node.inputs[0])
            return above if above is not None and dict(node.columns).get(above) == column(above) else None
        node = node.inputs[0]
    return node.time if isinstance(node, Source) else None


def window_by_key(node: Node) -> Window | None:
    """Return windows that are served by key, if what reaches a node is made of their results.

    The windows of different groups do not close together there.
    """
    waiting = [node]
    while waiting:
        at = waiting.pop()
        window = at.window if isinstance(at, Assemble) else at.inputs[0] if at.inputs else None
        if isinstance(at, Aggregate | Assemble) and isinstance(window, Window):
            if window.by_key:
                return window
        else:
            waiting += at.inputs
    return None


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
