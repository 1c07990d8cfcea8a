"""SL: deposits into an account and an asset, and transfers between two such pairs (TStream §VI-A)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.language import abort
from penstock.procedures.programs.packaged import PackagedProgram, events_of, fractions, integers, zipf

__all__ = ["STREAMING_LEDGER"]

OPEN, DEPOSIT, TRANSFER = range(3)
_FIRST_BALANCE = 10_000
_SKEW = 0.6

_sl = database("SL")
_sl.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
_sl.table("assets", "id bigint, amount bigint NOT NULL", key="id")


@_sl.procedure(
    event="kind bigint NOT NULL, source bigint NOT NULL, target bigint NOT NULL, money bigint NOT NULL, "
    "goods bigint NOT NULL"
)
def ledger(e: Any, accounts: Any, assets: Any) -> Any:
    """Deposit money and goods, or transfer both if the source has enough of both."""
    if e.kind == OPEN:
        accounts.insert(id=e.target, balance=e.money)
        assets.insert(id=e.target, amount=e.goods)
        return
    if e.kind == TRANSFER:
        account = accounts[e.source]
        asset = assets[e.source]
        if account.balance < e.money or asset.amount < e.goods:
            abort("short")
        account.balance -= e.money
        asset.amount -= e.goods
    accounts[e.target].balance += e.money
    assets[e.target].amount += e.goods


def _opening(keys: int) -> pa.RecordBatch:
    ids = np.arange(keys)
    return events_of(ledger, [OPEN, ids, ids, _FIRST_BALANCE, _FIRST_BALANCE])


def _workload(count: int, keys: int, seed: int) -> pa.RecordBatch:
    kinds = np.where(fractions(seed, count) < 0.5, DEPOSIT, TRANSFER)
    source, target = (zipf(seed + place, count, keys, _SKEW) for place in (1, 2))
    money, goods = (integers(seed + place, count, 100) for place in (3, 4))
    return events_of(ledger, [kinds, source, target, money, goods])


STREAMING_LEDGER = PackagedProgram(
    "SL", "deposit, or transfer money and goods", _sl, ledger, _opening, _workload
)
"""Half of the transactions are deposits, half are transfers. Keys have a Zipf distribution (exponent 0.6)."""
