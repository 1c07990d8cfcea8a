"""What an operator does with windows that close, before they leave it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.operators.windows.layout import Closed, WindowLayout

__all__ = ["PassThrough", "WindowEmitter"]


class WindowEmitter(Protocol):
    """Makes of windows that close what leaves the operator. It is not changed by that."""

    @property
    def partials(self) -> Container[str] | None:
        """The partials of windows that it reads; None for all."""

    def __call__(self, closed: Closed) -> Any:
        """Return what becomes of some windows; called by several threads at once."""

    def collect(self, parts: list[Any]) -> list[pa.RecordBatch]:
        """Return what leaves the operator of what became of all windows, in their order."""


@dataclass(frozen=True)
class PassThrough:
    """Lets windows leave as they are.

    Parameters
    ----------
    layout : WindowLayout
        Of the windows.
    """

    layout: WindowLayout

    @property
    def partials(self) -> None:
        """All of them; see `WindowEmitter.partials`."""
        return None

    def __call__(self, closed: Closed) -> pa.RecordBatch:
        """Return windows with their groups."""
        return closed.batch(self.layout)

    def collect(self, parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return them."""
        return parts
