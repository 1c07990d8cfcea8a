"""Estimate what a transaction will do, and decide on optimizations (H-Store §5.3.2, §5.3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.predicting.models.markov import ABORT, BEGIN, COMMIT, MarkovModel
from penstock.predicting.models.parameters import EventParameters, Parameters
from penstock.predicting.models.walk_kernels import MAX_QUERIES, Graph, walk, walk_all
from penstock.procedures.texts import Numbers

__all__ = ["Estimate", "Walker", "finished_partitions"]

Masks = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of what a transaction will do, made before it starts.

    Attributes
    ----------
    path : tuple of int
        The vertices that the transaction will reach.
    masks : tuple of int
        A mask for each query of the path, with a bit for each partition that the query accesses.
    later : tuple of int
        A mask for each query of the path, with a bit for each partition that the following queries access.
    base : int
        The partition that the transaction will access most (OP1); -1 if it accesses no partition.
    partitions : int
        A mask with a bit for each partition that the transaction will need (OP2).
    written : int
        A mask with a bit for each partition in which the transaction will write. If the event does not
        determine the partition of a write, the mask has all partitions that the write may access.
    is_complete : bool
        Whether the path reaches an end through states of the model.
    is_resolved : bool
        Whether the event determines the partitions of all queries.
    confidence : float
        The probability of the path, given the event.
    abort : float
        The greatest `MarkovModel.risk` of all states of the path.
    """

    path: tuple[int, ...]
    masks: tuple[int, ...]
    later: tuple[int, ...]
    base: int
    partitions: int
    written: int
    is_complete: bool
    is_resolved: bool
    confidence: float
    abort: float

    @property
    def is_single(self) -> bool:
        """Return whether the transaction will need at most one partition."""
        return self.partitions & (self.partitions - 1) == 0

    @property
    def needs_undo(self) -> bool:
        """Return whether the transaction needs an undo log from its start (OP3); true if unsure."""
        return not (self.is_single and self.is_complete and self.abort == 0.0)


class Walker:
    """Estimates what transactions will do, with the models of a procedure.

    Parameters
    ----------
    models : sequence of MarkovModel
        The models.
    writes : sequence of bool
        For each query name, whether its queries write.
    parameters : Parameters
        Computes the partitions of queries from events.
    threshold : float
        The least probability at which a partition is considered needed.
    """

    def __init__(
        self, models: Sequence[MarkovModel], writes: Sequence[bool], parameters: Parameters, threshold: float
    ) -> None:
        self._graph = _make_graph(models, writes, parameters)
        self._threshold = threshold
        self._known: dict[tuple[Any, ...], Estimate] = {}
        self._path = np.empty(MAX_QUERIES + 2, np.int64)
        self._masks = np.empty(MAX_QUERIES + 1, np.uint64)
        self._seen = np.empty((models[0].partitions, 3))

    def estimate(self, values: EventParameters, event: int, model: int) -> Estimate:
        """Return the estimate of an event; estimates are cached by `EventParameters.signature`."""
        key = (model, *values.signature(event))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._estimate(values, event, model)
        return found

    def _estimate(self, values: EventParameters, event: int, model: int) -> Estimate:
        arrays = self._path, self._masks, self._seen
        length, base, needed, written, is_complete, is_resolved, confidence, abort = walk(
            self._graph, values.arrays, event, model, self._threshold, *arrays
        )
        path = self._path[:length].tolist()
        masks = self._masks[: length - 1 - (path[-1] in (COMMIT, ABORT))].tolist()
        later = [*accumulate(reversed(masks[1:]), or_, initial=0)][::-1] if masks else []
        return Estimate(
            tuple(path), tuple(masks), tuple(later), base, int(needed), int(written), is_complete,
            is_resolved, confidence, abort,
        )  # fmt: skip

    def walk(
        self, values: EventParameters, events: Numbers, models: Numbers
    ) -> tuple[Masks, Masks, npt.NDArray[np.bool_]]:
        """Return the `partitions`, `written` and `needs_undo` of the `Estimate` of each event."""
        count = len(events)
        found = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.bool_)
        walk_all(self._graph, values.arrays, events, models, self._threshold, *found)
        return found


def _make_graph(models: Sequence[MarkovModel], writes: Sequence[bool], parameters: Parameters) -> Graph:
    groups: list[tuple[int, int, int]] = []
    group_starts, member_starts, members = [0], [0], list[tuple[int, int]]()
    for model in models:
        for edges in model.edges:
            found: dict[tuple[int, int], list[tuple[int, int]]] = {}
            for child, count in edges.items():
                key = (-1, child) if child in (COMMIT, ABORT) else model.states[child][:2]
                found.setdefault(key, []).append((count, child))
            for key, part in found.items():
                groups.append((*key, sum(count for count, _ in part)))
                members += sorted(part, reverse=True)
                member_starts.append(len(members))
            group_starts.append(len(groups))
    query, counter, weight = np.array(groups, np.int64).reshape(-1, 3).T.copy()
    counts, children = np.array(members, np.int64).reshape(-1, 2).T.copy()
    states = [state for model in models for state in model.states]
    fixed, source = parameters.sources(len(writes))
    bounds, required, last = parameters.limits(len(writes))
    return Graph(
        np.cumsum([0, *(len(model) for model in models[:-1])]),
        np.array(group_starts),
        query, counter, weight, np.array(member_starts), children, counts,
        np.array([state.partitions for state in states], np.uint64),
        np.concatenate([model.risk for model in models]),
        np.array([model.abort[BEGIN] for model in models]),
        np.array([np.maximum(model.reads[BEGIN], model.changes[BEGIN]) for model in models]),
        np.array(writes, np.bool_), fixed, source, bounds, required, last,
    )  # fmt: skip


def finished_partitions(
    model: MarkovModel, estimate: Estimate, step: int, vertex: int, threshold: float, *, follows: bool
) -> int:
    """Return a mask of the partitions that a transaction no longer needs after its query `step` (OP4).

    If the transaction follows an estimate whose partitions the event determines, the mask has all partitions
    that the rest of the path does not access. Otherwise the probability table determines the mask.

    Parameters
    ----------
    model : MarkovModel
        The model.
    estimate : Estimate
        The estimate of the transaction.
    step : int
        The number of the query that the transaction has executed last, from 0.
    vertex : int
        The vertex that the transaction has reached; -1 if the model does not have it.
    threshold : float
        The least probability at which an estimate is used, and at which a partition is considered finished.
    follows : bool
        Whether the transaction has executed the queries of the estimate so far.
    """
    if follows and estimate.is_resolved and estimate.confidence >= threshold:
        return ((1 << model.partitions) - 1) & ~estimate.later[step]
    if not 0 <= vertex < model.processed:
        return 0
    return sum(1 << int(place) for place in (model.finish[vertex] >= threshold).nonzero()[0])
