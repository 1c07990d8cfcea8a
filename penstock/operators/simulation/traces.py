"""Traces of arrivals for simulations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.operators.simulation.draws import draws
from penstock.operators.update_stream.stream import Integers

__all__ = ["UNIT_US", "Floats", "Trace", "draw_arrivals", "zipf_weights"]

Floats = npt.NDArray[np.float64]

UNIT_US = 1000
"""One unit of simulated time, the time between two updates of the stream, in microseconds."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in time order.

    Attributes
    ----------
    times_us : int64 array
        The arrival time of each tuple.
    keys : int64 array
        The update key of each tuple.
    end_us : int
        The end of the trace, which is after the last arrival.
    """

    times_us: Integers
    keys: Integers
    end_us: int


def draw_arrivals(weights: Floats, rate: float, duration: float, *, seed: int) -> Trace:
    """Return `rate` evenly spaced arrivals per unit, with keys drawn by `weights`.

    UpStream §5.2 models keys this way: each arrival has key i with probability p_i.
    """
    count = int(rate * duration)
    cumulative = np.cumsum(weights) / np.sum(weights)
    cumulative[-1] = 1.0
    keys = np.searchsorted(cumulative, draws(seed, 0, count), side="right")
    times = np.rint(np.arange(count) * (UNIT_US / rate))
    return Trace(times.astype(np.int64), keys.astype(np.int64), int(duration * UNIT_US))


def zipf_weights(keys: int, theta: float) -> Floats:
    """Return the weights of a Zipf distribution: key i has ``1 / (i + 1) ** theta``."""
    weights: Floats = np.arange(1, keys + 1, dtype=np.float64) ** -theta
    return weights / weights.sum()
