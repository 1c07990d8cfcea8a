"""The queries of recorded transactions, and their names."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Query", "QueryName"]


class QueryName(NamedTuple):
    """The name of a query in models.

    Attributes
    ----------
    verb : str
        ``read``, ``write``, ``insert``, ``delete`` or ``select``.
    table : str
        The table's name.
    columns : tuple of str
        For a look-up by an index, the columns of the index whose values the query gives.
    """

    verb: str
    table: str
    columns: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether the query changes rows."""
        return self.verb not in ("read", "select")

    def __str__(self) -> str:
        """Return the name as text for people."""
        return f"{self.verb} {self.table}" + (f" by {', '.join(self.columns)}" if self.columns else "")


class Query(NamedTuple):
    """A query of a transaction.

    Attributes
    ----------
    name : int
        The position of the query's name.
    partitions : int
        A bit for each partition that the query accesses.
    """

    name: int
    partitions: int
