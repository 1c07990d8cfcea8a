"""Voter, with all tables partitioned by the caller's area code, so that each vote needs one partition.

The area code is in no attribute of the event: the procedure names its partition (`route`). The totals are by
area code, where those of `penstock.procedures.programs.oltp.voter` are by state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import penstock
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.language import abort
from penstock.procedures.partitions.partitioned_tables import PartitionedTables

__all__ = ["SHOW", "SavedTime", "load", "votes"]

T = TypeVar("T")

CONTESTANTS = 6
AREAS = 300
CALLERS = 10_000_000
MOST_VOTES = 2
_PHONES_OF_AREA = 10_000_000

SHOW = penstock.database("voter_by_area")
SHOW.table("contestants", "contestant bigint, name string NOT NULL", key="contestant")
SHOW.table("votes", "area bigint, phone bigint, number bigint, contestant bigint NOT NULL",
           key=("area", "phone", "number"), partition_by="area")  # fmt: skip
SHOW.table(
    "callers", "area bigint, phone bigint, votes bigint NOT NULL", key=("area", "phone"), partition_by="area"
)
SHOW.table("totals", "area bigint, contestant bigint, votes bigint NOT NULL",
           key=("area", "contestant"), partition_by="area")  # fmt: skip


@SHOW.procedure(
    event="phone bigint NOT NULL, contestant bigint NOT NULL",
    returns="votes bigint",
    route="e.phone // _PHONES_OF_AREA",
)
def vote(e: Any, contestants: Any, votes: Any, callers: Any, totals: Any) -> Any:
    """Count a vote; return how many the contestant has in the caller's area."""
    if e.contestant not in contestants:
        abort("unknown contestant")
    area = e.phone // _PHONES_OF_AREA
    number = 1
    caller = callers.get((area, e.phone))
    if caller is None:
        callers.insert(area=area, phone=e.phone, votes=1)
    else:
        if caller.votes == MOST_VOTES:
            abort("too many votes")
        caller.votes += 1
        number = caller.votes
    votes.insert(area=area, phone=e.phone, number=number, contestant=e.contestant)
    total = totals.get((area, e.contestant))
    if total is None:
        totals.insert(area=area, contestant=e.contestant, votes=1)
        return 1
    total.votes += 1
    return total.votes


def load(db: OpenDatabase) -> None:
    """Insert the contestants."""
    numbers = np.arange(1, CONTESTANTS + 1)
    db.load("contestants", {"contestant": numbers, "name": [f"contestant {number}" for number in numbers]})


def votes(count: int, seed: int) -> pa.Table:
    """Return votes; one of a thousand is for nobody."""
    draw = np.random.default_rng(seed)
    caller = draw.integers(0, CALLERS, count)
    contestant = np.where(draw.random(count) < 0.001, 0, draw.integers(1, CONTESTANTS + 1, count))
    return pa.table({"phone": caller % AREAS * _PHONES_OF_AREA + caller // AREAS, "contestant": contestant})


class SavedTime:
    """The time that more cores would save: partitions run one after the other, and the longest one counts.

    Attributes
    ----------
    seconds : float
        The time of all others.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def measure(self, db: OpenDatabase) -> Iterator[None]:
        """Run the partitions of a database one after the other within the context."""
        state = db._state
        if not isinstance(state, PartitionedTables):
            yield
            return

        def each(tasks: Mapping[int, Callable[[], T]]) -> dict[int, T]:
            results: dict[int, T] = {}
            spent = [0.0]
            for number, task in tasks.items():
                begin = time.perf_counter()
                results[number] = task()
                spent.append(time.perf_counter() - begin)
            self.seconds += sum(spent) - max(spent)
            return results

        state.run_each = each  # type: ignore[method-assign]
        yield
