"""Windows by brute force: every row in every window that it is in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

__all__ = ["Row", "Windows", "aggregated", "batches_of"]


class Row(NamedTuple):
    """A row: its group, its pane and its value."""

    group: Any
    pane: int
    value: float | None


class Windows:
    """Windows in append mode, row by row, with dictionaries.

    Parameters
    ----------
    size, slide, delay : int
        In panes.
    """

    def __init__(self, size: int, slide: int, delay: int) -> None:
        self.size, self.slide, self.delay = size, slide, delay
        self.rows: dict[tuple[Any, int], list[Row]] = defaultdict(list)
        self.closed: int | None = None
        self.newest: int | None = None
        self.late = 0

    def batch(self, rows: Iterable[Row]) -> dict[tuple[Any, int], list[Row]]:
        """Let rows in; return the rows of each window that closes, by group and first pane."""
        for row in rows:
            starts = [
                start
                for start in range(row.pane - self.size + 1, row.pane + 1)
                if start % self.slide == 0 and (self.closed is None or start + self.size > self.closed)
            ]
            self.late += not starts
            for start in starts:
                self.rows[row.group, start].append(row)
            if starts or self.newest is not None:
                self.newest = row.pane if self.newest is None else max(self.newest, row.pane)
        if self.newest is None:
            return {}
        watermark = self.newest - self.delay
        done = {key: found for key, found in self.rows.items() if key[1] + self.size <= watermark}
        for key in done:
            del self.rows[key]
        self.closed = watermark if self.closed is None else max(self.closed, watermark)
        return done


def batches_of(rows: list[Row], cuts: Iterable[int]) -> list[list[Row]]:
    """Cut rows at places."""
    bounds = [0, *sorted(cuts), len(rows)]
    return [rows[begin:end] for begin, end in pairwise(bounds)]


Aggregate = Callable[[list[Row]], Any]


def aggregated(
    windows: Mapping[tuple[Any, int], list[Row]], aggregates: Mapping[str, Aggregate]
) -> dict[tuple[Any, int], dict[str, Any]]:
    """Return the aggregates of windows."""
    return {
        key: {name: aggregate(rows) for name, aggregate in aggregates.items()}
        for key, rows in windows.items()
    }
