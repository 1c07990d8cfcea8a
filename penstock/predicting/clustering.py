"""Divide transactions into clusters, each with its own model, to improve predictions (H-Store §5.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from penstock.predicting.models.features import Feature, Tree
from penstock.procedures.texts import Numbers

__all__ = ["cluster", "grow_tree", "select_features"]

MAX_CLUSTERS = 32
_SIZES = (2, 4, 8, 16)
"""The numbers of clusters to try if the rows of features have more than `MAX_CLUSTERS` distinct values."""
_BEST_SHARE = 0.1
_MAX_FEATURES = 4
_MIN_VARIANCE = 1e-3

Floats = npt.NDArray[np.float64]


def cluster(rows: Floats) -> Callable[[Floats], Numbers]:
    """Cluster rows of features by expectation maximization; return a function that assigns other rows.

    If at most `MAX_CLUSTERS` rows are distinct, each distinct row is the initial mean of a cluster.
    Otherwise the number of clusters is the number in `_SIZES` with the least Bayesian information criterion.
    """
    from sklearn.mixture import GaussianMixture

    scale = np.maximum(rows.std(axis=0), 1e-9)
    center = rows.mean(axis=0)
    scaled = (rows - center) / scale
    distinct = np.unique(scaled, axis=0)
    if len(distinct) == 1:
        return lambda others: np.zeros(len(others), np.int64)
    options = (
        [(len(distinct), distinct)] if len(distinct) <= MAX_CLUSTERS else [(size, None) for size in _SIZES]
    )
    fits = []
    for size, means in options:
        mixture = GaussianMixture(
            size, covariance_type="diag", reg_covar=_MIN_VARIANCE, means_init=means,
            init_params="random_from_data", max_iter=20, random_state=0, tol=1e-2,
        )  # fmt: skip
        fits.append(mixture.fit(scaled))
    fitted = min(fits, key=lambda mixture: mixture.bic(scaled)) if len(fits) > 1 else fits[0]
    return lambda others: np.asarray(fitted.predict((others - center) / scale), np.int64)


def grow_tree(rows: Floats, clusters: Numbers) -> Tree:
    """Return the decision tree that assigns rows to clusters, grown by information gain as in C4.5."""
    from sklearn.tree import DecisionTreeClassifier

    grown = DecisionTreeClassifier(criterion="entropy", min_samples_leaf=2, random_state=0).fit(
        rows, clusters
    )
    tree = grown.tree_
    classes = np.asarray(grown.classes_, np.int64)
    return Tree(
        tuple(int(max(feature, -1)) for feature in tree.feature),
        tuple(float(bound) for bound in tree.threshold),
        tuple(int(node) for node in tree.children_left),
        tuple(int(node) for node in tree.children_right),
        tuple(int(classes[value]) for value in tree.value[:, 0, :].argmax(axis=1)),
    )


def select_features(
    features: Sequence[Feature], score: Callable[[tuple[Feature, ...]], float], without: float
) -> tuple[tuple[Feature, ...], float]:
    """Return the set of features with the least penalty, by feed-forward selection (H-Store §5.4.2).

    Round n scores sets of n features. Only features in the best tenth of the previous round's sets are used.
    The search ends once a round finds no better set.

    Parameters
    ----------
    features : sequence of Feature
        All features.
    score : callable
        A function that returns the penalty of a set of features.
    without : float
        The penalty of a single model for all transactions.
    """
    best: tuple[Feature, ...] = ()
    least = without
    for size in range(1, _MAX_FEATURES + 1):
        if least == 0.0:
            break
        scored = sorted(
            ((score(chosen), chosen) for chosen in _sets(features, size)), key=lambda pair: pair[0]
        )
        if not scored or scored[0][0] >= least:
            break
        least, best = scored[0]
        kept = scored[: max(int(len(scored) * _BEST_SHARE), 2)]
        better = {feature for penalty, chosen in kept if penalty < without for feature in chosen}
        features = [feature for feature in features if feature in better]
    return best, least


def _sets(features: Sequence[Feature], size: int) -> Iterator[tuple[Feature, ...]]:
    return combinations(features, size)
