"""One random case of a differential test."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Case:
    """One random case: everything it draws comes from its seed, so the seed alone replays it."""

    seed: int
    directory: Path
    """Empty, and removed after the case."""
    session: Callable[[], SparkSession]
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "random", random.Random(self.seed))

    @property
    def spark(self) -> SparkSession:
        """The Spark session that all cases of a run share; the first use starts it."""
        return self.session()
