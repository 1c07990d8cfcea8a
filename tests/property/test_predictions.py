"""Probability tables solve linear equations, and predictions leave the serial order as it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.predicting.models.markov import ABORT, COMMIT, MarkovModel, Query, bits

WRITES = [False, True, True]
QUERIES = st.lists(st.builds(Query, st.integers(0, 2), st.integers(0, 7)), max_size=5)


@given(st.lists(st.tuples(QUERIES, st.booleans()), min_size=1, max_size=12))
def test_tables_solve_the_equations_of_the_chain(transactions: list[tuple[list[Query], bool]]) -> None:
    model = MarkovModel(3, WRITES)
    for queries, aborted in transactions:
        model.add(queries, aborted=aborted)
    model.process()
    count = len(model)
    matrix = np.array([[model.probability(one, other) for other in range(count)] for one in range(count)])
    ends = np.isin(np.arange(count), [COMMIT, ABORT])

    def solve(fixed: dict[int, float], at_ends: float = 0.0) -> np.ndarray:
        """Return the expected value at each vertex, given those of some."""
        equations, right = np.eye(count) - matrix, np.zeros(count)
        for vertex, value in {**dict.fromkeys(np.flatnonzero(ends).tolist(), at_ends), **fixed}.items():
            equations[vertex] = np.eye(count)[vertex]
            right[vertex] = value
        return np.linalg.solve(equations, right)

    reached = np.array([bool(edges) for edges in model.edges]) | ends
    assert np.allclose(model.abort, solve({ABORT: 1.0}))
    wide = {
        vertex: 0.0
        for vertex, state in enumerate(model.states)
        if (state.partitions | state.previous).bit_count() > 1
    }
    assert np.allclose(model.single[reached], solve(wide, 1.0)[reached])
    for partition in range(3):
        here = [vertex for vertex, state in enumerate(model.states) if partition in bits(state.partitions)]
        reads = dict.fromkeys([vertex for vertex in here if not WRITES[model.states[vertex].name]], 1.0)
        changes = dict.fromkeys([vertex for vertex in here if WRITES[model.states[vertex].name]], 1.0)
        assert np.allclose(model.reads[:, partition], solve(reads))
        assert np.allclose(model.changes[:, partition], solve(changes))
        # To have finished is that no later query is here, so that a vertex here counts only once it is left.
        arrival = solve(dict.fromkeys(here, 0.0), 1.0)
        expected = np.where(ends, 1.0, matrix @ arrival)
        assert np.allclose(model.finish[:, partition], expected)
