"""Transactions that lose power with requests in flight, and what has to come out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock import abort
from penstock.checkpointing.p_stream import PStreamReader
from penstock.errors import InvalidUsageError
from penstock.procedures.requests.client import ANSWERS_PLACE
from tests.transactions.merged_log import check_merged_log

__all__ = ["NUMBER", "Requests", "check_transactions", "spend"]

NUMBER = "t"
"""The column of the events that is kept, which numbers them."""

_IN_FLIGHT = 12

ledger = penstock.database("ledger")
ledger.table("accounts", "k bigint, balance bigint NOT NULL", key="k")


@ledger.procedure(event="k bigint, v bigint", returns="balance bigint")
def spend(e: Any, accounts: Any) -> Any:
    """Spend money of an account, which opens itself."""
    if e.k not in accounts:
        accounts.insert(k=e.k, balance=1000)
    accounts[e.k].balance -= e.v
    if accounts[e.k].balance < 0:
        abort("short")
    return accounts[e.k].balance


@ledger.procedure(event="k bigint, v bigint", returns="balance bigint")
def pay(e: Any, accounts: Any) -> Any:
    """Pay into an account."""
    accounts[e.k].balance += e.v
    return accounts[e.k].balance


class Requests:
    """The requests beside the stream, and the answers that a client has seen."""

    def __init__(self, location: Path) -> None:
        self.location = location
        self.calls: dict[str, tuple[str, dict[str, Any]]] = {}
        self._seen: dict[str, dict[str, Any]] = {}

    def send(self, count: int) -> None:
        """Send requests, each of which is durable afterwards."""
        with ledger.connect(self.location) as client:
            for number in range(len(self.calls), len(self.calls) + count):
                name, values = ("pay", "spend")[number % 5 == 0], {"k": number * 31 % 97, "v": number % 700}
                self.calls[str(number)] = name, values
                client.send(str(number), name, **values)

    def keep_in_flight(self) -> None:
        """Send some more, unless as many wait for their answers."""
        self.see()
        if missing := max(_IN_FLIGHT - self.unanswered, 0):
            self.send(missing)

    @property
    def unanswered(self) -> int:
        """The number of requests whose answer was not seen."""
        return len(self.calls) - len(self._seen)

    def see(self) -> None:
        """Look for answers.

        Raises
        ------
        AssertionError
            If a request has two answers, or another one than it had before the power was cut.
        """
        rows = self.answers().to_pylist()
        found = {row["id"]: row for row in rows}
        assert len(found) == len(rows), "a request has two answers"
        assert found.keys() <= self.calls.keys(), "an answer to no request"
        assert found.items() >= self._seen.items(), "an answer is lost, or another one"
        self._seen = found

    def answers(self) -> pa.Table:
        """Return the answers."""
        try:
            return PStreamReader(self.location / ANSWERS_PLACE).read()
        except InvalidUsageError:
            return pa.table({"id": pa.array([], pa.string())})


def check_transactions(made: pa.Table, events: pa.Table, requests: Requests, *, finished: bool) -> None:
    """See that transactions came in their order; once `finished`, that all is as in a serial run.

    Raises
    ------
    AssertionError
        If it is not.
    """
    requests.see()
    assert made[NUMBER].to_pylist() == list(range(made.num_rows)), "transactions are lost, or came twice"
    if finished:
        check_merged_log(spend, events, made, requests.answers(), requests.calls, keep=(NUMBER,))
