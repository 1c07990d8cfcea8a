"""With speculation, tables are gathered if the calls of `run` take less time there, and only then."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock import _clock
from penstock.procedures.partitions.partitioned_rows import GatheredTables
from penstock.procedures.partitions.partitioned_tables import PartitionedTables
from penstock.speculating.in_process.speculation import Speculation
from penstock.speculating.in_process.trials import MAX_LOSS

MOVE_S = 2.0
LEARNING = 150
"""Calls after which the fastest way is known."""

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")


@bank.procedure(event="source bigint, target bigint", returns="balance bigint")
def move(e: Any, accounts: Any) -> Any:
    accounts[e.source].balance -= 1
    accounts[e.target].balance += 1
    return accounts[e.target].balance


class Times:
    """A clock that moves only when a call runs or a table moves, by the seconds that this takes.

    The methods that run calls are replaced by themselves and a step of the clock.
    """

    def __init__(self, patch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.now_s, self.seconds = 0.0, seconds
        patch.setattr(_clock, "monotonic_s", lambda: self.now_s)
        for way, owner, method in (
            ("beside", Speculation, "_run_beside"),
            ("split", PartitionedTables, "_run_split"),
            ("gathered", PartitionedTables, "_run_gathered"),
            ("move", GatheredTables, "_move"),
        ):
            patch.setattr(owner, method, self._step(getattr(owner, method), way))

    def _step(self, method: Any, way: str) -> Any:
        def step(*arguments: Any) -> Any:
            self.now_s += self.seconds[way]
            return method(*arguments)

        return step


def run(db: Any, times: Times, calls: int, several: int = 30) -> float:
    """Run calls of 40 transfers, so many of them over both partitions; return the seconds of a call."""
    begin_s = times.now_s
    events = {"source": range(40), "target": [*range(50, 50 + several), *range(several, 40)]}
    for _ in range(calls):
        db.run("move", events)
    return (times.now_s - begin_s) / calls


@pytest.mark.parametrize(
    "seconds",
    [
        {"beside": 10.0, "split": 12.0, "gathered": 1.0},
        {"beside": 12.0, "split": 10.0, "gathered": 1.0},
        {"beside": 9.0, "split": 12.0, "gathered": 10.0},
        {"beside": 1.0, "split": 10.0, "gathered": 10.0},
        {"beside": 10.0, "split": 1.0, "gathered": 10.0},
    ],
)
def test_the_way_of_the_least_time_is_chosen(seconds: dict[str, float]) -> None:
    with pytest.MonkeyPatch.context() as patch, bank.open() as serial:
        times = Times(patch, **seconds, move=MOVE_S)
        with bank.open(partitions=2, ranges={"accounts": [50]}, speculate=True) as db:
            for one in (db, serial):
                one.load("accounts", {"id": range(100), "balance": [0] * 100})
            run(db, times, LEARNING)
            assert isinstance(db._state, PartitionedTables)
            assert bool(db._state.gathered.names) == (min(seconds, key=seconds.__getitem__) == "gathered")
            each_s = run(db, times, 400)
            best_s = min(seconds.values())
            assert best_s <= each_s <= best_s * (1 + 2 * MAX_LOSS) + 3 * MOVE_S / 400
            run(serial, times, LEARNING + 400)
            assert db.table("accounts").sort_by("id") == serial.table("accounts").sort_by("id")


def test_another_way_is_chosen_when_times_change() -> None:
    with pytest.MonkeyPatch.context() as patch:
        times = Times(patch, beside=10.0, split=12.0, gathered=1.0, move=MOVE_S)
        with bank.open(partitions=2, ranges={"accounts": [50]}, speculate=True) as db:
            db.load("accounts", {"id": range(100), "balance": [0] * 100})
            state = db._state
            assert isinstance(state, PartitionedTables)
            run(db, times, LEARNING)
            times.seconds |= {"gathered": 10.0, "beside": 5.0}
            run(db, times, 300)
            assert state.gathered.names == set()
            times.seconds |= {"gathered": 0.1}
            run(db, times, 1_200)
            assert state.gathered.names == {"accounts"}
            run(db, times, 600, several=0)
            assert state.gathered.names == set()
