"""The scales of the figures of S-Store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Point", "Scale"]

Point = dict[str, Any]
"""A point of a figure: where it is, and what each contender reaches there."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a measurement.

    Attributes
    ----------
    seconds : float
        How long each contender runs at a point of figures 5 to 9.
    batch : int
        Transactions in a batch, where all are there before.
    triggers : tuple of int
        Numbers of triggers in figures 5, 6 and 9.
    sizes, slides : tuple of int
        Sizes and slides of the windows of figure 7.
    rates : tuple of float
        Votes a second that are offered in figure 8; 0 is as many as possible.
    recovered : int
        Workflows in the log that is recovered in figure 9b.
    votes : int
        Votes of figure 10.
    xways : tuple of int
        Expressways on each core in figure 11.
    minutes, reports_per_s : int
        How long the traffic of figure 11 is, and how many reports a second an expressway has at its end.
    cores : tuple of int
        Numbers of cores in figure 11.
    """

    seconds: float = 0.7
    batch: int = 10_000
    triggers: tuple[int, ...] = (0, 1, 2, 5, 10)
    sizes: tuple[int, ...] = (10, 100, 1_000)
    slides: tuple[int, ...] = (1, 10)
    rates: tuple[float, ...] = (100, 1_000, 3_000, 10_000, 100_000, 0)
    recovered: int = 300
    votes: int = 4_000_000
    xways: tuple[int, ...] = (16, 64, 256, 512)
    minutes: int = 30
    reports_per_s: int = 283
    cores: tuple[int, ...] = (1, 2)

    @staticmethod
    def fast() -> Scale:
        """Return a scale at which figures take seconds, once everything is compiled."""
        return Scale(
            seconds=0.05,
            batch=100,
            triggers=(0, 2),
            sizes=(10,),
            slides=(2,),
            rates=(100, 0),
            recovered=20,
            votes=2_000,
            xways=(1,),
            minutes=2,
            reports_per_s=20,
            cores=(1,),
        )
