"""The designs from which the search starts (H-Store §4.3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from penstock.designing.cost import Choice, Cost, CostModel
from penstock.designing.cost_kernels import Masks
from penstock.designing.traces.access_graph import group_columns
from penstock.designing.workload import TableOption, Workload
from penstock.errors import InvalidUsageError
from penstock.procedures.partitions.design import PartitionColumns
from penstock.procedures.texts import Numbers

__all__ = ["declared_choice", "initial_choices", "most_frequent", "route_by_frequency"]

_GRAPH_TRANSACTIONS = 5_000
"""The access graph is made from this many transactions, since it only gives starting points of the search."""


def initial_choices(model: CostModel) -> tuple[Choice, Cost]:
    """Return the initial design with the least cost, and its cost.

    The initial designs are the declared design and the design by the most frequently accessed columns. There
    is also a design for each set of columns that the access graph joins, and for each pair of such sets. The
    paper starts only from the most frequently accessed columns.

    Raises
    ------
    InvalidUsageError
        If no initial design fits into the memory of a partition.
    """
    workload = model.workload
    best: tuple[Choice, Cost] | None = None
    for tables in _starts(model):
        if not model.is_feasible(tables):
            continue
        masks = model.masks(tables)
        choice = Choice(tables, route_by_frequency(workload, masks))
        cost = model.cost(masks, choice.routing)
        if best is None or cost.total < best[1].total:
            best = choice, cost
    if best is None:
        raise InvalidUsageError(
            "no design fits into the memory of a partition", hint="raise memory_bytes, or add partitions"
        )
    return best


def declared_choice(workload: Workload) -> Choice:
    """Return the design that the tables declare.

    If the trace was recorded in a run, each procedure is routed by the attribute that most often leads to an
    accessed partition. In other traces, no attribute routes the transactions of a declared design.
    """
    masks = workload.fixed.copy()
    for table, option in enumerate(workload.declared.tolist()):
        masks |= workload.row(table, option)
    routing = route_by_frequency(workload, masks)
    return Choice(workload.declared.copy(), routing if workload.trace.recorded else np.minimum(routing, 0))


def _starts(model: CostModel) -> Iterator[Numbers]:
    workload = model.workload
    yield workload.declared.copy()
    frequent = most_frequent(model)
    yield frequent
    partitioned = np.array([
        _option(workload, table, max(heats, key=lambda name: heats[name]))
        for table, heats in enumerate(workload.heat_of_column)
    ])  # fmt: skip
    yield partitioned
    groups = group_columns(workload.trace.slice(0, _GRAPH_TRANSACTIONS))
    yield from _starts_of_pairs(workload, frequent, groups)
    for group in groups:
        for with_ranges in (False, True):
            tables = frequent.copy()
            for table, name in enumerate(workload.names):
                for column in workload.heat_of_column[table]:
                    if (name, column) in group:
                        tables[table] = _option(workload, table, column, with_ranges=with_ranges)
            yield tables
            for table, writes in enumerate(workload.writes.tolist()):
                if not writes:
                    tables[table] = workload.options[table].index(TableOption(None))
            yield tables.copy()


def _starts_of_pairs(
    workload: Workload, frequent: Numbers, groups: list[frozenset[tuple[str, str]]]
) -> Iterator[Numbers]:
    """Yield a design for each ordered pair of column sets.

    A table with a column in each set is partitioned by both columns. A table with a column only in the first
    set is partitioned by this column. Other tables have their option in `frequent`.
    """
    if not any(len(option.columns) > 1 for options in workload.options for option in options):
        return
    for one, other in permutations(groups, 2):
        tables = frequent.copy()
        for table, name in enumerate(workload.names):
            spec = workload.trace.tables[workload.tables[table]]
            pair = tuple(column for column in spec.key if (name, column) in one | other)
            single = [column for column in pair if (name, column) in one]
            if single:
                tables[table] = _option(workload, table, pair if len(pair) == 2 else single[0])
        yield tables


def most_frequent(model: CostModel) -> Numbers:
    """Return the design that partitions each table by its most frequently accessed key column.

    Tables that are only read are replicated instead, as long as they fit into the memory of a partition.
    Tables with fewer bytes per access are replicated first. The paper orders tables by bytes per transaction.
    """
    workload = model.workload
    tables = np.array([
        _option(workload, table, max(heats, key=lambda name: heats[name]))
        for table, heats in enumerate(workload.heat_of_column)
    ], np.int64)  # fmt: skip
    sizes = workload.trace.sizes[list(workload.tables)] / np.maximum(workload.heat, 1)
    for table in np.argsort(sizes, kind="stable").tolist():
        if not workload.writes[table]:
            before = tables[table]
            tables[table] = workload.options[table].index(TableOption(None))
            if not model.is_feasible(tables):
                tables[table] = before
    return tables


def _option(workload: Workload, table: int, column: PartitionColumns, *, with_ranges: bool = False) -> int:
    """Return the option that partitions a table by `column`; if it does not exist, the declared option."""
    found = [
        place
        for place, option in enumerate(workload.options[table])
        if option.column == column and option.index is None
    ]
    if not found:
        return int(workload.declared[table])
    return found[-1] if with_ranges else found[0]


def route_by_frequency(workload: Workload, masks: Masks) -> Numbers:
    """Return, for each procedure, the attribute that most often leads to an accessed partition."""
    routing = np.full(len(workload.attributes), -1, np.int64)
    for procedure, names in enumerate(workload.attributes):
        if names:
            chosen = workload.procedure == procedure
            bases, weights = workload.bases[:, chosen], workload.weights[chosen]
            needed = masks[: workload.records][chosen]
            bits = np.uint64(1) << np.maximum(bases, 0).astype(np.uint64)
            fits = (((bits & needed) != 0) & (bases >= 0)) @ weights
            routing[procedure] = int(np.argmax(fits[: len(names)]))
    return routing
