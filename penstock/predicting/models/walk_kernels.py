"""Kernels that find the most likely paths of transactions through Markov models (H-Store §5.3.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock._kernels import kernel
from penstock.predicting.models.markov import COMMIT
from penstock.procedures.texts import Numbers

__all__ = [
    "FIXED", "IMPOSSIBLE", "MAX_QUERIES", "UNKNOWN", "AttributeValues", "Graph", "resolve", "walk",
    "walk_all",
]  # fmt: skip

UNKNOWN, IMPOSSIBLE, FIXED = -1, -2, -3
"""The partitions of a query are unknown, the event excludes the query, or its partitions are fixed."""
MAX_QUERIES = 1_000

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]
Masks = npt.NDArray[np.uint64]


class Graph(NamedTuple):
    """The models of a procedure as arrays.

    The children of a vertex that have the same query and counter form a group; a child that is an end is a
    group of its own.

    Attributes
    ----------
    first : ndarray
        The position of each model's first vertex in arrays of all models' vertices.
    group_starts : ndarray
        The position of each vertex's first group; the last element is the number of groups.
    query, counter : ndarray
        For each group, the position of the query's name, and how often the transaction has executed the query
        before. For an end, -1 and the vertex of the end.
    weight : ndarray
        The number of transactions that have gone to each group.
    member_starts : ndarray
        The position of each group's first member; the last element is the number of members.
    child, visits : ndarray
        The vertex of each member, and the number of transactions that have reached this vertex. In a group,
        the most frequent member comes first.
    accessed : ndarray of uint64
        For each vertex, a mask with a bit for each partition that its query accesses.
    risk : ndarray of float64
        See `MarkovModel`.
    abort, doubt : ndarray of float64
        For each model, the probability that a transaction aborts, and the probability that a transaction
        accesses each partition.
    writes : ndarray of bool
        For each query name, whether its queries write.
    fixed : ndarray of uint64
        The partitions of each query whose source is `FIXED`.
    source : ndarray, two-dimensional
        For each name (row) and counter (column), the position of the attribute that determines the
        partitions, or `UNKNOWN` or `FIXED`. The last column is also for all greater counters.
    bounds : ndarray, two-dimensional
        A row for each name: the positions of the attributes that limit how often its queries are executed,
        then -1. A list allows one execution for each element; a negative number allows none.
    required : ndarray of bool
        For each name, whether a transaction that commits executes the query as often as its bounds allow.
    last : ndarray of bool
        For each name, whether a transaction executes the query only after all queries of `required`.
    """

    first: Numbers
    group_starts: Numbers
    query: Numbers
    counter: Numbers
    weight: Numbers
    member_starts: Numbers
    child: Numbers
    visits: Numbers
    accessed: Masks
    risk: Floats
    abort: Floats
    doubt: Floats
    writes: Booleans
    fixed: Masks
    source: Numbers
    bounds: Numbers
    required: Booleans
    last: Booleans


class AttributeValues(NamedTuple):
    """The partitions that the attributes of events determine, as arrays.

    Attributes
    ----------
    lists : ndarray
        For each attribute, the position in `starts` of the first event's list; -1 if it is not a list.
    starts : ndarray
        The position of each list's first element among the elements of its attribute.
    offsets : ndarray
        The position of each attribute's first value in `numbers`.
    numbers : ndarray
        The partition of each value; negative if it is unknown.
    """

    lists: Numbers
    starts: Numbers
    offsets: Numbers
    numbers: Numbers


@kernel
def resolve(
    graph: Graph, values: AttributeValues, event: int, query: int, counter: int
) -> tuple[int, np.uint64]:
    """Return `FIXED` and the mask of a query's partitions, or else `UNKNOWN` or `IMPOSSIBLE` and 0."""
    for k in range(graph.bounds.shape[1]):
        limit = graph.bounds[query, k]
        if limit < 0:
            break
        if values.lists[limit] >= 0:
            start = values.lists[limit] + event
            if counter >= values.starts[start + 1] - values.starts[start]:
                return IMPOSSIBLE, np.uint64(0)
        elif values.numbers[values.offsets[limit] + event] < 0:
            return IMPOSSIBLE, np.uint64(0)
    last = graph.source.shape[1] - 1
    place = graph.source[query, min(counter, last)]
    if place == FIXED:
        return FIXED, graph.fixed[query]
    if place < 0:
        return UNKNOWN, np.uint64(0)
    at = event
    if values.lists[place] >= 0:
        start = values.lists[place] + event
        at = values.starts[start] + counter
        if at >= values.starts[start + 1]:
            return IMPOSSIBLE, np.uint64(0)
    number = values.numbers[values.offsets[place] + at]
    if number < 0:
        return UNKNOWN, np.uint64(0)
    return FIXED, np.uint64(1) << np.uint64(number)


@kernel
def walk(
    graph: Graph,
    values: AttributeValues,
    event: int,
    model: int,
    threshold: float,
    path: Numbers,
    masks: Masks,
    seen: Floats,
) -> tuple[int, int, np.uint64, np.uint64, bool, bool, float, float]:
    """Walk the most likely path of a transaction, and return the estimate that follows from it.

    At each vertex the next query is the most frequent query that the event allows. While a query remains that
    a transaction must execute, the transaction neither commits nor executes its last queries (departure from
    H-Store §5.3.2, where only the length of a list excludes queries). The event determines the partitions of
    the next query, and so the next state. The model lacks this state if no transaction of the trace had the
    same combination of partitions. Then the path continues at a different state of the query, but with the
    event's partitions (departure from H-Store §5.3.2, where the path ends).

    Parameters
    ----------
    graph : Graph
        The models.
    values : AttributeValues
        The partitions that the attributes of events determine.
    event, model : int
        The number of the event, and the number of its model.
    threshold : float
        The least probability at which a partition is considered needed.
    path : ndarray
        Receives the vertices, in the order of the path.
    masks : ndarray
        Receives, for each query, a mask with a bit for each partition that the query accesses.
    seen : ndarray, two-dimensional
        Scratch space; it is overwritten.

    Returns
    -------
    tuple
        The number of vertices, and these fields of the `Estimate`: base, partitions, written, is_complete,
        is_resolved, confidence, abort.
    """
    base = graph.first[model]
    # `seen` has a row for each partition: the confidence at its first access, the number of accesses, and how
    # many other partitions were accessed before it.
    seen[:] = 0.0
    zero, one = np.uint64(0), np.uint64(1)
    width = graph.doubt.shape[1]
    vertex = np.int64(0)
    path[0] = 0
    length = 1
    places = 0
    written = zero
    confidence = 1.0
    abort = 0.0
    is_exact = True
    is_resolved = True
    has_ended = False
    for _ in range(MAX_QUERIES):
        best = -1
        total = np.int64(0)
        begin, end = graph.group_starts[base + vertex], graph.group_starts[base + vertex + 1]
        must_go_on = False
        for group in range(begin, end):
            if graph.query[group] >= 0 and graph.required[graph.query[group]] and not must_go_on:
                kind, mask = resolve(graph, values, event, graph.query[group], graph.counter[group])
                must_go_on = kind != IMPOSSIBLE
        for group in range(begin, end):
            if graph.query[group] >= 0:
                kind, mask = resolve(graph, values, event, graph.query[group], graph.counter[group])
                if kind == IMPOSSIBLE or (must_go_on and graph.last[graph.query[group]]):
                    continue
            elif must_go_on and graph.counter[group] == COMMIT:
                continue
            total += graph.weight[group]
            if best < 0 or graph.weight[group] > graph.weight[best]:
                best = group
        if best < 0:
            break
        confidence *= graph.weight[best] / total
        query = graph.query[best]
        if query < 0:
            path[length] = graph.counter[best]
            length += 1
            has_ended = True
            break
        begin, end = graph.member_starts[best], graph.member_starts[best + 1]
        kind, mask = resolve(graph, values, event, query, graph.counter[best])
        member = int(begin)
        possible = mask
        if kind == UNKNOWN:
            mask = graph.accessed[base + graph.child[begin]]
            confidence *= graph.visits[begin] / graph.weight[best]
            is_resolved = False
            for k in range(begin, end):
                possible |= graph.accessed[base + graph.child[k]]
        else:
            member = -1
            for k in range(begin, end):
                if graph.accessed[base + graph.child[k]] == mask:
                    member = k
                    break
            if member < 0:
                member = int(begin)
                is_exact = False
        for place in range(width):
            if (mask >> np.uint64(place)) & one != zero:
                if seen[place, 1] == 0.0:
                    seen[place, 0] = confidence
                    seen[place, 2] = places
                    places += 1
                seen[place, 1] += 1.0
        if graph.writes[query]:
            written |= possible
        vertex = graph.child[member]
        masks[length - 1] = mask
        path[length] = vertex
        length += 1
        abort = max(abort, graph.risk[base + vertex])
    needed = zero
    home = -1
    for place in range(width):
        doubt = 0.0
        if confidence < 1.0:
            doubt = (1.0 - confidence) * graph.doubt[model, place]
        if (seen[place, 1] > 0.0 and seen[place, 0] >= threshold) or doubt >= threshold:
            needed |= one << np.uint64(place)
        if seen[place, 1] > 0.0 and (
            home < 0
            or seen[place, 1] > seen[home, 1]
            or (seen[place, 1] == seen[home, 1] and seen[place, 2] < seen[home, 2])
        ):
            home = place
    if length <= 2:
        abort = graph.abort[model]
    is_complete = has_ended and is_exact
    return length, home, needed, written & needed, is_complete, is_resolved, confidence, abort


@kernel
def walk_all(
    graph: Graph,
    values: AttributeValues,
    events: Numbers,
    models: Numbers,
    threshold: float,
    partitions: Masks,
    written: Masks,
    undo: Booleans,
) -> None:
    """Write, for each event, the fields `partitions`, `written` and `needs_undo` of its `Estimate`."""
    path = np.empty(MAX_QUERIES + 2, np.int64)
    masks = np.empty(MAX_QUERIES + 1, np.uint64)
    seen = np.empty((graph.doubt.shape[1], 3))
    zero = np.uint64(0)
    for k in range(events.shape[0]):
        found = walk(graph, values, events[k], models[k], threshold, path, masks, seen)
        needed = found[2]
        partitions[k], written[k] = needed, found[3]
        is_single = needed == zero or needed & (needed - np.uint64(1)) == zero
        undo[k] = not (is_single and found[4] and found[7] == 0.0)
