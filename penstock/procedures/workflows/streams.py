"""Streams between the procedures of a workflow (S-Store §3.2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ddl import parse_schema, schema_text
from penstock.errors import InvalidUsageError
from penstock.procedures.schema import Column, columns_of

__all__ = ["StreamRows", "StreamSpec"]

_FIRST_ROWS = 1 << 6


@dataclass(frozen=True)
class StreamSpec:
    """A stream as it is declared: what a procedure emits into it is the event of the next one.

    Parameters
    ----------
    name : str
        Its name, an identifier of Python.
    columns : tuple of Column
        Its columns.
    """

    name: str
    columns: tuple[Column, ...]

    @staticmethod
    def of(name: str, ddl: str) -> StreamSpec:
        """Return a stream as a user declares it.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable.
        """
        columns = columns_of(parse_schema(ddl), of=name, lists=False)
        if not columns:
            raise InvalidUsageError("a stream has no columns", stream=name)
        return StreamSpec(name, columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.name for one in self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return pa.schema([pa.field(one.name, one.type, one.nullable) for one in self.columns])

    def to_json(self) -> dict[str, Any]:
        """Return its declaration, for digests."""
        return {"name": self.name, "columns": schema_text(self.schema)}


class StreamRows:
    """The rows of a stream in memory, in the order in which they were emitted.

    A kernel empties it at the end of each round, once all procedures of the workflow have taken what is for
    them, so that no version has rows of a stream.

    Parameters
    ----------
    spec : StreamSpec
        The stream.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._size = _FIRST_ROWS
        self.arrays: list[npt.NDArray[Any]] = []
        """The arrays in the order in which kernels take them."""
        self._make()

    @property
    def size_bytes(self) -> int:
        """The memory of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def double(self) -> None:
        """Make room for more rows of one round; those that there are get lost."""
        self._size *= 2
        self._make()

    def _make(self) -> None:
        self.arrays = []
        for column in self._spec.columns:
            self.arrays.append(np.zeros(self._size, column.dtype))
            if column.nullable:
                self.arrays.append(np.zeros(self._size, np.bool_))
