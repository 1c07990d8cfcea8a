"""Clients that call a stream of transactions while it is killed, and repeat requests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.errors import UnavailableError
from penstock.procedures.databases import Database

__all__ = ["Callers"]

_MIN_CALLS = 3
_LOOK_S = 1.0
"""The interval at which a caller checks whether to give up."""


class Callers:
    """Threads, each of which has a request in flight all the time.

    A caller sends a request, waits for the answer, however often the query is killed meanwhile, and then
    sends the next one. Now and then it asks again, as one that does not know whether it was answered, and
    gets the same answer.

    Parameters
    ----------
    database : Database
        The database.
    location : Path
        The location of requests.
    draw_call : callable
        Draws a procedure and its arguments.
    seed : int
        The seed of the drawn calls.
    count : int
        The number of callers.
    """

    def __init__(
        self,
        database: Database,
        location: Path,
        draw_call: Callable[[random.Random], tuple[str, dict[str, Any]]],
        seed: int,
        count: int = 4,
    ) -> None:
        self._database, self._location, self._draw_call = database, location, draw_call
        self._ending, self._given_up = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self.calls: dict[str, tuple[str, dict[str, Any]]] = {}
        """The calls by the ids of their requests."""
        self.asked_again = 0
        self._running = [
            self._pool.submit(self._call, number, random.Random(f"{seed} {number}"))
            for number in range(count)
        ]

    def __enter__(self) -> Callers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up.set()
        self._pool.shutdown()

    def finish(self, timeout_s: float) -> None:
        """Wait until each caller has the answer to its last request.

        Raises
        ------
        AssertionError
            If a caller got two different answers to one request.
        TimeoutError
            If a request has no answer in time.
        """
        self._ending.set()
        for one in self._running:
            one.result(timeout_s)

    def _call(self, caller: int, draw: random.Random) -> None:
        number = 0
        with self._database.connect(self._location) as client:
            while number < _MIN_CALLS or not self._ending.is_set():
                number += 1
                id_ = f"{caller} {number}"
                name, values = self.calls[id_] = self._draw_call(draw)
                answers = []
                for _ in range(2 if draw.random() < 0.25 else 1):
                    client.send(id_, name, **values)
                    answers.append(self._wait(client, id_))
                if None in answers:
                    return
                assert answers[0] == answers[-1], f"two answers to request {id_}: {answers}"
                self.asked_again += len(answers) - 1

    def _wait(self, client: Any, id_: str) -> dict[str, Any] | None:
        while not self._given_up.is_set():
            try:
                found: dict[str, Any] = client.wait(id_, f"{_LOOK_S}s")
            except UnavailableError:
                continue
            return found
        return None
