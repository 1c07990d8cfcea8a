"""A bank: customers open and close accounts, deposit, withdraw and transfer money."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.language import abort, event
from penstock.procedures.programs.packaged import PackagedProgram, events_of, integers, zipf

__all__ = ["BANK"]

_FIRST_BALANCE = 100
_SKEW = 0.6
_OWNERS = 50
_KINDS = ("transfer", "transfer", "transfer", "deposit", "withdraw", "close", "open", "open")

_bank = database("bank")
_bank.table("accounts", "id bigint, owner string NOT NULL, balance bigint NOT NULL", key="id")
_bank.table("owners", "owner string, accounts bigint NOT NULL", key="owner")


@_bank.procedure
def change(e: Any, accounts: Any) -> Any:
    """Change a balance, which must not become negative."""
    account = accounts[e.id]
    if account.balance + e.amount < 0:
        abort("short")
    account.balance += e.amount
    return account.balance


@_bank.procedure(
    event="kind string NOT NULL, id bigint NOT NULL, target bigint NOT NULL, owner string NOT NULL, "
    "amount bigint NOT NULL",
    returns="balance bigint",
)
def serve(e: Any, accounts: Any, owners: Any) -> Any:
    """Serve a customer; return the balance of the account."""
    if e.kind == "open":
        accounts.insert(id=e.id, owner=e.owner, balance=e.amount)
        if e.owner in owners:
            owners[e.owner].accounts += 1
        else:
            owners.insert(owner=e.owner, accounts=1)
        return e.amount
    if e.kind == "close":
        account = accounts[e.id]
        if account.balance > e.amount:
            abort("not empty")
        owners[account.owner].accounts -= 1
        del accounts[e.id]
        return 0
    if e.kind == "deposit":
        return change(event(id=e.id, amount=e.amount), accounts)
    if e.kind == "transfer":
        if e.id == e.target:
            abort("one account")
        change(event(id=e.target, amount=e.amount), accounts)
    return change(event(id=e.id, amount=-e.amount), accounts)


def _owners(numbers: Any) -> list[str]:
    return [f"owner {number}" for number in numbers.tolist()]


def _opening(keys: int) -> pa.RecordBatch:
    ids = np.arange(keys)
    return events_of(serve, ["open", ids, ids, _owners(ids % _OWNERS), _FIRST_BALANCE])


def _workload(count: int, keys: int, seed: int) -> pa.RecordBatch:
    kinds = [_KINDS[number] for number in integers(seed, count, len(_KINDS)).tolist()]
    source, target = (zipf(seed + place, count, keys, _SKEW) for place in (1, 2))
    owners = _owners(integers(seed + 3, count, _OWNERS))
    return events_of(serve, [kinds, source, target, owners, integers(seed + 4, count, 60)])


BANK = PackagedProgram("bank", "open, close, deposit, withdraw, transfer", _bank, serve, _opening, _workload)
"""Three of eight transactions are transfers. Keys have a Zipf distribution (exponent 0.6)."""
