"""Processes of this machine: their parents, and how to end them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process that runs."""

    id: int
    parent: int
    session: int


def running() -> Iterator[Process]:
    """Give the processes that run, without those that have ended and are not waited for yet."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX":
                yield Process(int(path.parent.name), int(parent), int(session))


def kill(ids: Iterable[int]) -> None:
    """Kill all processes, then wait until they have ended; they need not be children of this process."""
    with contextlib.ExitStack() as stack:
        handles = []
        for process in ids:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(process)
                stack.callback(os.close, handle)
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                handles.append(handle)
        for handle in handles:
            select.select([handle], [], [])  # readable once it has ended


def until(condition: Callable[[], bool], patience_s: float) -> bool:
    """Wait until `condition`, which depends on other processes, holds; return whether it did."""
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)  # polls: the condition is in another process
    return True
