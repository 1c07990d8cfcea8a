"""SmallBank: customers with a savings and a checking account (H-Store, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.language import abort
from penstock.procedures.programs.oltp.benchmark import Draws, OltpBenchmark, decimals, table_of
from penstock.procedures.programs.packaged import events_of

__all__ = ["KINDS", "SMALL_BANK", "SmallBankScale"]

KINDS = AMALGAMATE, BALANCE, DEPOSIT_CHECKING, SEND_PAYMENT, TRANSACT_SAVINGS, WRITE_CHECK = range(6)
_SHARES = np.repeat(KINDS, [15, 15, 15, 25, 15, 15])
_HOT_SHARE = 0.9
_PENALTY = 1

_bank = database("small_bank")
_bank.table("accounts", "id bigint, name string NOT NULL", key="id", partition_by="id")
_bank.table("savings", "id bigint, balance decimal(14, 2) NOT NULL", key="id", partition_by="id")
_bank.table("checking", "id bigint, balance decimal(14, 2) NOT NULL", key="id", partition_by="id")


@_bank.procedure(
    event="kind bigint NOT NULL, id bigint NOT NULL, target bigint NOT NULL, amount decimal(14, 2) NOT NULL",
    returns="balance decimal(14, 2)",
)
def transact(e: Any, accounts: Any, savings: Any, checking: Any) -> Any:
    """Run a transaction of the kind ``e.kind``; return the balance of the customer ``e.id``."""
    if e.id not in accounts:
        abort("unknown customer")
    mine = checking[e.id]
    if e.kind == BALANCE:
        return savings[e.id].balance + mine.balance
    if e.kind == DEPOSIT_CHECKING:
        mine.balance += e.amount
        return mine.balance
    if e.kind == TRANSACT_SAVINGS:
        saved = savings[e.id]
        if saved.balance < e.amount:
            abort("short")
        saved.balance -= e.amount
        return saved.balance
    if e.kind == WRITE_CHECK:
        if savings[e.id].balance + mine.balance < e.amount:
            mine.balance -= e.amount + _PENALTY
        else:
            mine.balance -= e.amount
        return mine.balance
    if e.target not in accounts:
        abort("unknown customer")
    if e.id == e.target:
        abort("one customer")
    if e.kind == SEND_PAYMENT:
        if mine.balance < e.amount:
            abort("short")
        mine.balance -= e.amount
        checking[e.target].balance += e.amount
        return mine.balance
    total = savings[e.id].balance + mine.balance
    savings[e.id].balance = 0
    mine.balance = 0
    checking[e.target].balance += total
    return mine.balance


@dataclass(frozen=True)
class SmallBankScale:
    """The size of SmallBank's database.

    Parameters
    ----------
    customers : int
        The number of customers.
    hot : int
        The number of customers that get 90 per cent of the requests.
    """

    customers: int = 1_000_000
    hot: int = 100


def _first_rows(scale: SmallBankScale) -> dict[str, pa.Table]:
    draws = Draws(1)
    ids = np.arange(scale.customers)
    names = pa.array([f"{number:064d}" for number in ids.tolist()])
    balances = [decimals(draws.integers(scale.customers, 10_000_00, 50_000_00), 14, 2) for _ in range(2)]
    return {
        "accounts": table_of(_bank, "accounts", {"id": ids, "name": names}),
        "savings": table_of(_bank, "savings", {"id": ids, "balance": balances[0]}),
        "checking": table_of(_bank, "checking", {"id": ids, "balance": balances[1]}),
    }


def _requests(scale: SmallBankScale, count: int, seed: int) -> pa.RecordBatch:
    draws = Draws(seed + 1)
    kinds = _SHARES[draws.integers(count, 0, len(_SHARES) - 1)]
    stop = np.where(draws.fractions(count) < _HOT_SHARE, scale.hot, scale.customers)
    source, target = ((draws.fractions(count) * stop).astype(np.int64) for _ in range(2))
    amounts = decimals(draws.integers(count, 1_00, 50_00), 14, 2)
    return events_of(transact, [kinds, source, target, amounts])


SMALL_BANK = OltpBenchmark(
    "small_bank",
    "amalgamate, balance, deposit, send payment, savings, write check",
    _bank,
    transact,
    SmallBankScale(),
    SmallBankScale(customers=60, hot=6),
    _first_rows,
    _requests,
    {
        "a customer has both accounts": """
            SELECT * FROM accounts FULL JOIN savings USING (id) FULL JOIN checking USING (id)
            WHERE name IS NULL OR savings.balance IS NULL OR checking.balance IS NULL""",
        "savings are not negative": "SELECT * FROM savings WHERE balance < 0",
    },
)
"""SmallBank: a quarter of the transactions send payments; 90 per cent of all are for a few customers."""
