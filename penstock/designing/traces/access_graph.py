"""The access graph: key columns that transactions access with the same value (H-Store §4.5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from penstock.designing.traces.trace import ANY_TABLE, Trace

__all__ = ["Edge", "access_graph", "group_columns"]

_MIN_SHARE = 0.5
"""An edge counts if its columns are equal in this share of the transactions that access both tables."""

Column = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Edge:
    """Two columns that transactions access together.

    Attributes
    ----------
    columns : tuple
        The two columns. Each is a pair of a table's name and the name of a column of its key.
    weight : int
        The number of transactions that access both columns with the same value.
    together : int
        The number of transactions that access both tables.
    """

    columns: tuple[Column, Column]
    weight: int
    together: int


def access_graph(trace: Trace) -> list[Edge]:
    """Return the edges between columns of different tables, the heaviest first."""
    _, numbers = np.unique(trace.values, return_inverse=True)
    codes = numbers.reshape(trace.values.shape) * trace.transactions + trace.transaction
    values = {
        (table, column): np.unique(codes[column][(trace.table == table) & trace.known[column]])
        for table, spec in enumerate(trace.tables)
        for column in range(len(spec.key))
    }
    touched = {
        table: np.unique(trace.transaction[trace.table == table])
        for table in np.unique(trace.table).tolist()
        if table != ANY_TABLE
    }
    edges = []
    for one, other in combinations(sorted(touched), 2):
        together = len(np.intersect1d(touched[one], touched[other], assume_unique=True))
        specs = trace.tables[one], trace.tables[other]
        for columns in product(range(len(specs[0].key)), range(len(specs[1].key))):
            kinds = [spec.key_columns[column].kind for spec, column in zip(specs, columns, strict=True)]
            if not together or kinds[0] is not kinds[1]:
                continue
            common = np.intersect1d(values[one, columns[0]], values[other, columns[1]], assume_unique=True)
            weight = len(np.unique(common % trace.transactions))
            if weight:
                names = [(spec.name, spec.key[column]) for spec, column in zip(specs, columns, strict=True)]
                edges.append(Edge((names[0], names[1]), weight, together))
    return sorted(edges, key=lambda edge: -edge.weight)


def group_columns(trace: Trace, edges: Sequence[Edge] | None = None) -> list[frozenset[Column]]:
    """Return sets of columns that may partition their tables alike.

    A set has a column and the columns that edges join to it, directly or through other columns. It has at
    most one column of each table, the column with the heaviest edge.
    """
    strong = [
        edge
        for edge in (access_graph(trace) if edges is None else edges)
        if edge.weight >= _MIN_SHARE * edge.together
    ]
    centers = dict.fromkeys(column for edge in strong for column in edge.columns)
    groups: dict[frozenset[Column], None] = {}
    for center in centers:
        chosen = {center[0]: center}
        grows = True
        while grows:
            grows = False
            for edge in strong:
                for here, there in (edge.columns, edge.columns[::-1]):
                    if chosen.get(here[0]) == here and there[0] not in chosen:
                        chosen[there[0]] = there
                        grows = True
        groups[frozenset(chosen.values())] = None
    return list(groups)
