"""Signals that end a run cleanly."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignals", "is_stopping"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRAPHS = "penstock.spark_ext.graph.handle"
_LOGGERS = (None, "py4j.clientserver", _GRAPHS)
_INTERRUPTED = (
    "KeyboardInterrupt while sending command.",
    "Exception while sending command.",
    "Exception occurred while shutting down connection",
)
"""The message that Py4J logs with a traceback before it raises the exception again."""
_WAIT_S = 0.5
_STOPPING = b"stopping; another signal ends the process at once\n"


class StopSignals(AbstractContextManager["StopSignals"]):
    """Record SIGINT and SIGTERM in `received`; the second signal ends the process at once.

    Use this object on the driver's main thread; in other threads it does nothing. When Spark's context
    starts, it replaces the handler of SIGINT, so call `take` after that. Blocks may be nested. A signal that
    the inner block received is also passed to the outer block.

    Parameters
    ----------
    raises : bool
        Whether the first signal also raises an exception, for code that does not check `received`:
        ``KeyboardInterrupt`` for SIGINT, ``SystemExit(143)`` for SIGTERM.
    """

    def __init__(self, *, raises: bool = False) -> None:
        self.received: int | None = None
        # Not a `threading.Event`: its lock may be held by the main thread when the main thread runs the
        # handler.
        self._noted: SimpleQueue[None] = SimpleQueue()
        self._raises = raises
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self.take()
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._is_news)
        return self

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Return False for a log record that only reports that the signal interrupted or ended the JVM.

        Graphs give the attribute ``driver_ended`` to log records about a driver that has ended.
        """
        if self.received is None:
            return True
        return not getattr(record, "driver_ended", False) and record.msg not in _INTERRUPTED

    def take(self) -> None:
        """Install the handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.signal(number, self._note)
            self._before.setdefault(number, before)

    def wait(self) -> None:
        """Wait for a signal, on the main thread."""
        while self.received is None:
            # A signal does not wake `get` if it arrives just before `get` blocks, or in another thread.
            with suppress(Empty):
                self._noted.get(timeout=_WAIT_S)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            # End without an exception, because clean-up code would print it. A restart recovers.
            os._exit(128 + number)
        self.received = number
        self._noted.put(None)
        if sys.stderr is not None:
            os.write(2, _STOPPING)
        if self._raises:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._is_news)
        for number, handler in self._before.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, StopSignals) and outer.received is None:
                outer.received = self.received


def is_stopping() -> bool:
    """Return whether a `StopSignals` has received a signal. Any thread may call this function."""
    signals = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return isinstance(signals, StopSignals) and signals.received is not None
