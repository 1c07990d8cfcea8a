"""Concurrent clients of a database see results that a serial order of their calls could give."""

from __future__ import annotations

import itertools
import json
import math
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import FencedError, InvalidUsageError
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.served.server import DatabaseServer
from tests.models.clients import Call, Clients, counters, step
from tests.models.linearizability import Operation, is_linearizable, keys_that_are_not_linearizable
from tests.servers.processes import until

CALLS = 40


def op(asked: int | None, begin: float, end: float, result: int | None = None) -> Operation:
    return Operation(0, asked, begin, end, result)


@pytest.mark.parametrize(
    ("history", "fits"),
    [
        ([op(1, 0, 1, 1), op(None, 2, 3, 1)], True),
        ([op(1, 0, 1, 1), op(None, 2, 3, None)], False),  # a stale read
        ([op(1, 0, 5, 1), op(None, 2, 3, None)], True),  # before the change
        ([op(1, 0, 5, 2), op(1, 2, 3, 1)], True),
        ([op(1, 0, 1, 1), op(1, 2, 3, 1)], False),  # a lost change
        ([op(1, 0, 5, 1), op(1, 2, 3, 1)], False),
        ([op(1, 0, 5, 1), op(None, 1, 2, 1), op(None, 3, 4, None)], False),  # back in time
        ([op(1, 0, math.inf), op(None, 2, 3, None), op(None, 4, 5, 1)], True),  # not answered, but done
        ([op(1, 0, math.inf), op(None, 2, 3, None)], True),
        ([op(1, 0, math.inf), op(None, 2, 3, 2)], False),  # done twice
        ([], True),
    ],
)
def test_histories_of_a_few_calls(history: list[Operation], fits: bool) -> None:
    assert is_linearizable(history, step) == fits


def _in_some_order(history: list[Operation]) -> bool:
    """Try all orders of all subsets that have the finished operations."""
    lost = [one for one in history if one.end == math.inf]
    kept = [one for one in history if one.end < math.inf]
    for count in range(len(lost) + 1):
        for also in itertools.combinations(lost, count):
            for order in itertools.permutations([*kept, *also]):
                if any(b.end < a.begin for a, b in itertools.combinations(order, 2)):
                    continue
                value: Any = None
                for one in order:
                    result, value = step(value, one.asked)
                    if one.end < math.inf and result != one.result:
                        break
                else:
                    return True
    return False


def test_it_finds_an_order_exactly_if_there_is_one() -> None:
    draw, found = random.Random(5), 0
    for _ in range(400):
        history = []
        for _ in range(draw.randint(1, 5)):
            begin = draw.randint(0, 8)
            end = math.inf if draw.random() < 0.15 else begin + draw.randint(1, 6) - 0.5
            history.append(op(draw.choice([None, 1, 2]), begin, end, draw.choice([None, 1, 2, 3])))
        expected = _in_some_order(history)
        assert is_linearizable(history, step) == expected, history
        found += expected
    assert 40 < found < 360


def test_a_long_history_takes_no_long_time() -> None:
    """Eight clients whose calls overlap, 2,000 calls on one key."""
    history = [op(1, number, number + 7.5, number + 1) for number in range(2_000)]
    assert is_linearizable(history, step)
    assert not is_linearizable([*history[:-1], op(1, 1_999, 2_000, 5_000)], step)


def in_process(db: OpenDatabase) -> Call:
    def call(_: str, procedure: str, arguments: dict[str, int]) -> Any:
        return db.call(procedure, **arguments)["now"]

    return call


def by_future(db: OpenDatabase) -> Call:
    def call(_: str, procedure: str, arguments: dict[str, int]) -> Any:
        return db.submit(procedure, **arguments).result(60)["now"]

    return call


def once(client: penstock.DatabaseClient) -> Call:
    def call(id_: str, procedure: str, arguments: dict[str, int]) -> Any:
        return client.call_once(id_, procedure, **arguments)["now"]

    return call


def served(client: penstock.DatabaseClient) -> Call:
    def call(_: str, procedure: str, arguments: dict[str, int]) -> Any:
        return client.call(procedure, **arguments)["now"]

    return call


def test_threads_and_clients_of_the_server_see_one_order(tmp_path: Path) -> None:
    with ExitStack() as stack:
        db = stack.enter_context(counters().open(tmp_path))
        server = stack.enter_context(DatabaseServer(db))
        over = [stack.enter_context(penstock.DatabaseClient(server.uri)) for _ in range(2)]
        calls = [in_process(db), by_future(db), by_future(db), served(over[0]), once(over[1])]
        clients = Clients(calls, seed=1)
        assert until(lambda: len(clients.history) >= CALLS or bool(clients.errors), 120)
        clients.finish()
        assert not clients.errors
        assert keys_that_are_not_linearizable(clients.history, step) == []
        # Another result for one of the calls is found.
        at = next(place for place, one in enumerate(clients.history) if one.asked is not None)
        wrong = clients.history[at]
        clients.history[at] = Operation(wrong.key, wrong.asked, wrong.begin, wrong.end, -1)
        assert keys_that_are_not_linearizable(clients.history, step) == [wrong.key]


class Moving:
    """The open database, which is another one after a replica took over."""

    def __init__(self, db: OpenDatabase) -> None:
        self.now = db

    def call(self, id_: str, procedure: str, arguments: dict[str, int]) -> Any:
        """Ask until there is an answer, always with the same id."""
        row = {"id": [id_], "procedure": [procedure], "arguments": [json.dumps(arguments)]}
        while True:
            asked = self.now
            try:
                (answer,) = asked.answer(pa.table(row)).to_pylist()
            except (FencedError, InvalidUsageError):
                assert until(lambda was=asked: self.now is not was, 60)  # type: ignore[misc]
            else:
                return json.loads(answer["results"])["now"]


def test_clients_see_one_order_across_a_takeover(tmp_path: Path) -> None:
    old = counters().open(tmp_path)
    replica = counters().follow(tmp_path, poll_interval="10ms")
    moving = Moving(old)
    clients = Clients([moving.call] * 4, seed=2)
    for _ in range(2):
        count = len(clients.history)
        assert until(lambda: len(clients.history) >= count + CALLS // 3, 120)  # noqa: B023 - waited for here
        if moving.now is old:
            moving.now = replica.take_over()
    clients.finish()
    moving.now.close()
    assert not clients.errors
    assert keys_that_are_not_linearizable(clients.history, step) == []


def test_without_the_fence_the_check_fails(tmp_path: Path) -> None:
    """The old process goes on to acknowledge, which a broken write-ahead log would do."""
    with counters().open(tmp_path) as unfenced, counters().follow(tmp_path) as replica:
        clients = Clients([in_process(unfenced)] * 2, seed=3, keys=1)
        assert until(lambda: len(clients.history) >= 5, 120)
        assert unfenced._log is not None
        unfenced._log._ahead.append = lambda *_: None  # type: ignore[union-attr, method-assign]
        unfenced._log._writer.append = lambda *_: None  # type: ignore[method-assign]
        new = replica.take_over()
        others = Clients([in_process(new)], seed=4, keys=1)
        assert until(lambda: len(others.history) >= 10, 120)
        for one in (clients, others):
            one.finish()
        assert keys_that_are_not_linearizable([*clients.history, *others.history], step) == [0]
        unfenced.abandon()
        new.close()
