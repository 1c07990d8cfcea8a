"""Emitters: they process closed windows before the windows leave the operator."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.windows.layout import ClosedWindows, WindowLayout

__all__ = ["PassThrough", "WindowEmitter"]


class WindowEmitter(Protocol):
    """Converts closed windows to the operator's output. An emitter has no state."""

    @property
    def partials(self) -> Container[str] | None:
        """The partials that the emitter reads; None for all."""

    def __call__(self, closed: ClosedWindows) -> Any:
        """Convert some windows. Several threads may call this method at the same time."""

    def collect(self, parts: list[Any]) -> list[pa.RecordBatch]:
        """Combine the converted windows, in order, into the output."""


@dataclass(frozen=True)
class PassThrough:
    """Emit windows unchanged.

    Parameters
    ----------
    layout : WindowLayout
        The layout of the windows.
    """

    layout: WindowLayout

    @property
    def partials(self) -> None:
        """All partials; see `WindowEmitter.partials`."""
        return None

    def __call__(self, closed: ClosedWindows) -> pa.RecordBatch:
        """Return windows with their groups."""
        return closed.batch(self.layout)

    def collect(self, parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the windows unchanged."""
        return parts
