"""Clients that call a database at the same time, and note when they called and what they were told."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import penstock
from penstock.procedures.databases import Database
from tests.models.linearizability import Operation
from tests.transactions.procedures import define

__all__ = ["Call", "Clients", "counters", "step"]

CHANGE = """
def change(e, counters):
    row = counters.get(e.id)
    if row is None:
        counters.insert(id=e.id, value=e.by)
        return e.by
    row.value += e.by
    return row.value
"""
READ = """
def read(e, counters):
    row = counters.get(e.id)
    return None if row is None else row.value
"""
Call = Callable[[str, str, dict[str, int]], Any]
"""Takes the id of a request, a procedure and its arguments; returns ``now`` of the answer."""


def counters() -> Database:
    """Return a database of counters, whose procedures tell the counter's value."""
    database = penstock.database("counters")
    database.table("counters", "id bigint, value bigint NOT NULL", key="id", partition_by="id")
    database.procedure(event="id bigint, by bigint", returns="now bigint", plain=True)(define(CHANGE))
    database.procedure(event="id bigint", returns="now bigint", plain=True)(define(READ))
    return database


def step(value: int | None, by: int | None) -> tuple[int | None, Hashable]:
    """Do to a counter what the database does: add, or read if `by` is None."""
    value = value if by is None else (value or 0) + by
    return value, value


class Clients:
    """Threads that call, each one call after the other.

    Parameters
    ----------
    calls : list of callable
        The way in which each client calls. A call that raises is not known to have happened, and ends its
        client.
    seed : int
        The seed of the drawn calls.
    keys : int
        The number of counters.
    """

    def __init__(self, calls: list[Call], seed: int, keys: int = 2) -> None:
        self.history: list[Operation] = []
        self.errors: list[BaseException] = []
        self._ending = threading.Event()
        self._keys = keys
        self._threads = [
            threading.Thread(target=self._run, args=(call, number, seed), daemon=True)
            for number, call in enumerate(calls)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self, timeout_s: float = 120) -> None:
        """Let each client end its call, and wait for them."""
        self._ending.set()
        for thread in self._threads:
            thread.join(timeout_s)
            assert not thread.is_alive(), "a call does not end"

    def _run(self, call: Call, client: int, seed: int) -> None:
        draw = random.Random(f"{seed} {client}")
        number = 0
        while not self._ending.is_set():
            number += 1
            key, by = draw.randrange(self._keys), draw.choice([None, 1, 2, 5])
            arguments = {"id": key} if by is None else {"id": key, "by": by}
            begin = time.monotonic()
            try:
                result = call(f"{client} {number}", "read" if by is None else "change", arguments)
            except BaseException as error:  # whoever checks the history refuses it
                self.history.append(Operation(key, by, begin, math.inf))
                self.errors.append(error)
                return
            self.history.append(Operation(key, by, begin, time.monotonic(), result))
