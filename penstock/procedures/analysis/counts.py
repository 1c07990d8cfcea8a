"""The numbers of transactions that ran."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TransactionCounts"]


@dataclass(frozen=True, slots=True)
class TransactionCounts:
    """The numbers of transactions that ran, for `Procedure.explain`.

    Attributes
    ----------
    transactions : int
        The number of all transactions.
    forwarded : int
        The number of transactions that ran on the coordinator, because they needed several buckets.
    """

    transactions: int
    forwarded: int

    def describe(self) -> str:
        """Return the share of forwarded transactions as a text."""
        share = f" ({self.forwarded / self.transactions:.1%})" if self.transactions else ""
        return f"{self.forwarded:,} of {self.transactions:,} transactions{share}"
