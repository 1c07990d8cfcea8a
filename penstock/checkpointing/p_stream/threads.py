"""A thread pool that works until the process ends."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # pyarrow loads it for arrays, too late after the main thread
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeAlias, TypeVar

from penstock.errors import InternalError

__all__ = ["Threads", "usable_cores"]

P = ParamSpec("P")
T = TypeVar("T")

_Queue: TypeAlias = "SimpleQueue[Callable[[], None] | None]"


class Threads:
    """A pool of threads that start tasks in the order of submission. Any thread may call it.

    Executors of the standard library refuse tasks once the main thread has ended. But after that, other
    threads and `atexit` handlers may still append rows and wait until they are durable. If nothing waits for
    a task, the task ends when the process ends.

    Parameters
    ----------
    count : int
        The number of threads. They start at once, because no thread can start at interpreter exit.
    name : str
        The prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._work: _Queue = SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=_run, args=(self._work,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        # The threads reference only the queue, so a pool that is never closed is still collected.
        weakref.finalize(self, _end, self._work, count).atexit = False

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a task; return a future of its result or error.

        Raises
        ------
        InternalError
            If the pool is closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise InternalError("a task was submitted to a closed pool of threads")
            self._work.put(partial(_do, future, partial(work, *args, **kwargs)))
        return future

    def close(self) -> None:
        """Wait until all tasks are done and the threads have ended. Closing twice is not an error."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _end(self._work, len(self._threads))
        for thread in self._threads:
            thread.join()


def _run(queue: _Queue) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # the task holds its arguments


def _do(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def _end(queue: _Queue, count: int) -> None:
    for _ in range(count):
        queue.put(None)


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
