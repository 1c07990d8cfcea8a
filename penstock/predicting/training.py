"""Train the models of procedures from their traces, and measure them (H-Store §5.2.2, §5.4, §5.5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.designing.traces.queries import Query
from penstock.designing.traces.recording import ProcedureTrace
from penstock.operators.simulation.draws import draws
from penstock.predicting.accuracy import Accuracy, judge
from penstock.predicting.clustering import cluster, grow_tree, select_features
from penstock.predicting.mappings import base_attribute, find_bounds, find_sources
from penstock.predicting.models.features import Feature, Tree, features_of, read_features
from penstock.predicting.models.markov import MarkovModel
from penstock.predicting.models.predictor import ProcedureModels
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.texts import Numbers

__all__ = ["Samples", "measure", "train"]

_MAX_SAMPLES, _MAX_QUERIES = 3_000, 60_000
"""Features are selected with at most this many transactions and queries; models learn from all of them."""
_MIN_IN_CLUSTER = 5


@dataclass
class Samples:
    """Transactions of one procedure with the partitions that they accessed.

    Parameters
    ----------
    trace : ProcedureTrace
        The transactions.
    queries : list
        A list of queries for each transaction.
    partitions : int
        The number of partitions.
    placements : mapping
        The placements of partitioned tables.
    """

    trace: ProcedureTrace
    queries: list[list[Query]]
    partitions: int
    placements: Mapping[str, Placement]

    @staticmethod
    def of(trace: ProcedureTrace, placements: Mapping[str, Placement], partitions: int) -> Samples:
        """Return the transactions of a trace."""
        return Samples(trace, trace.place(placements, partitions), partitions, placements)

    def __len__(self) -> int:
        """Return the number of transactions."""
        return len(self.queries)

    def slice(self, begin: int, end: int) -> Samples:
        """Return the transactions with the numbers from `begin` to `end` - 1."""
        return Samples(
            self.trace.slice(begin, end), self.queries[begin:end], self.partitions, self.placements
        )

    @property
    def writes(self) -> list[bool]:
        """For each query name, whether its queries write."""
        return [name.writes for name in self.trace.names]


def _model(samples: Samples, chosen: Sequence[int]) -> MarkovModel:
    model = MarkovModel(samples.partitions, samples.writes)
    aborted = samples.trace.aborted
    for number in chosen:
        model.add(samples.queries[number], aborted=bool(aborted[number]))
    model.process()
    return model


def _models(samples: Samples, chosen: Numbers, clusters: Numbers) -> list[MarkovModel]:
    """Return a model for each cluster; a cluster with few transactions gets the model of all transactions."""
    everything = _model(samples, chosen.tolist())
    models = []
    for number in range(int(clusters.max(initial=0)) + 1):
        members = chosen[clusters == number].tolist()
        models.append(everything if len(members) < _MIN_IN_CLUSTER else _model(samples, members))
    return models


def train(
    samples: Samples, threshold: float, *, clustered: bool, features: tuple[Feature, ...] | None = None
) -> ProcedureModels:
    """Return the models of a procedure.

    Parameters
    ----------
    samples : Samples
        The transactions.
    threshold : float
        See `Predictor`.
    clustered : bool
        Whether features may divide the transactions among several models.
    features : tuple of Feature, optional
        The features to use; by default feed-forward selection chooses them.
    """
    trace = samples.trace
    sources = find_sources(trace)
    base = base_attribute(trace, sources)
    bounds = find_bounds(trace)
    everything = np.arange(len(samples))
    models = ProcedureModels(
        trace.procedure, trace.kind, trace.program.digest, trace.names, sources, base, (), Tree(),
        [_model(samples, everything.tolist())], bounds,
    )  # fmt: skip
    if not clustered:
        return models
    if features is None:
        features, _ = _select(samples, models, threshold)
    if not features:
        return models
    rows = read_features(features, trace.events, trace.program.event, base, samples.partitions)
    clusters = cluster(rows)(rows)
    models.features, models.tree = features, grow_tree(rows, clusters)
    assigned = models.tree.choose(rows)
    models.models = _models(samples, everything, assigned)
    return models


def _select(samples: Samples, models: ProcedureModels, threshold: float) -> tuple[tuple[Feature, ...], float]:
    """Return the features that divide the transactions best, and their penalty."""
    trace = samples.trace
    event, base = trace.program.event, models.base
    most = min(_MAX_SAMPLES, _MAX_QUERIES * len(samples) // max(len(trace.query), 1))
    order = np.argsort(draws(0, 0, len(samples)))[:most]
    training, validation, testing = np.split(order, [int(len(order) * 0.3), int(len(order) * 0.6)])
    if not len(training) or not len(validation):
        return (), 0.0
    candidates = features_of(event, base)
    values = {
        one: read_features([one], trace.events, event, base, samples.partitions)[:, 0] for one in candidates
    }
    candidates = [one for one in candidates if len(np.unique(values[one][order])) > 1]

    def score(chosen: tuple[Feature, ...]) -> float:
        rows = np.stack([values[one] for one in chosen], axis=1) if chosen else np.zeros((len(samples), 1))
        assign = cluster(rows[training])
        divided = ProcedureModels(
            models.procedure, models.kind, models.digest, models.names, models.sources, base, (), Tree(),
            _models(samples, validation, assign(rows[validation])), models.bounds,
        )  # fmt: skip
        numbers = np.minimum(assign(rows[testing]), len(divided.models) - 1)
        return _judge_all(divided, samples, testing, numbers, threshold).penalty

    return select_features(candidates, score, score(()))


def _judge_all(
    models: ProcedureModels, samples: Samples, chosen: Numbers, numbers: Numbers, threshold: float
) -> Accuracy:
    trace = samples.trace
    parameters = models.parameters(trace.program.event, samples.placements, samples.partitions)
    values = parameters.read(trace.events)
    walker = models.walker(parameters, threshold)
    accuracy = Accuracy()
    for event, number in zip(chosen.tolist(), numbers.tolist(), strict=True):
        found = walker.estimate(values, event, number)
        accuracy.add(
            judge(
                found, models.models[number], samples.queries[event],
                aborted=bool(trace.aborted[event]), threshold=threshold,
            )
        )  # fmt: skip
    return accuracy


def measure(models: ProcedureModels, samples: Samples, threshold: float) -> Accuracy:
    """Return the accuracy of models for transactions; the models do not learn from them."""
    trace = samples.trace
    if trace.names[: len(models.names)] != models.names:
        samples = _renumber_queries(samples, models)
    numbers = models.choose(trace.events, trace.program.event, samples.partitions)
    return _judge_all(models, samples, np.arange(len(samples)), numbers, threshold)


def _renumber_queries(samples: Samples, models: ProcedureModels) -> Samples:
    """Renumber the queries of samples: each query gets the number that its name has in the models.

    Names that the models do not have get the next numbers.
    """
    names = {name: place for place, name in enumerate(models.names)}
    for name in samples.trace.names:
        names.setdefault(name, len(names))
    numbers = [names[name] for name in samples.trace.names]
    queries = [[Query(numbers[one.name], one.partitions) for one in part] for part in samples.queries]
    return Samples(samples.trace, queries, samples.partitions, samples.placements)
