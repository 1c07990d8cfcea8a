"""The size of the simulations, and the function that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Runner", "Scale", "in_turn"]

Runner = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Applies a function to each case and returns the results in order; may do so in other processes."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a simulation.

    Attributes
    ----------
    loads : tuple of float
        Load factors of figures 5 and 7.
    updates : int
        Updates in a run of figures 5 and 7.
    units_9, variants_9 : int
        Length of a run of figure 9, in units of time, and how many of its variants are run.
    thetas, rates : tuples
        Skews and arrival rates (tuples a second) of figures 16 and 17.
    deliveries : int
        Results after which a run of figures 16 and 17 ends.
    ticks_12 : int
        Units of time in the execution traces of figure 12.
    sizes_13, sizes_14 : tuple of int
        Window sizes of figures 13 and 14.
    units_13, units_14 : int
        Length of a run of figures 13 and 14, in units of time.
    seeds_13 : int
        Over how many runs random window shedding is averaged.
    """

    loads: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
    updates: int = 3_000
    units_9: int = 6_000
    variants_9: int = 3
    thetas: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9)
    rates: tuple[int, ...] = (20, 50, 100, 200, 400, 600, 800, 1000)
    deliveries: int = 1_000
    ticks_12: int = 15
    sizes_13: tuple[int, ...] = (1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    units_13: int = 10_000
    seeds_13: int = 20
    sizes_14: tuple[int, ...] = (2, 3, 4, 5, 7, 10, 15, 20, 30, 40, 50)
    units_14: int = 6_000

    @staticmethod
    def fast() -> Scale:
        """Return a scale at which all figures take seconds."""
        return Scale(
            loads=(1.0, 2.0, 5.0, 10.0),
            updates=1_000,
            units_9=1_500,
            variants_9=1,
            rates=(20, 100, 1000),
            deliveries=200,
            sizes_13=(1, 5, 20, 50, 100),
            units_13=1_000,
            seeds_13=5,
            sizes_14=(2, 5, 10, 20, 40),
            units_14=2_000,
        )


def in_turn(function: Callable[[Any], Any], cases: Sequence[Any]) -> list[Any]:
    """Run all cases in this process, one after the other."""
    return [function(case) for case in cases]
