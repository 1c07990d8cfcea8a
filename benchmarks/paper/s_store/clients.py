"""Figures 6 and 8: workflows in the engine, against a client that drives them (S-Store §4.2, §4.5)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.paper.s_store.scale import Point, Scale
from benchmarks.paper.s_store.served import Connection, Served, serving
from benchmarks.paper.s_store.texts import driven_voter, voter, workflow

__all__ = ["drive_votes", "figure_6", "figure_8", "votes"]

_TABLES = ("contestants", "votes", "totals", "leaderboard")
_ROUND = 1000
_MAX_REQUESTS = 1 << 21
_FAVOURITE = 0.9
"""The share of votes for one contestant. The others go early; later votes for them are rejected."""
DRIVEN = Served(driven_voter, ("validate", "count", "remove_lowest"), {}, _TABLES)
WORKFLOW = Served(voter, ("vote",), {}, _TABLES)


def until_over(seconds: float, run: Callable[[int], None], *, rate: float = float("inf")) -> float:
    """Return how often a second `run` runs, at most `rate`."""
    count = 0
    begin = time.monotonic()
    while (now := time.monotonic()) - begin < seconds:
        early = count / rate - (now - begin)
        if early > 0:
            time.sleep(early)  # the pace of a client; nothing is waited for
        run(count)
        count += 1
    return count / (time.monotonic() - begin)


def streamed(
    connection: Connection, requests: npt.NDArray[np.int64], seconds: float, rate: float = float("inf")
) -> float:
    """Return how many requests a second are answered if a client sends them without waiting."""
    # As many as take about so long: a first part says how fast it is.
    first = min(1000, len(requests) // 4)
    took = connection.stream(requests[:first])
    count = int(min(max(seconds * first / took, first), seconds * rate, len(requests) - first))
    for _ in range(3):
        took = connection.stream(requests[first : first + count], rate)
        if took > seconds / 2 or first + count == len(requests):
            break
        first += count
        count = min(int(count * seconds / took), len(requests) - first)
    return count / took


def figure_6(scale: Scale) -> list[Point]:
    """Workflows a second by the number of triggers between procedures."""
    points: list[Point] = []
    for triggers in scale.triggers:
        loads = {"counts": {"id": list(range(triggers + 1)), "count": [0] * (triggers + 1)}}
        served = Served(partial(workflow, triggers), ("flow", "step"), loads)
        with serving(served) as connection:

            def drive(number: int, connection: Connection = connection, triggers: int = triggers) -> None:
                for at in range(triggers + 1):
                    connection.call(1, at, number)

            def wait(number: int, connection: Connection = connection) -> None:
                connection.call(0, number)

            until_over(scale.seconds / 10, drive)
            driven = until_over(scale.seconds, drive)
            waiting = until_over(scale.seconds, wait)
            requests = np.zeros((_MAX_REQUESTS, 3), np.int64)
            requests[:, 1] = 1
            points.append({
                "triggers": triggers, "client drives": driven, "workflow, client waits": waiting,
                "workflow": streamed(connection, requests, scale.seconds),
            })  # fmt: skip
    return points


def votes(count: int) -> npt.NDArray[np.int64]:
    """Return votes as requests: of new phones, and some of phones that have voted."""
    rng = np.random.default_rng(8)
    phones = np.arange(count) * 7919 % (1 << 40)
    again = rng.random(count) < 0.05
    phones[again] = phones[rng.integers(0, count, int(again.sum()))]
    contestants = np.where(rng.random(count) < _FAVOURITE, 0, rng.integers(0, 8, count))
    return np.stack([np.zeros(count, np.int64), phones, contestants], axis=1)


def drive_votes(connection: Connection, cast: npt.NDArray[np.int64], number: int) -> None:
    """Do as a client of H-Store does: call each procedure once the one before has committed."""
    _, phone, contestant = cast[number].tolist()
    _, rejected = connection.call(0, phone, contestant)
    if not rejected:
        total, _ = connection.call(1, contestant)
        if total % _ROUND == 0:
            connection.call(2, total)


def figure_8(scale: Scale) -> list[Point]:
    """Votes a second by how many are offered, with and without durability."""
    points: list[Point] = []
    cast = votes(_MAX_REQUESTS)
    for durable in (False, True):
        for rate in scale.rates:
            offered = rate or float("inf")
            with serving(_durable(DRIVEN, durable=durable)) as connection:
                drive = partial(drive_votes, connection, cast)
                driven = until_over(scale.seconds, drive, rate=offered)
            with serving(_durable(WORKFLOW, durable=durable)) as connection:
                reached = streamed(connection, cast, scale.seconds, offered)
            points.append({
                "durable": "yes" if durable else "no", "offered": rate or "all",
                "client drives": driven, "workflow": reached,
            })  # fmt: skip
    return points


def _durable(served: Served, *, durable: bool) -> Served:
    return Served(served.make, served.procedures, served.loads, served.tables, durable)
