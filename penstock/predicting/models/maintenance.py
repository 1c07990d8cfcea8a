"""Detect that a model no longer fits its transactions, and recompute the model (H-Store §5.3.5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from penstock.predicting.models.markov import MarkovModel, Query

__all__ = ["MIN_ACCURACY", "ModelMaintenance"]

MIN_ACCURACY = 0.75
"""A model that is less accurate than this is recomputed."""
_WINDOW = 200
"""The number of transactions after which the accuracy is checked."""


class ModelMaintenance:
    """Counts the transitions of transactions, and recomputes a model whose accuracy is low.

    The accuracy is the overlap of the observed transitions with the distribution that the model expects. At
    each vertex, the accuracy is the sum, over all transitions, of the smaller of the expected and the
    observed share. Vertices are weighted by their visits. When a model is recomputed, the observed counts
    replace the old counts.

    Parameters
    ----------
    model : MarkovModel
        The model.

    Attributes
    ----------
    recomputed : int
        The number of times that the model was recomputed.
    """

    def __init__(self, model: MarkovModel) -> None:
        self._model = model
        self._seen: dict[int, dict[int, int]] = {}
        self._transactions = 0
        self.recomputed = 0

    def observe(self, queries: Iterable[Query], *, aborted: bool) -> bool:
        """Count a transaction; return whether the model was recomputed.

        A state that the model does not have becomes a vertex, which has no probabilities until the model is
        recomputed.
        """
        path = self._model.extend(queries, aborted=aborted)
        for one, other in itertools.pairwise(path):
            edges = self._seen.setdefault(one, {})
            edges[other] = edges.get(other, 0) + 1
        self._transactions += 1
        if self._transactions < _WINDOW:
            return False
        inaccurate = self.accuracy() < MIN_ACCURACY
        if inaccurate:
            for vertex, edges in self._seen.items():
                self._model.edges[vertex] = edges
            self._model.process()
            self.recomputed += 1
        self._seen, self._transactions = {}, 0
        return inaccurate

    def accuracy(self) -> float:
        """Return the share of transitions since the last check that the model expects."""
        common, visits = 0.0, 0
        for vertex, edges in self._seen.items():
            expected, total = self._model.edges[vertex], sum(edges.values())
            all_expected = sum(expected.values()) or 1
            common += sum(
                min(count, expected.get(child, 0) / all_expected * total) for child, count in edges.items()
            )
            visits += total
        return common / visits if visits else 1.0
