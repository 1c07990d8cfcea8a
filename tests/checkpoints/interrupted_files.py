"""Files where something happens before the next one is published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.checkpointing.files import Content, Files

__all__ = ["InterruptedFiles"]


class InterruptedFiles:
    """Files where something happens, once, before the next one is published."""

    def __init__(self, files: Files, interrupt: Callable[[], None]) -> None:
        self._files, self._interrupt = files, [interrupt]

    def publish(self, name: str, *content: Content) -> None:
        """Interrupt, then create the file."""
        while self._interrupt:
            self._interrupt.pop()()
        self._files.publish(name, *content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)
