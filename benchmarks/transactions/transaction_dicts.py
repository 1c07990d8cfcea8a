"""GS, SL, OB and TP in plain Python over dicts: a loop without checks, undo or versions.

`Locked` takes a lock for each record that a transaction accesses, in the order of keys, before it runs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

Event = tuple[Any, ...]
Outcome = tuple[Any, str | None]
"""The results of a transaction, and the reason of its rejection."""


class Dicts(ABC):
    """A program over dicts."""

    @staticmethod
    def events(rows: pa.RecordBatch) -> list[Event]:
        """Return events as Python has them."""
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def run(self, rows: pa.RecordBatch) -> list[Outcome]:
        """Run events; return their outcomes."""
        return self.each(self.events(rows))

    def each(self, events: Iterable[Event]) -> list[Outcome]:
        """Run events; return their outcomes."""
        return [self.one(*event) for event in events]

    @abstractmethod
    def one(self, *event: Any) -> Outcome:
        """Run an event."""

    @abstractmethod
    def accessed(self, event: Event) -> Iterable[Any]:
        """Return the keys that an event accesses."""

    @abstractmethod
    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows of the tables by name."""


class GrepAndSum(Dicts):
    """GS."""

    def __init__(self) -> None:
        self.records: dict[int, list[int]] = {}

    def one(self, kind: int, keys: list[int], value: int) -> Outcome:  # type: ignore[override]
        records = self.records
        if kind == 1:
            return sum(records[key][0] for key in keys), None
        if kind == 0:
            records[keys[0]] = [value] + 14 * [0]
            return None, None
        for key in keys:
            records[key][0] = value
        return 0, None

    def accessed(self, event: Event) -> Iterable[Any]:
        return event[1]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return {"records": [(key, *row) for key, row in self.records.items()]}


class StreamingLedger(Dicts):
    """SL."""

    def __init__(self) -> None:
        self.accounts: dict[int, int] = {}
        self.assets: dict[int, int] = {}

    def one(self, kind: int, source: int, target: int, money: int, goods: int) -> Outcome:  # type: ignore[override]
        accounts, assets = self.accounts, self.assets
        if kind == 0:
            accounts[target], assets[target] = money, goods
            return None, None
        if kind == 2:
            if accounts[source] < money or assets[source] < goods:
                return None, "short"
            accounts[source] -= money
            assets[source] -= goods
        accounts[target] += money
        assets[target] += goods
        return None, None

    def accessed(self, event: Event) -> Iterable[Any]:
        return event[1:3] if event[0] == 2 else event[2:3]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return {"accounts": list(self.accounts.items()), "assets": list(self.assets.items())}


class OnlineBidding(Dicts):
    """OB."""

    def __init__(self) -> None:
        self.items: dict[int, list[int]] = {}

    def one(self, kind: int, keys: list[int], price: int) -> Outcome:  # type: ignore[override]
        items = self.items
        if kind == 1:
            item = items[keys[0]]
            if price < item[0]:
                return None, "too little"
            if item[1] < 1:
                return None, "sold out"
            item[1] -= 1
        elif kind == 2:
            for key in keys:
                items[key][0] = price
        elif kind == 3:
            for key in keys:
                items[key][1] += 1
        else:
            items[keys[0]] = [price, 100]
        return None, None

    def accessed(self, event: Event) -> Iterable[Any]:
        return event[1]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return {"items": [(key, *row) for key, row in self.items.items()]}


class TollProcessing(Dicts):
    """TP."""

    def __init__(self) -> None:
        self.segments: dict[int, list[Any]] = {}
        self.seen: set[tuple[int, int]] = set()

    def one(self, kind: int, number: int, vehicle: int, speed: float) -> Outcome:  # type: ignore[override]
        if kind == 0:
            self.segments[number] = [speed, 0]
            return None, None
        segment = self.segments[number]
        segment[0] = (segment[0] + speed) / 2.0
        if (number, vehicle) not in self.seen:
            self.seen.add((number, vehicle))
            segment[1] += 1
        if segment[0] >= 40.0 or segment[1] <= 50:
            return 0.0, None
        return 2.0 * (segment[1] - 50) * (segment[1] - 50), None

    def accessed(self, event: Event) -> Iterable[Any]:
        return event[1:2]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return {"segments": [(key, *row) for key, row in self.segments.items()], "seen": list(self.seen)}


class Locked(Dicts):
    """A program whose records have locks, for several threads; its threads take turns at the events."""

    def __init__(self, program: Dicts, threads: int) -> None:
        self._program = program
        self._threads = threads
        self._locks: defaultdict[Any, threading.Lock] = defaultdict(threading.Lock)

    def each(self, events: Iterable[Event]) -> list[Outcome]:
        given = list(events)
        made: list[Any] = [None] * len(given)

        def work(first: int) -> None:
            for place in range(first, len(given), self._threads):
                made[place] = self.one(*given[place])

        others = [threading.Thread(target=work, args=(number,)) for number in range(1, self._threads)]
        for one in others:
            one.start()
        work(0)
        for one in others:
            one.join()
        return made

    def one(self, *event: Any) -> Outcome:
        with ExitStack() as held:
            for key in sorted(set(self._program.accessed(event))):
                held.enter_context(self._locks[key])
            return self._program.one(*event)

    def accessed(self, event: Event) -> Iterable[Any]:
        return self._program.accessed(event)

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return self._program.tables()


DICTS: dict[str, Callable[[], Dicts]] = {
    "GS": GrepAndSum,
    "SL": StreamingLedger,
    "OB": OnlineBidding,
    "TP": TollProcessing,
}
"""The programs by name."""
