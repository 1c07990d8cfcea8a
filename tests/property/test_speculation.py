"""A database that speculates gives the results and tables of a serial run, in the order of requests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidUsageError
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.request_queue import Request, group_requests
from penstock.speculating.in_process import Speculation
from tests.long_tests import LONG
from tests.property.test_partitions import BANK, EVENTS, Call, run, tables

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking, which takes minutes with databases."""
EXAMPLES = 100 if LONG else 3
NAMES = ("deposit", "transfer", "close_account", "open_account", "give", "pay_all", "store", "move", "order",
         "reward", "set_rate")  # fmt: skip
FIRST: list[Call] = [
    ("open_account", [{"id": id_, "owner": "Ada"} for id_ in range(0, 10, 2)]),
    ("set_rate", [{"currency": "Bo", "rate": 3}]),
    ("store", [{"number": number, "shift": 0} for number in range(0, 30, 3)]),
]


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Return calls, most of which have keys that their events name."""
    made = list(FIRST)
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=8)):
        events = draw(st.lists(st.fixed_dictionaries(dict(EVENTS[name])), min_size=1, max_size=12))
        made.append((name, events))
    return made


def speculation(db: OpenDatabase) -> Speculation:
    """Return what runs transactions beside others."""
    found = getattr(db._state, "speculation", None)
    assert isinstance(found, Speculation)
    return found


def submit(db: OpenDatabase, made: list[Call]) -> list[list[dict[str, Any]]]:
    """Run calls as requests that all wait in the queue when the first one runs."""
    requests = [[Request(name, event) for event in events] for name, events in made]
    db._run_groups(list(group_requests([one for each in requests for one in each])))
    return [[one.future.result(60) for one in each] for each in requests]


@pytest.mark.parametrize("mode", ["rows", pytest.param("tables", marks=pytest.mark.long), "occ"])
@settings(max_examples=EXAMPLES, deadline=None, phases=PHASES)
@given(made=calls(), partitions=st.integers(2, 4))
def test_queued_requests_equal_the_serial_order(mode: str, made: list[Call], partitions: int) -> None:
    with BANK.open() as serial, BANK.open(partitions=partitions, speculate=mode) as db:
        assert submit(db, made) == run(serial, made)
        assert tables(db) == tables(serial)
        assert db._state.transactions == serial._state.transactions


LATER: list[Call] = [
    ("transfer", [{"source": 0, "target": 2, "amount": 4}] * 8),
    ("deposit", [{"id": id_, "amount": 1} for id_ in (4, 0, 6, 4)]),
    ("store", [{"number": 3, "shift": 0}]),
    ("close_account", [{"id": 6, "heir": 0}]),
    ("deposit", [{"id": 6, "amount": 1}, {"id": 8, "amount": 1}]),
    ("reward", [{"owner": "Ada", "amount": 1}]),
    ("deposit", [{"id": 8, "amount": 5}]),
]
TWO: dict[str, Any] = {"partitions": 2, "ranges": {"accounts": [1], "shelves": [1]}}


def test_later_requests_run_beside_a_transaction_over_several_partitions() -> None:
    with BANK.open() as serial, BANK.open(**TWO, speculate=True) as db:
        assert run(db, FIRST) == run(serial, FIRST)
        before = speculation(db).conflicts
        assert submit(db, LATER) == run(serial, LATER)
        # A deposit to 0 waits for the transfers, and one to 6 until that account is closed. The last one
        # waits for the reward, which may be for anybody.
        assert speculation(db).transactions == 5
        assert speculation(db).conflicts - before >= 2
        assert "5 later requests" in db.explain()
    with BANK.open() as serial, BANK.open(**TWO, speculate="tables") as db:
        assert run(db, FIRST) == run(serial, FIRST)
        assert submit(db, LATER) == run(serial, LATER)
        assert speculation(db).transactions == 1


def test_the_log_has_requests_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    with BANK.open() as serial, BANK.open(tmp_path / "bank", **TWO, speculate=True) as db:
        assert run(db, FIRST) == run(serial, FIRST)
        assert submit(db, LATER) == run(serial, LATER)
        assert speculation(db).transactions == 5
        shutil.copytree(tmp_path / "bank", tmp_path / "killed")
        with BANK.open(tmp_path / "killed") as replayed:
            assert tables(replayed) == tables(db) == tables(serial)
            assert replayed._state.transactions == serial._state.transactions


def test_optimistic_transactions_that_conflict_are_rolled_back_and_run_again() -> None:
    made: list[Call] = [
        ("transfer", [{"source": 0, "target": 2, "amount": 4}] * 8),
        ("deposit", [{"id": 4, "amount": 1}, {"id": 0, "amount": 1}]),
    ]
    with BANK.open() as serial, BANK.open(**TWO, speculate="occ") as db:
        assert run(db, FIRST) == run(serial, FIRST)
        before = speculation(db).rolled_back
        assert submit(db, made) == run(serial, made)
        assert tables(db) == tables(serial)
        assert (speculation(db).rolled_back - before, speculation(db).transactions) == (2, 0)


def test_unusable_options_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"no such mode.*speculate='row'.*did you mean"):
        BANK.open(partitions=2, speculate="row")
    with pytest.raises(InvalidUsageError, match="speculation is for partitions"):
        BANK.open(speculate=True)
