"""Packaged OLTP benchmarks: tables, requests, and conditions that always hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazily

if TYPE_CHECKING:
    from penstock.procedures.programs.oltp.benchmark import OltpBenchmark
    from penstock.procedures.programs.oltp.catalog import OLTP

__all__ = ["OLTP", "OltpBenchmark"]

__getattr__ = lazily(
    __name__,
    {
        "OLTP": "penstock.procedures.programs.oltp.catalog",
        "OltpBenchmark": "penstock.procedures.programs.oltp.benchmark",
    },
)
