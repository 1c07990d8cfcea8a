"""Check that each query of a plan can run, with at most one operator that keeps state."""

from __future__ import annotations

from penstock.dataflow.nodes import (
    Aggregate,
    Apply,
    Assemble,
    Join,
    Materialize,
    Node,
    PushedScan,
    Select,
    Sink,
    Source,
    StreamTableJoin,
    Transactions,
    Union,
    UpdateQueue,
    UpdateUnion,
    Where,
    Window,
    WindowJoin,
    topological,
    window_by_key,
)
from penstock.errors import InvalidUsageError

__all__ = ["check_runnable", "find_stateful", "holds_back"]


def check_runnable(root: Node) -> None:
    """Check that a plan can run.

    Raises
    ------
    InvalidUsageError
        If an operator cannot run at its place in the plan.
    """
    nodes = list(topological(root))
    for node in nodes:
        _refuse(node, nodes)
    for end in (root, *(node.inputs[0] for node in nodes if isinstance(node, Materialize))):
        _refuse_two_states(end)


def holds_back(end: Node) -> bool:
    """Return whether the query of a node's output may leave rows for later triggers.

    Such a query uses timeouts, so Spark never ends it by itself.
    """
    limit: object = None
    match end:
        case Materialize():
            return False
        case UpdateQueue() | UpdateUnion() | Window():
            limit = end.options.budget or end.options.freshness
        case Assemble():
            limit = end.window.options.budget or end.window.options.freshness
    return limit is not None or any(map(holds_back, end.inputs))


def _refuse(node: Node, nodes: list[Node]) -> None:
    description = _describe_exclusive(node)
    if description is not None and _count_copies(node, nodes) > 1:
        raise InvalidUsageError(
            f"{description} has several readers, and would run once for each",
            hint=f"persist its output: set persist to 'always' for {node.name}",
            node=node.name,
        )
    if isinstance(node, Join) and not node.key:
        raise InvalidUsageError(
            "a running graph can join only update streams",
            hint="declare the inputs with source(key=..., time=...) or update_queue",
            node=node.name,
        )
    if isinstance(node, Aggregate) and not isinstance(node.inputs[0], Window):
        _refuse_stateful(node)
    supported = (
        Aggregate
        | Apply
        | Assemble
        | UpdateQueue
        | PushedScan
        | Materialize
        | Select
        | Sink
        | Source
        | StreamTableJoin
        | Transactions
        | Union
        | Where
        | Window
        | WindowJoin
    )
    if not isinstance(node, supported | Join):
        raise InvalidUsageError(f"{node.label}: this operator cannot run yet", node=node.name)


def _describe_exclusive(node: Node) -> str | None:
    """Return a description of an operator that may have only one reader; None for other operators."""
    if isinstance(node, Transactions):
        return "an operator of transactions"
    if isinstance(node, Apply):
        return "a user-defined operator"
    if isinstance(node, UpdateQueue | UpdateUnion):
        return f"an {node.label}"
    if isinstance(node, Join):
        return "a join"
    if isinstance(node, Aggregate | Assemble) and window_by_key(node) is not None:
        return "an aggregate over windows that are served by key"
    return None


def _count_copies(node: Node, nodes: list[Node]) -> int:
    """Count the copies of a node: one for each reader of the node or of its stateless successors."""
    readers = [reader for reader in nodes for above in reader.inputs if above is node]
    through = Where | Select | StreamTableJoin | Union
    return max(
        1, sum(_count_copies(reader, nodes) if isinstance(reader, through) else 1 for reader in readers)
    )


def _refuse_stateful(node: Aggregate) -> None:
    """Refuse to aggregate windows after an operator that spreads their rows over several micro-batches."""
    at = node.inputs[0]
    while isinstance(at, Where | Select | StreamTableJoin):
        at = at.inputs[0]
    if not isinstance(at, Aggregate | Assemble | WindowJoin):
        raise InvalidUsageError(
            "windows cannot be aggregated after a queue, a union or a p-stream",
            node=node.name,
            after=at.name,
        )


def _refuse_two_states(end: Node) -> None:
    """Refuse a query with more than one Penstock state, as Spark would."""
    operators = find_stateful(end)
    if len(operators) > 1:
        below, above = operators[0], operators[1]
        hint = f"persist the output of the first: set persist to 'always' for {above.name}"
        if isinstance(below, Join | UpdateUnion):
            hint += (
                ". If its input needs no queue, leave the queue out, and declare the source an update stream"
            )
        raise InvalidUsageError(
            "a query can hold only one window, update queue, union or join of update streams",
            hint=hint,
            first=above.name,
            second=below.name,
            node=above.name,
        )


def find_stateful(end: Node) -> list[Node]:
    """Return the operators that keep state in Penstock, in the query that produces a node's output."""
    operators: list[Node] = []
    stack = [end]
    while stack:
        node = stack.pop()
        windows = isinstance(node, Aggregate) and isinstance(node.inputs[0], Window)
        if windows or isinstance(
            node, Apply | Assemble | Transactions | UpdateQueue | UpdateUnion | Join | WindowJoin
        ):
            operators.append(node)
        if isinstance(node, WindowJoin):
            # This operator also makes the windows of both sides.
            stack += [above for side in node.inputs for above in node.aggregate_of(side).inputs]
        elif not isinstance(node, Materialize):
            stack += node.inputs
    return operators
