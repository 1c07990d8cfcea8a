"""The interface of a table that takes upserts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError

__all__ = ["Columns", "UpsertTarget"]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table and their roles.

    Parameters
    ----------
    schema : pyarrow.Schema
        The names and types of all columns.
    key : tuple of str
        The columns that identify a row.
    time : str
        The column that orders the versions of a row: the greatest value is the newest.
    deletes : bool
        Whether rows can be deleted. If so, the store remembers when a key was deleted, so that an older
        update does not bring the key back.
    forget_after : datetime.timedelta or int, optional
        The age at which the store forgets a deletion. If the column `time` holds numbers, the age is a number
        in the same unit.

    Raises
    ------
    InvalidUsageError
        If a column is unknown, if the type of the column `time` has no order, or if `forget_after` does not
        fit that type.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    time: str
    deletes: bool = False
    forget_after: timedelta | int | None = None

    def __post_init__(self) -> None:
        for name in (*self.key, self.time):
            if name not in self.schema.names:
                raise InvalidUsageError(
                    "an upsert names an unknown column", column=name, known=", ".join(self.schema.names)
                )
        if not self.key or self.time in self.key:
            raise InvalidUsageError(
                "an upsert needs a key, and a time that is not part of the key", key=self.key
            )
        kind = self.schema.field(self.time).type
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_timestamp(kind)
            or pa.types.is_date(kind)
        ):
            raise InvalidUsageError(
                "the time of an upsert is neither a number nor a timestamp", column=self.time, type=kind
            )

        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if self.forget_after is not None and is_number is isinstance(self.forget_after, timedelta):
            raise InvalidUsageError(
                "the age of deletions to forget does not fit the type of the time",
                column=self.time,
                type=kind,
                hint="write a number, in the unit of the time" if is_number else "write it as '30 days'",
            )

    def oldest_deletion(self, changes: pa.Table) -> Any:
        """Return the time before which the store forgets deletions after a batch; None if it forgets none."""
        if self.forget_after is None or not self.deletes:
            return None
        return pc.max(changes[self.time]).as_py() - self.forget_after

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self.schema.names)


class UpsertTarget(ABC):
    """A table of one store. Call `prepare` once, then `write` for each batch; `close` at any time.

    If the store has transactions, a batch is written as a whole or not at all. Each row replaces the stored
    row of its key unless the stored row is newer. For equal times the later call wins. So it is harmless to
    write a batch again, or to write an older batch.

    After an error for which `is_transient` returns True, the caller calls `close` and `write` again.
    """

    name: str
    """The names of the store and the table for messages, without secrets."""
    transient: tuple[type[Exception], ...]
    """The classes of errors that a store raises while it is unavailable."""

    def is_transient(self, error: Exception) -> bool:
        """Return whether the caller should retry, because the store is only temporarily unavailable."""
        return isinstance(error, self.transient)

    def describe(self, error: Exception) -> str:
        """Return an error's first line. It may hold secrets, which the caller hides."""
        return str(error).strip().partition("\n")[0]

    @abstractmethod
    def prepare(self, *, create: bool) -> None:
        """Check that the table has the columns and the key; with `create`, create a missing table.

        Raises
        ------
        InvalidUsageError
            If the table is missing or does not fit.
        """

    @abstractmethod
    def write(self, changes: pa.Table) -> None:
        """Write a batch.

        Parameters
        ----------
        changes : pyarrow.Table
            One row for each key, with all columns, and the column `DELETED` if rows can be deleted.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection; a later call opens a new connection."""
