"""The operators of a graph: immutable nodes that hold their inputs, so a node represents the graph above it.

In this package, `above` means towards the sources, and `below` means towards the sink. Every node has its
output schema and validates itself at construction, both in the builder and in every rule that rewrites the
node. A column whose type only Spark can determine has the type `UNKNOWN`.
"""

from penstock.dataflow.nodes.base import Node, rebuild, topological
from penstock.dataflow.nodes.own import Apply, ApplyArguments
from penstock.dataflow.nodes.stateful import Join, UpdateQueue, UpdateUnion, update_time
from penstock.dataflow.nodes.stateless import (
    Materialize,
    PushedScan,
    Select,
    Sink,
    Source,
    SourceKind,
    StreamTableJoin,
    Union,
    Where,
)
from penstock.dataflow.nodes.transactions import Transactions
from penstock.dataflow.nodes.window import (
    WINDOW,
    Aggregate,
    Assemble,
    Extreme,
    RowWindow,
    SessionWindow,
    Window,
    window_by_key,
)
from penstock.dataflow.nodes.window_join import WindowJoin
from penstock.dataflow.nodes.window_union import WindowUnion, has_all_windows

__all__ = [
    "WINDOW",
    "Aggregate",
    "Apply",
    "ApplyArguments",
    "Assemble",
    "Extreme",
    "Join",
    "Materialize",
    "Node",
    "PushedScan",
    "RowWindow",
    "Select",
    "SessionWindow",
    "Sink",
    "Source",
    "SourceKind",
    "StreamTableJoin",
    "Transactions",
    "Union",
    "UpdateQueue",
    "UpdateUnion",
    "Where",
    "Window",
    "WindowJoin",
    "WindowUnion",
    "has_all_windows",
    "rebuild",
    "topological",
    "update_time",
    "window_by_key",
]
