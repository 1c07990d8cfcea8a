"""Signals that end a run cleanly."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignals"]


class StopSignals(AbstractContextManager["StopSignals"]):
    """Notes SIGINT and SIGTERM instead of dying of them; a second one ends the process at once.

    Used on the driver's main thread. Spark puts its own handler of SIGINT in place when its context starts:
    call `take` after that.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self.take()
        return self

    def take(self) -> None:
        """Put the handlers in place."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._note)
            self._before.setdefault(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
