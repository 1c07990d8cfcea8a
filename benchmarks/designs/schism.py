"""Designs of Schism, simplified: a partitioning of the graph of rows, explained by columns (H-Store §4.6).

Rows are nodes, and an edge counts the transactions that access both. Balanced parts with few cut edges come
from a streaming heuristic with several passes instead of METIS. A table is then partitioned by the column of
its key whose values tell the parts of its rows best, which stands for the paper's decision tree. Tables that
are only read are replicated. The design is dropped for the hash of primary keys if that has fewer distributed
transactions, as in Schism's validation. It has no routes, no replicated indexes and no notion of time.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from penstock.designing.cost import Choice, CostModel
from penstock.designing.traces.trace import Mode, Trace
from penstock.designing.workload import TableOption

__all__ = ["graph_choice"]

PASSES = 5
MAX_ROWS = 60
"""Transactions with more rows are left out of the graph: they join everything."""
SLACK = 1.1
"""The size of a part in proportion to its share."""
Ints = npt.NDArray[np.int64]


def graph_choice(model: CostModel, fallback: Choice) -> Choice:
    """Return the design of SCH; `fallback` is the one by primary keys."""
    workload = model.workload
    nodes, columns = _rows_of(workload.trace)
    parts = _partition(*_edges(workload.trace, nodes), workload.partitions)
    tables = []
    for table, place in enumerate(workload.tables):
        options = workload.options[table]
        if not workload.writes[table]:
            tables.append(options.index(TableOption(None)))
            continue
        mine = columns[0] == place
        names = workload.trace.tables[place].key
        scores = [
            _accuracy(columns[1 + number][mine], parts[mine]) if TableOption(name) in options else -1.0
            for number, name in enumerate(names)
        ]
        best = TableOption(names[int(np.argmax(scores))])
        tables.append(options.index(best) if best in options else int(workload.declared[table]))
    routing = np.full(len(workload.attributes), -1, np.int64)
    choices = [Choice(np.array(tables, np.int64), routing), Choice(fallback.tables, routing)]
    return min(choices, key=lambda choice: -model.measure(choice).single)


def _rows_of(trace: Trace) -> tuple[Ints, list[Ints]]:
    """Return the row of each access whose key is known, else -1; and table and key of each row."""
    whole = np.ones(len(trace.table), np.bool_)
    for place, spec in enumerate(trace.tables):
        mine = trace.table == place
        whole[mine] = trace.known[: len(spec.key), mine].all(axis=0)
    whole &= trace.mode != Mode.SELECT
    keys = np.stack([trace.table.astype(np.int64), *np.where(trace.known, trace.values, 0)], axis=1)
    distinct, numbers = np.unique(keys[whole], axis=0, return_inverse=True)
    nodes = np.full(len(whole), -1, np.int64)
    nodes[whole] = numbers.reshape(-1)
    return nodes, list(distinct.T)


def _edges(trace: Trace, nodes: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the graph: the first edge of each node, and for each edge its other node and its weight."""
    count = int(nodes.max()) + 1
    bounds = np.searchsorted(trace.transaction, np.arange(trace.transactions + 1))
    pairs = [np.zeros((0, 2), np.int64)]
    for begin, end in itertools.pairwise(bounds.tolist()):
        rows = np.unique(nodes[begin:end])
        rows = rows[rows >= 0]
        if 1 < len(rows) <= MAX_ROWS:
            one, other = np.meshgrid(rows, rows)
            apart = one != other
            pairs.append(np.stack([one[apart], other[apart]], axis=1))
    edges, weights = np.unique(np.concatenate(pairs), axis=0, return_counts=True)
    return np.searchsorted(edges[:, 0], np.arange(count + 1)), edges[:, 1], weights


def _partition(first: Ints, others: Ints, weights: Ints, partitions: int) -> Ints:
    """Return the part of each node: each joins its neighbours where there is room."""
    count = len(first) - 1
    room = SLACK * count / partitions
    parts, sizes = np.full(count, -1, np.int64), np.zeros(partitions)
    for _ in range(PASSES):
        for node in range(count):
            begin, end = first[node], first[node + 1]
            if parts[node] >= 0:
                sizes[parts[node]] -= 1
            near = parts[others[begin:end]]
            there = near >= 0
            ties = np.bincount(near[there], weights[begin:end][there], partitions)
            parts[node] = np.argmax((ties + 1e-6) * np.maximum(1.0 - sizes / room, 0.0))
            sizes[parts[node]] += 1
    return parts


def _accuracy(values: Ints, parts: Ints) -> float:
    """Return the share of rows whose part is the most frequent one of their value."""
    pairs, counts = np.unique(np.stack([values, parts], axis=1), axis=0, return_counts=True)
    begins = np.flatnonzero(np.append(True, pairs[1:, 0] != pairs[:-1, 0]))
    # A column with a value for each row explains nothing: it scores as if half of its rows were guessed.
    return float(np.maximum.reduceat(counts, begins).sum() - len(begins) / 2) / len(values)
