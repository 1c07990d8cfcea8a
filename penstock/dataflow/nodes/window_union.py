"""The union of windows in append mode."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dataflow.nodes.base import Node
from penstock.dataflow.nodes.stateless import Materialize, Select, StreamTableJoin, Union, Where
from penstock.dataflow.nodes.window import Aggregate, Assemble, window_by_key
from penstock.dataflow.nodes.window_join import WindowJoin

__all__ = ["WindowUnion", "has_all_windows"]


@dataclass(frozen=True, slots=True)
class WindowUnion(Union):
    """The union of windows of several aggregates in append mode.

    No window replaces another, and several windows may have the same group and time. So the output is not an
    update stream, even if the inputs are update streams.
    """

    def _key(self) -> tuple[str, ...]:
        return ()

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the required columns and the keys of all inputs; no input may drop them."""
        return (required | {name for above in self.inputs for name in above.key},) * len(self.inputs)


def has_all_windows(node: Node) -> bool:
    """Return whether the output of a node derives only from windows in append mode."""
    if isinstance(node, Aggregate | Assemble):
        return window_by_key(node) is None
    if isinstance(node, Where | Select | StreamTableJoin | Materialize | Union) and not node.stateful:
        return all(map(has_all_windows, node.inputs))
    return isinstance(node, WindowJoin)
