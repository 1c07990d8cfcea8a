"""The kinds of working copies. A working copy holds a loaded bucket in a worker."""

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
    """A kind of working copy. The kind may change at any restart, because files do not depend on it.

    MEMORY
        The whole bucket is in memory.
    ROCKSDB
        Idle rows are on local disk.
    """

    MEMORY = "memory"
    ROCKSDB = "rocksdb"


class TableMaker(Protocol):
    """A function that makes empty tables."""

    def __call__(self, schema: pa.Schema, key: tuple[str, ...], /) -> Table:
        """Return an empty table."""


def table_maker(copy: WorkingCopy, scratch: Path | None = None) -> TableMaker | None:
    """Return the function that makes tables for rows outside of memory; None if all rows are in memory.

    Parameters
    ----------
    scratch : pathlib.Path, optional
        The parent of tables' private directories; by default the system's temporary directory.
    """
    if copy is WorkingCopy.MEMORY:
        return None
    from penstock.state_store.tables.rocksdb_table import RocksdbTable

    return functools.partial(RocksdbTable, scratch=scratch)
