"""Markov models of a procedure's transactions, and their probability tables (H-Store §5.2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.designing.traces.queries import Query
from penstock.predicting.models.markov_kernels import sweep_tables

__all__ = ["ABORT", "BEGIN", "COMMIT", "MarkovModel", "State", "bits"]

BEGIN, COMMIT, ABORT = range(3)
"""The first three vertices of each model."""
_CONVERGED = 1e-9
_MAX_SWEEPS = 1_000
_MIN_VISITS = 20

Floats = npt.NDArray[np.float64]


class State(NamedTuple):
    """The state of a vertex: one invocation of a query, and the history of its transaction.

    Attributes
    ----------
    name : int
        The position of the query's name.
    counter : int
        The number of times that the transaction has executed this query before.
    partitions : int
        A mask with a bit for each partition that the query accesses.
    previous : int
        A mask with a bit for each partition that the transaction has accessed before.
    """

    name: int
    counter: int
    partitions: int
    previous: int


def bits(mask: int) -> list[int]:
    """Return the positions of the set bits."""
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


class MarkovModel:
    """The states that transactions of a procedure reach, and how often one state follows another.

    `process` computes the probabilities from the counts. States that were added later have no probabilities.

    Parameters
    ----------
    partitions : int
        The number of partitions.
    writes : sequence of bool
        For each query name, whether its queries write.

    Attributes
    ----------
    states : list
        The states by their vertices; the states of `BEGIN`, `COMMIT` and `ABORT` have no meaning.
    edges : list of dict
        For each vertex, the number of transitions to each next vertex.
    abort, single : ndarray
        For each vertex, the probability that the transaction will abort, and the probability that the
        transaction needs only one partition.
    risk : ndarray
        For each vertex, the greatest `abort` of all vertices with the same `State.name` and `State.counter`.
        The risk is 1 if too few transactions have reached these vertices.
    reads, changes, finish : ndarray, two-dimensional
        Three probabilities for each vertex (row) and partition (column): that the vertex' query or a later
        query reads the partition; that one of these queries writes the partition; and that no later query
        accesses the partition.
    """

    def __init__(self, partitions: int, writes: Sequence[bool]) -> None:
        self.partitions, self._writes = partitions, list(writes)
        nothing = State(-1, 0, 0, 0)
        self.states: list[State] = [nothing] * 3
        self.edges: list[dict[int, int]] = [{}, {}, {}]
        self._vertices: dict[State, int] = {}
        self.abort: Floats = np.zeros(0)
        self.single: Floats = np.zeros(0)
        self.risk: Floats = np.zeros(0)
        self.reads = self.changes = self.finish = np.zeros((0, partitions))

    def __len__(self) -> int:
        """Return the number of vertices."""
        return len(self.states)

    @property
    def processed(self) -> int:
        """The number of vertices that have probabilities."""
        return len(self.abort)

    def vertex(self, state: State) -> int:
        """Return the vertex of a state; -1 if the model does not have the state."""
        return self._vertices.get(state, -1)

    def add(self, queries: Iterable[Query], *, aborted: bool) -> list[int]:
        """Add a transaction and return its path, from `BEGIN` to `COMMIT` or `ABORT`."""
        path = [BEGIN]
        for state in states_of(queries):
            vertex = self._vertices.get(state)
            if vertex is None:
                vertex = self._vertices[state] = len(self.states)
                self.states.append(state)
                self.edges.append({})
            path.append(vertex)
        path.append(ABORT if aborted else COMMIT)
        for one, other in itertools.pairwise(path):
            edges = self.edges[one]
            edges[other] = edges.get(other, 0) + 1
        return path

    def path(self, queries: Iterable[Query], *, aborted: bool) -> list[int]:
        """Return the path of a transaction without adding it; -1 for states that the model does not have."""
        vertices = [self._vertices.get(state, -1) for state in states_of(queries)]
        return [BEGIN, *vertices, ABORT if aborted else COMMIT]

    def probability(self, one: int, other: int) -> float:
        """Return the probability that vertex `other` follows vertex `one`."""
        total = sum(self.edges[one].values())
        return self.edges[one].get(other, 0) / total if total else 0.0

    def process(self) -> None:
        """Compute the probability tables, each vertex after its successors.

        Two states may follow each other in either order, so there may be cycles (departure from H-Store
        §5.2.1). So sweeps over all vertices are repeated until the probabilities converge.
        """
        count, width = len(self.states), self.partitions
        scalars, tables = np.zeros((count, 2)), np.zeros((count, width, 3))
        scalars[ABORT, 0] = scalars[COMMIT, 1] = scalars[ABORT, 1] = 1.0
        tables[[COMMIT, ABORT], :, 2] = 1.0
        masks = np.array([state.partitions for state in self.states], np.uint64)
        accessed = (masks[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1) != 0
        used = masks | np.array([state.previous for state in self.states], np.uint64)
        sizes = [len(edges) for edges in self.edges]
        totals = np.array([sum(edges.values()) for edges in self.edges], np.float64)
        counts = np.array([count for edges in self.edges for count in edges.values()], np.float64)
        arrays = (
            np.array(self._reversed_order(), np.int64),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.array([child for edges in self.edges for child in edges], np.int64),
            counts / np.repeat(totals, sizes),
            accessed,
            np.array([state.name >= 0 and self._writes[state.name] for state in self.states]),
            np.bitwise_count(used) <= 1,
        )
        for _ in range(_MAX_SWEEPS):
            if sweep_tables(*arrays, scalars, tables) < _CONVERGED:
                break
        self.abort, self.single = scalars[:, 0], scalars[:, 1]
        self.reads, self.changes, self.finish = (tables[:, :, place] for place in range(3))
        self.risk = self._pool_aborts()

    def _pool_aborts(self) -> Floats:
        visits: dict[tuple[int, int], int] = {}
        worst: dict[tuple[int, int], float] = {}
        for vertex, state in enumerate(self.states):
            key = state[:2]
            visits[key] = visits.get(key, 0) + sum(self.edges[vertex].values())
            worst[key] = max(worst.get(key, 0.0), float(self.abort[vertex]))
        risk = [1.0 if visits[state[:2]] < _MIN_VISITS else worst[state[:2]] for state in self.states]
        risk[BEGIN], risk[COMMIT], risk[ABORT] = float(self.abort[BEGIN]), 0.0, 1.0
        return np.array(risk)

    def _reversed_order(self) -> list[int]:
        """Return the vertices that transactions reach, each after its successors if there are no cycles."""
        order: list[int] = []
        seen = {BEGIN}
        stack: list[tuple[int, Iterator[int]]] = [(BEGIN, iter(self.edges[BEGIN]))]
        while stack:
            vertex, children = stack[-1]
            child = next((one for one in children if one not in seen), None)
            if child is None:
                order.append(vertex)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, iter(self.edges[child])))
        return order

    def to_json(self) -> dict[str, Any]:
        """Return the states and counts as values that JSON can hold."""
        return {
            "states": [list(state) for state in self.states[3:]],
            "edges": [[[child, count] for child, count in edges.items()] for edges in self.edges],
        }

    @staticmethod
    def from_json(content: dict[str, Any], partitions: int, writes: Sequence[bool]) -> MarkovModel:
        """Return the model that `to_json` describes, with its tables."""
        model = MarkovModel(partitions, writes)
        model.states += [State(*state) for state in content["states"]]
        model.edges = [dict(edges) for edges in content["edges"]]
        model._vertices = {state: place for place, state in enumerate(model.states) if place >= 3}
        model.process()
        return model


def states_of(queries: Iterable[Query]) -> Iterator[State]:
    """Yield the state of each query of a transaction."""
    counters: dict[int, int] = {}
    previous = 0
    for name, partitions in queries:
        counter = counters.get(name, 0)
        counters[name] = counter + 1
        yield State(name, counter, partitions, previous)
        previous |= partitions
