"""The base class of `Graph`: the last operator, and checks of names and columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from penstock.conf.arguments import check_keywords
from penstock.dataflow.nodes import Node, Select, Sink, Source, UpdateQueue, UpdateUnion, Window, topological
from penstock.dataflow.nodes.base import infer
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.types import UNKNOWN
from penstock.operators.update_stream.deletes import check_delete_results, mark_deletes
from penstock.operators.update_stream.options import column_names
from penstock.sql.expression import Expression

__all__ = ["GraphBase", "mark_input"]


@check_keywords
@dataclass(frozen=True, slots=True)
class GraphBase:
    """The base class of `Graph`, which documents the parameters."""

    name: str
    root: Node
    groups: tuple[str, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the output."""
        return self.root.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The update key if the output is an update stream; else empty."""
        return self.root.key

    def _ready(self) -> Node:
        if self.groups is not None or isinstance(self.root, Window):
            raise InvalidUsageError(
                "a window or group_by has no aggregate", hint="call agg after it", graph=self.name
            )
        return self.root

    @staticmethod
    def _input_of(other: object, node: str) -> Node:
        """Return the last operator of a graph that is an input of `node`."""
        if not isinstance(other, GraphBase):
            raise InvalidUsageError(
                "an input is not a graph",
                got=type(other).__name__,
                node=node,
                hint="name keys by keyword",
            )
        return other._ready()

    def _open(self, kind: str, name: str | None) -> str:
        """Check that an operator may follow, and return its name."""
        if isinstance(self.root, Sink):
            raise InvalidUsageError("nothing may follow a sink", graph=self.name)
        self._ready()
        return self._choose_name(kind, name)

    def _choose_name(self, kind: str, name: str | None) -> str:
        names_in_use = {node.name for node in topological(self.root)}
        if name is not None:
            if name in names_in_use:
                raise InvalidUsageError("two operators have the same name", name=name, graph=self.name)
            return name
        number = 2
        name = kind
        while name in names_in_use:
            name, number = f"{kind}_{number}", number + 1
        return name

    def _append(self, node: Node) -> Self:
        sources = [source.name for source in topological(node) if isinstance(source, Source)]
        twice = sorted({name for name in sources if sources.count(name) > 1})
        if twice:
            raise InvalidUsageError(
                "two sources have the same name",
                hint="declare the source once, and build both graphs from it",
                name=twice[0],
                graph=self.name,
            )
        return type(self)(self.name, node)

    def _expression(self, text: str, node: str) -> Expression:
        if not isinstance(text, str):
            raise InvalidUsageError(
                "an expression of a graph must be a text in Spark SQL",
                hint=f"write {str(text).removeprefix('Column<').removesuffix('>')}",
                node=node,
            )
        return Expression.parse(text).resolve(self.schema.names, node=node)

    def _column(self, name: str, node: str, option: str = "time") -> str:
        (name,), names = column_names(option, name), self.schema.names
        if name in names:
            return name
        matches = [candidate for candidate in names if candidate.lower() == name.lower()]
        if len(matches) != 1:
            raise InvalidUsageError(f"there is no column {name!r}", hint=did_you_mean(name, names), node=node)
        return matches[0]

    def _add_queue(self, node: UpdateQueue | UpdateUnion) -> Self:
        """Add a queue.

        If the queue has deletes, a projection before each input of the queue marks the deletes.
        """
        delete_when = node.options.delete_when
        if delete_when is None:
            return self._append(node)
        inputs = tuple(
            mark_input(
                input, delete_when, f"{node.name}_deletes_{place}" if place else f"{node.name}_deletes"
            )
            for place, input in enumerate(node.inputs)
        )
        queue = replace(node, inputs=inputs, options=replace(node.options, delete_when=None))
        try:
            check_delete_results(queue.schema, UNKNOWN)
        except InvalidUsageError as error:
            raise node.wrong(error.fact, error.hint, **error.context) from error
        return self._append(queue)


def mark_input(input: Node, delete_when: str, name: str) -> Select:
    """Return a projection of a stream that adds the column that marks deletes."""
    condition, columns = mark_deletes(delete_when, input.schema.names)
    projection = Select(name, (input,), columns)
    if (kind := infer(projection, condition, input.schema)) not in (pa.bool_(), UNKNOWN):
        raise projection.wrong("delete_when is not a condition", delete_when=delete_when, type=kind)
    return projection
