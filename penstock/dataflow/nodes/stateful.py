"""Stateful operators other than windows: update queues, unions and joins of streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from penstock.dataflow.nodes.base import Node, distinct, find_column, infer
from penstock.dataflow.nodes.service import check_weights, describe_late_rows, describe_limit
from penstock.dataflow.nodes.stateless import Select, Source, Union
from penstock.dataflow.nodes.window import Aggregate, Assemble
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import TimeUnit
from penstock.operators.scheduling.policy import Policy
from penstock.operators.types import UNKNOWN
from penstock.operators.update_stream.choices import Semantics
from penstock.operators.update_stream.deletes import DELETED_COLUMN
from penstock.operators.update_stream.lives import describe_lives, life_steps, silent_field
from penstock.operators.update_stream.operator_options import STALENESS_COLUMN, JoinOptions, QueueOptions
from penstock.operators.update_stream.options import column_names
from penstock.operators.update_stream.steps import check_times
from penstock.sql.expression import Expression, column
from penstock.units import duration_text

__all__ = ["Join", "UpdateQueue", "UpdateUnion", "update_time"]


def _output_columns(schema: pa.Schema, options: QueueOptions) -> pa.Schema:
    served = _served_columns(schema, options)
    if options.delete_ttl is not None and options.delete_when is None and DELETED_COLUMN not in schema.names:
        raise InvalidUsageError("delete_ttl is for streams with deletes", hint="pass delete_when, too")
    return served if options.on_silent is None else served.append(silent_field(served.names))


def _served_columns(schema: pa.Schema, options: QueueOptions) -> pa.Schema:
    """Return the columns of the rows that a queue serves."""
    if options.apply is None:
        staleness = [pa.field(STALENESS_COLUMN, pa.float64())] if options.staleness_column else []
        return pa.schema([*schema, *staleness])
    output = options.output_schema
    if not isinstance(output, str):
        return pa.schema([(name, UNKNOWN) for name in output.names])
    try:
        return parse_schema(output)
    except InvalidUsageError:
        return schema  # only Spark can parse this schema; Spark checks it when the graph starts


def _check_columns(node: UpdateQueue | UpdateUnion, schema: pa.Schema) -> None:
    """Check that the columns of a queue exist, and that times have suitable types if the types are known."""
    options = node.options
    column_names("arrival", () if options.arrival is None else options.arrival)
    for name in (*node.update_key, node.time, *options.columns):
        find_column(node, name, schema)
    check_weights(node, options.weight, node.update_key)
    time = schema.field(node.time)
    if time.type == UNKNOWN:
        return
    try:
        check_times(node.update_key, time, options.arrival)
        for option, life in (("ttl", options.ttl), ("delete_ttl", options.delete_ttl)):
            if isinstance(life, int):  # `shape` sets the duration "1 s" even if the time is an integer
                life_steps(option, life, time.type)
    except InvalidUsageError as error:
        raise node.wrong(error.fact, error.hint, **error.context) from None


def _check_results(node: Node, key: tuple[str, ...]) -> None:
    """Refuse a user function of a queue whose results lose the key."""
    missing = [name for name in key if name not in node.schema.names]
    if missing:
        raise node.wrong("an update stream would lose its key", "keep it in output_schema", column=missing[0])


def _needed_columns(node: UpdateQueue | UpdateUnion, required: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Return the columns that a queue needs; a user function may need every column."""
    columns = frozenset(node.inputs[0].schema.names)
    if node.options.apply is None and node.options.late_to is None:
        columns &= required | {*node.update_key, node.time, *node.options.columns}
    return (columns,) * len(node.inputs)


@dataclass(frozen=True, slots=True)
class UpdateQueue(Node):
    """An update queue (UpStream §3): only the newest tuple of each key waits.

    Parameters
    ----------
    update_key, time
        As in `penstock.update_queue`.
    options : QueueOptions
        Other arguments of `penstock.update_queue`.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "update queue"

    update_key: tuple[str, ...]
    time: str
    options: QueueOptions = field(default_factory=QueueOptions)

    def _schema(self) -> pa.Schema:
        schema = self.inputs[0].schema
        _check_columns(self, schema)
        return distinct(self, _output_columns(schema, self.options))

    def _key(self) -> tuple[str, ...]:
        missing = [name for name in self.inputs[0].key if name not in self.update_key]
        if missing:
            raise self.wrong(
                "an update stream would lose its key",
                "add it to the key of the queue",
                column=missing[0],
                key=", ".join(self.update_key),
            )
        _check_results(self, self.update_key)
        return self.update_key

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the required columns, key and time; a user function may need every column."""
        return _needed_columns(self, required)

    @property
    def needs_newest_only(self) -> bool:
        """Return whether a reader may drop all tuples of a micro-batch except the newest tuple of each key.

        The policies linecutting and freshest need all tuples, because they count the tuples of each key. A
        queue also needs all tuples if its options name a column of arrival times, weights or classes:
        staleness starts at the first arrival, and weights are checked in every tuple.
        """
        options = self.options
        return options.may_conflate and not Policy(options.policy).uses_rates and not options.columns

    def describe(self) -> str:
        """Return key, time, policy and budget."""
        options = self.options
        budget = describe_limit(options.budget, options.contract)
        suffix = "" if options.semantics == Semantics.UPDATE else f", {options.semantics}"
        suffix += describe_lives(options, options.delete_ttl) + describe_late_rows(options.late_to)
        return f"({', '.join(self.update_key)}) newest by {self.time}, {options.policy}{budget}{suffix}"


@dataclass(frozen=True, slots=True)
class UpdateUnion(Union):
    """The union of update streams with the same key: the newest tuple of each key (UpStream §3.2).

    Parameters
    ----------
    update_key : tuple of str
        The update key. Inputs that are update streams must have this key.
    time : str
        The column that orders the updates of a key.
    prefer : int, optional
        The position of the input that wins ties.
    options : QueueOptions
        Other arguments of `penstock.update_union`.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "update union"

    update_key: tuple[str, ...]
    time: str
    prefer: int | None = None
    options: QueueOptions = field(default_factory=QueueOptions)

    def _schema(self) -> pa.Schema:
        # Zero-argument super() fails in a dataclass with slots.
        schema = Union._schema(self)
        _check_columns(self, schema)
        return distinct(self, _output_columns(schema, self.options))

    def _key(self) -> tuple[str, ...]:
        for input in self.inputs:
            if input.key and set(input.key) != set(self.update_key):
                raise self.wrong(
                    "the update keys of a union differ",
                    key=", ".join(self.update_key),
                    input=", ".join(input.key),
                )
        _check_results(self, self.update_key)
        return self.update_key

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the required columns, key and time; a user function may need every column."""
        return _needed_columns(self, required)

    def describe(self) -> str:
        """Return key, time and the preferred input."""
        prefer = "" if self.prefer is None else f", ties to {self.inputs[self.prefer].name}"
        lives = "" if self.options.contract is None else describe_limit(None, self.options.contract)
        lives += describe_lives(self.options, self.options.delete_ttl)
        lives += describe_late_rows(self.options.late_to)
        return f"({', '.join(self.key)}) newest by {self.time}{prefer}{lives}"


@dataclass(frozen=True, slots=True)
class Join(Node):
    """Join two streams by columns of the same name, within a time interval.

    Two tuples match if their times differ by at most `within_us`. Update streams are joined by their key. The
    newest match of each key is emitted, with the greater of both times (UpStream §3.2).

    Parameters
    ----------
    on, time, within_us, condition
        As in `Graph.join`.
    updates : bool
        Whether the inputs are treated as update streams with the key `on`.
    unit : str, optional
        The unit of an integer time.
    options : JoinOptions
        Other arguments of `penstock.update_join`.
    marked : tuple of bool
        Whether each input has a column that marks deletes.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "join"

    on: tuple[str, ...]
    time: str
    within_us: int
    condition: Expression | None = None
    updates: bool = False
    unit: TimeUnit | None = None
    options: JoinOptions = field(default_factory=JoinOptions)
    marked: tuple[bool, bool] = (False, False)

    def _schema(self) -> pa.Schema:
        left, right = (input.schema for input in self.inputs)
        for schema in (left, right):
            for name in (*self.on, self.time):
                find_column(self, name, schema)
        for name in (*self.on, self.time):
            types = [schema.field(name).type for schema in (left, right)]
            if types[0] != types[1] and UNKNOWN not in types:
                raise self.wrong(
                    "a column has different types on the sides of a join",
                    "cast one of them",
                    column=name,
                    left=types[0],
                    right=types[1],
                )
        left, right = (
            pa.schema([field for field in schema if field.name != DELETED_COLUMN]) if mark else schema
            for schema, mark in zip((left, right), self.marked, strict=True)
        )
        shared_columns = {*self.on, self.time}
        fields = [*left, *(field for field in right if field.name not in shared_columns)]
        fields += [pa.field(DELETED_COLUMN, pa.bool_())] if any(self.marked) else []
        schema = distinct(self, pa.schema(fields))
        if self.condition is not None and infer(self, self.condition, schema) not in (UNKNOWN, pa.bool_()):
            raise self.wrong("a join's condition is not boolean", expression=self.condition.text)
        return schema if self.options.on_silent is None else schema.append(silent_field(schema.names))

    def _key(self) -> tuple[str, ...]:
        left, right = (input.key for input in self.inputs)
        if self.updates:
            left, right = left or self.on, right or self.on
        if not left and not right:
            return ()
        if set(left) != set(self.on) or set(right) != set(self.on):
            raise self.wrong(
                "update streams are joined by their key",
                "pass on=KEY, and put other equalities into the condition",
                on=", ".join(self.on),
                left=", ".join(left) or "none",
                right=", ".join(right) or "none",
            )
        return left

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return each side's required columns, keys and time; return all columns if late rows are kept."""
        if self.options.late_to is not None:
            return tuple(frozenset(input.schema.names) for input in self.inputs)
        used = required | {*self.on, self.time} | set(self.condition.columns if self.condition else ())
        return tuple(
            (used - {DELETED_COLUMN} | ({DELETED_COLUMN} if mark else set())) & set(input.schema.names)
            if any(self.marked)
            else used & set(input.schema.names)
            for input, mark in zip(self.inputs, self.marked, strict=True)
        )

    def describe(self) -> str:
        """Return keys, interval and condition."""
        suffix = f" and {self.condition.text}" if self.condition else ""
        lives = (", deletes" if any(self.marked) else "") + describe_lives(self.options)
        lives += describe_late_rows(self.options.late_to)
        return f"on {', '.join(self.on)} within {_duration_us(self.within_us)} of {self.time}{suffix}{lives}"


def _duration_us(us: int) -> str:
    return f"{us} us" if us % 1000 else duration_text(us // 1000)


def update_time(node: Node) -> str | None:
    """Return the column that orders updates in the output of a node; None if it was dropped.

    The column comes from the operator or source that made the update stream, unless a projection drops or
    changes it.
    """
    while node.inputs:
        if isinstance(node, UpdateQueue | UpdateUnion | Join):
            return node.time
        if isinstance(node, Aggregate | Assemble):
            return None  # windows hold their time in a struct
        if isinstance(node, Select):
            above = update_time(node.inputs[0])
            return above if above is not None and dict(node.columns).get(above) == column(above) else None
        node = node.inputs[0]
    return node.time if isinstance(node, Source) else None
