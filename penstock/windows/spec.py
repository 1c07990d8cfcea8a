"""Windows in units of panes: how windows are numbered, and which windows contain a pane."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidUsageError

__all__ = ["WindowSpec"]


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Windows whose size and slide are whole numbers of panes.

    Pane p is ``[p, p + 1)`` times the pane's length, since 1970-01-01T00:00:00Z. Window k has the panes ``[k
    * slide, k * slide + size)``; k may be negative. So windows are aligned like Spark's ``window()``.

    Parameters
    ----------
    size, slide : int
        Size and slide in panes. The slide is at most the size.

    Raises
    ------
    InvalidUsageError
        If a number is not positive, or the slide is longer than the size.
    """

    size: int
    slide: int

    def __post_init__(self) -> None:
        if self.slide < 1 or self.size < self.slide:
            raise InvalidUsageError("the slide is not from 1 to the size", size=self.size, slide=self.slide)

    @property
    def overlap(self) -> int:
        """Number of windows that contain a pane, rounded down."""
        return self.size // self.slide

    def first_with(self, pane: int) -> int:
        """Return the first window that contains a pane."""
        return (pane - self.size) // self.slide + 1

    def last_complete(self, watermark: int) -> int:
        """Return the last window that ends at or before pane `watermark`."""
        return (watermark - self.size) // self.slide

    def start(self, window: int) -> int:
        """Return a window's first pane."""
        return window * self.slide
