"""Transactions: tables, and procedures that are compiled to kernels over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazily

if TYPE_CHECKING:
    from penstock.procedures.databases import Database, database
    from penstock.procedures.language import abort, event, execute
    from penstock.procedures.procedure import Procedure
    from penstock.procedures.workflows.workflow import Workflow

__all__ = ["Database", "Procedure", "Workflow", "abort", "database", "event", "execute"]

__getattr__ = lazily(
    __name__,
    {
        "Database": "penstock.procedures.databases",
        "Procedure": "penstock.procedures.procedure",
        "Workflow": "penstock.procedures.workflows.workflow",
        "abort": "penstock.procedures.language",
        "database": "penstock.procedures.databases",
        "event": "penstock.procedures.language",
        "execute": "penstock.procedures.language",
    },
)
