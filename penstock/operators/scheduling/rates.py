"""Running means: the time between a key's updates, and the cost of serving a tuple."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.operators.update_stream.stream import Integers

__all__ = ["correct_costs", "mean_cost", "mean_interval"]

_RATE_WEIGHT = 0.1
"""Weight of the newest interval in a key's mean time between updates."""
_COST_WEIGHT = 0.2
"""Weight of the newest measurement in the mean cost of a tuple."""
_COST_JUMP = 4.0
_CORRECTION = 0.5
"""The exponent that determines how far the costs of keys follow one measurement of their sum."""


def mean_interval(interval: npt.NDArray[np.float64], gap: Any, count: Integers) -> npt.NDArray[np.float64]:
    """Update each key's exponentially weighted mean with `count` intervals of `gap`.

    An interval of zero means unknown: so far the key was seen only at the queue's first moment.
    """
    weight = np.where(interval == 0.0, 1.0, 1.0 - (1.0 - _RATE_WEIGHT) ** count)
    return interval + weight * (gap - interval)


def mean_cost(mean: float | None, elapsed_us: float, tuples: int) -> float:
    """Update the mean cost after serving `tuples` (at least 1) tuples took `elapsed_us`.

    A measurement counts as at most `_COST_JUMP` times the mean so far. So the effect of an outlier (a
    restart, a pause of the machine) fades quickly.
    """
    sample = max(elapsed_us, 1.0) / tuples
    if mean is None:
        return sample
    return _COST_WEIGHT * min(sample, _COST_JUMP * mean) + (1.0 - _COST_WEIGHT) * mean


def correct_costs(
    costs: npt.NDArray[np.float64], elapsed_us: float, mean_us: float | None
) -> npt.NDArray[np.float64]:
    """Correct the costs of keys that were served together.

    Only the sum of the costs is measured. All costs are multiplied by the same factor, so that their sum
    approaches the measurement. Different keys are served together each time, so the costs approach values
    that explain all measurements. This is the multiplicative algebraic reconstruction of R. Gordon, R. Bender
    and G. Herman, "Algebraic Reconstruction Techniques", Journal of Theoretical Biology 29, 1970.

    Parameters
    ----------
    costs : float64 array
        The cost of each key; 0 if unknown.
    elapsed_us : float
        The time that serving the keys took.
    mean_us : float or None
        The mean cost of a tuple, for unknown keys; None before the first measurement.
    """
    if not len(costs):
        return costs
    usual_us = max(elapsed_us, 1.0) / len(costs) if mean_us is None else mean_us
    known = np.where(costs > 0.0, costs, usual_us)
    ratio = min(max(max(elapsed_us, 1.0) / float(known.sum()), 1.0 / _COST_JUMP), _COST_JUMP)
    return known * ratio**_CORRECTION
