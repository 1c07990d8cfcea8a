"""Kinds of working copies: where a worker holds a loaded bucket."""

from __future__ import annotations

import functools
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from penstock.state_store.tables.table import Table

__all__ = ["TableMaker", "WorkingCopy", "table_maker"]


class WorkingCopy(StrEnum):
    """A kind of working copy. Files do not depend on it, and it may change at any restart.

    MEMORY
        All of it in memory.
    ROCKSDB
        What nothing has to be done with on local disk.
    """

    MEMORY = "memory"
    ROCKSDB = "rocksdb"


class TableMaker(Protocol):
    """Makes tables."""

    def __call__(self, schema: pa.Schema, key: tuple[str, ...], /) -> Table:
        """Return an empty table."""


def table_maker(copy: WorkingCopy, scratch: Path | None = None) -> TableMaker | None:
    """Return what makes the table of what is not in memory; None if all of it is.

    Parameters
    ----------
    scratch : pathlib.Path, optional
        Where tables make their private directories; the system's temporary one by default.
    """
    if copy is WorkingCopy.MEMORY:
        return None
    from penstock.state_store.tables.rocksdb_table import RocksdbTable

    return functools.partial(RocksdbTable, scratch=scratch)
