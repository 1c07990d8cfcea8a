"""Requests that wait to run, and the thread that runs them in groups."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from penstock.errors import InvalidUsageError, UnavailableError

__all__ = ["GROUPED_TYPES", "Request", "RequestQueue", "answer", "group_requests"]

MAX_WAITING = 1 << 16
_MAX_GROUP = 1 << 14
GROUPED_TYPES = frozenset({bool, int, float, str, bytes, date, type(None)})
"""Types for which Arrow infers the same column type from one value as from several values."""


@dataclass(slots=True, eq=False)
class Request:
    """A request for one transaction."""

    procedure: str
    attributes: dict[str, Any]
    future: Future[dict[str, Any]] = field(default_factory=Future)

    def signature(self) -> object:
        """Return a value that is equal for requests that can run in one group."""
        types = tuple(map(type, self.attributes.values()))
        return (self.procedure, tuple(self.attributes), types) if GROUPED_TYPES.issuperset(types) else self


def answer(group: Sequence[Request], results: Sequence[dict[str, Any]] | BaseException) -> None:
    """Complete the futures of requests with their results, or with an error."""
    if isinstance(results, BaseException):
        for request in group:
            request.future.set_exception(results)
        return
    for request, result in zip(group, results, strict=True):
        request.future.set_result(result)


class RequestQueue:
    """A bounded queue, and a thread that runs its requests in order.

    Parameters
    ----------
    run : callable
        Runs groups of requests in order, and completes their futures now or later. All requests of a group
        have the same signature. It must not raise errors.
    most_waiting : int
        The maximum number of waiting requests.
    """

    def __init__(
        self, run: Callable[[list[Sequence[Request]]], None], most_waiting: int = MAX_WAITING
    ) -> None:
        self._run_groups = run
        self._most_waiting = most_waiting
        self._waiting: deque[Request] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="penstock-requests", daemon=True)
        self._thread.start()

    def put(self, request: Request, *, refuse: bool = False) -> Future[dict[str, Any]]:
        """Queue a request; return its future. If the queue is full, wait, or with `refuse` raise an error.

        Raises
        ------
        InvalidUsageError
            If the queue is closed.
        UnavailableError
            If the queue is full and `refuse` is true.
        """
        with self._changed:
            if refuse and len(self._waiting) >= self._most_waiting:
                raise UnavailableError(
                    "too many requests wait", waiting=len(self._waiting), hint="send it again, later"
                )
            self._changed.wait_for(lambda: len(self._waiting) < self._most_waiting or self._closed)
            if self._closed:
                raise InvalidUsageError("the database is closed", hint="open it again")
            self._waiting.append(request)
            self._changed.notify_all()
        return request.future

    def close(self) -> None:
        """Run the waiting requests, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while requests := self._take():
            self._run_groups(list(group_requests(requests)))

    def _take(self) -> list[Request]:
        """Wait for requests; return the requests whose futures were not cancelled, or none after `close`."""
        taken: list[Request] = []
        while not taken:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
                if not self._waiting:
                    break
                taken.extend(self._waiting)
                self._waiting.clear()
                self._changed.notify_all()
            taken = [request for request in taken if request.future.set_running_or_notify_cancel()]
        return taken


def group_requests(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Divide requests into groups: a new group begins where the signature changes or a group is full."""
    begin, signature = 0, requests[0].signature()
    for place, request in enumerate(requests):
        other = request.signature()
        if other != signature or place - begin == _MAX_GROUP:
            yield requests[begin:place]
            begin, signature = place, other
    yield requests[begin:]
