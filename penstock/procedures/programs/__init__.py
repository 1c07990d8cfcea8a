"""Packaged programs of transactions: for examples, tests and benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazily

if TYPE_CHECKING:
    from penstock.procedures.programs.catalog import PROGRAMS
    from penstock.procedures.programs.packaged import PackagedProgram

__all__ = ["PROGRAMS", "PackagedProgram"]

__getattr__ = lazily(
    __name__,
    {
        "PROGRAMS": "penstock.procedures.programs.catalog",
        "PackagedProgram": "penstock.procedures.programs.packaged",
    },
)
