"""Own aggregates for tests, which workers import."""

from __future__ import annotations

import math
from typing import Any

import penstock


class LogSum(penstock.Aggregate):
    """A geometric mean: the sum of logarithms and the number of values; null without any."""

    words = 2

    @staticmethod
    def init(state: Any) -> None:
        state[:] = 0.0

    @staticmethod
    def add(state: Any, value: Any) -> None:
        state[0] += math.log(value)
        state[1] += 1.0

    @staticmethod
    def merge(state: Any, other: Any) -> None:
        state[0] += other[0]
        state[1] += other[1]

    @staticmethod
    def finish(state: Any) -> Any:
        return math.exp(state[0] / state[1]) if state[1] > 0 else None


class Spread(penstock.Aggregate):
    """Greatest less least value; its first states are not zeros, and its arithmetic is exact."""

    words = 3

    @staticmethod
    def init(state: Any) -> None:
        state[0], state[1], state[2] = math.inf, -math.inf, 0.0

    @staticmethod
    def add(state: Any, value: Any) -> None:
        state[0], state[1] = min(state[0], value), max(state[1], value)
        state[2] += 1.0

    @staticmethod
    def merge(state: Any, other: Any) -> None:
        state[0], state[1] = min(state[0], other[0]), max(state[1], other[1])
        state[2] += other[2]

    @staticmethod
    def finish(state: Any) -> Any:
        if state[2] == 0:
            return None
        return (state[1] - state[0]) * 1000 + state[2]


class WeightedMean(penstock.Aggregate):
    """The mean of values with weights, both whole numbers, so that its arithmetic is exact."""

    words = 2

    @staticmethod
    def init(state: Any) -> None:
        state[:] = 0.0

    @staticmethod
    def add(state: Any, value: Any, weight: Any) -> None:
        state[0] += value * weight
        state[1] += weight

    @staticmethod
    def merge(state: Any, other: Any) -> None:
        state[0] += other[0]
        state[1] += other[1]

    @staticmethod
    def finish(state: Any) -> Any:
        return state[0] / state[1] if state[1] != 0 else None


class Pairs(penstock.Aggregate):
    """Counts the rows in which both values are known."""

    words = 1

    @staticmethod
    def init(state: Any) -> None:
        state[0] = 0.0

    @staticmethod
    def add(state: Any, value: Any, other: Any) -> None:
        state[0] += 1.0

    @staticmethod
    def merge(state: Any, other: Any) -> None:
        state[0] += other[0]

    @staticmethod
    def finish(state: Any) -> Any:
        return state[0]
