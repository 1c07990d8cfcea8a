"""The base class of graph operators, and functions that walk and rebuild graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from penstock.ddl import type_text
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.types import expression_type
from penstock.sql.expression import Expression

__all__ = ["Node", "distinct", "find_column", "infer", "rebuild", "topological"]


@dataclass(frozen=True, slots=True)
class Node:
    """The base class of operators.

    Parameters
    ----------
    name : str
        The operator's name. Names are unique in a graph as built; rules may repeat a name.
    inputs : tuple of Node
        The operators whose output this operator reads.

    Attributes
    ----------
    schema : pyarrow.Schema
        Schema of the output.
    key : tuple of str
        The update key if the output is an update stream; else empty.
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
        """Return the columns of each input that the required output columns need."""
        return tuple(required for _ in self.inputs)

    def describe(self) -> str:
        """Describe the operator on one line, without its label."""
        return ""

    @property
    def state_name(self) -> str:
        """The operator's name in state and metrics."""
        return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in self.name)

    def wrong(self, fact: str, hint: str | None = None, **context: Any) -> InvalidUsageError:
        """Build an error that names the operator, and spells Arrow types as Spark spells them."""
        known = {
            name: type_text(value) if isinstance(value, pa.DataType) else value
            for name, value in context.items()
        }
        return InvalidUsageError(fact, hint=hint, **known, node=self.name)


def infer(node: Node, expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return an expression's type, or `UNKNOWN` if only Spark can determine it.

    Raises
    ------
    InvalidUsageError
        If the expression uses a missing column or an aggregate.
    """
    if expression.aggregate:
        raise node.wrong("only windows have aggregates", expression=expression.text)
    for name in expression.columns:
        find_column(node, name, schema, expression)
    return expression_type(expression, schema)


def find_column(
    node: Node, name: str, schema: pa.Schema, expression: Expression | None = None
) -> pa.Field[Any]:
    """Return a column of a schema, or raise an error that suggests a similar name."""
    if name not in schema.names:
        context: Mapping[str, Any] = {} if expression is None else {"expression": expression.text}
        raise node.wrong(f"there is no column {name!r}", did_you_mean(name, schema.names), **context)
    return schema.field(name)


def distinct(node: Node, schema: pa.Schema) -> pa.Schema:
    """Return a schema if its column names are distinct; else raise an error that names the duplicates."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise node.wrong("two columns have the same name", "rename one of the columns", column=name)
    return schema


def topological(root: Node) -> Iterator[Node]:
    """Yield every node once, inputs first."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(input, False) for input in reversed(node.inputs)]


def rebuild(root: Node, change: Callable[[Node], Node]) -> Node:
    """Apply `change` to every node, inputs first, and return the new graph.

    A node that several nodes read is changed only once.
    """
    rebuilt: dict[int, Node] = {}
    for node in topological(root):
        inputs = tuple(rebuilt[id(input)] for input in node.inputs)
        is_unchanged = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        rebuilt[id(node)] = change(node if is_unchanged else replace(node, inputs=inputs))
    return rebuilt[id(root)]
