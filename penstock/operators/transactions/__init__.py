"""Transactions: tables, and procedures that are compiled to kernels over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazily

if TYPE_CHECKING:
    from penstock.operators.transactions.databases import Database, database
    from penstock.operators.transactions.language import abort, event
    from penstock.operators.transactions.procedure import Procedure

__all__ = ["Database", "Procedure", "abort", "database", "event"]

__getattr__ = lazily(
    __name__,
    {
        "Database": "penstock.operators.transactions.databases",
        "Procedure": "penstock.operators.transactions.procedure",
        "abort": "penstock.operators.transactions.language",
        "database": "penstock.operators.transactions.databases",
        "event": "penstock.operators.transactions.language",
    },
)
