"""The union of windows that all come out."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.operators.graph.nodes.base import Node
from penstock.operators.graph.nodes.stateless import Materialize, Select, StreamTableJoin, Union, Where
from penstock.operators.graph.nodes.window import Aggregate, Assemble, window_by_key
from penstock.operators.graph.nodes.window_join import WindowJoin

__all__ = ["WindowUnion", "has_all_windows"]


@dataclass(frozen=True, slots=True)
class WindowUnion(Union):
    """All windows of several aggregates in append mode.

    None of them makes another one worthless, and several may be of the same group and time: it is no update
    stream, whatever its inputs are.
    """

    def _key(self) -> tuple[str, ...]:
        return ()

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return what is required, and the keys of all inputs, which none of them may drop."""
        return (required | {name for above in self.inputs for name in above.key},) * len(self.inputs)


def has_all_windows(node: Node) -> bool:
    """Whether what leaves a node is made of windows that all come out, and of nothing else."""
    if isinstance(node, Aggregate | Assemble):
        return window_by_key(node) is None
    if isinstance(node, Where | Select | StreamTableJoin | Materialize | Union) and not node.stateful:
        return all(map(has_all_windows, node.inputs))
    return isinstance(node, WindowJoin)
