"""The newest row of each key as the state of a bucket, for `state_in_spark`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.state_store.keys.key_index import KeyIndex, grow
from penstock.state_store.tables.row_store import RowStore
from penstock.state_store.tables.table import Layout

__all__ = ["KeyedState"]


class KeyedState:
    """Rows by key, in memory; nothing is ever deleted."""

    def __init__(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._layout = Layout(schema, key)
        self._index = KeyIndex()
        self._rows = RowStore(self._layout.value_schema)
        self._changed = np.zeros(0, np.bool_)

    @property
    def size_bytes(self) -> int:
        """Return the memory of the state in bytes."""
        return self._index.size_bytes + self._rows.size_bytes + self._changed.nbytes

    def put(self, rows: pa.RecordBatch) -> None:
        """Insert or replace rows, whose keys differ."""
        numbers = self._index.find_or_add(self._layout.keys_of(rows))
        if len(self._index) > len(self._changed):
            self._changed = grow(self._changed, len(self._index))
            self._rows.resize(len(self._changed))
        self._changed[numbers] = True
        self._rows.put(numbers, self._layout.values_of(rows))
        if self._rows.may_compact:
            self._rows.compact(np.arange(len(self._index)))

    def delta(self) -> PUnit:
        """Return the rows that changed since the last call."""
        unit = self._unit("delta", np.flatnonzero(self._changed[: len(self._index)]), self._rows)
        self._changed[:] = False
        return unit

    def snapshot(self) -> Iterator[PUnit]:
        """Return all rows."""
        return iter([self._unit("snapshot", np.arange(len(self._index)), self._rows.copy())])

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply units in their order."""
        for unit in units:
            self.put(unit.blocks["rows"])
        self._changed[:] = False

    def close(self) -> None:
        """Do nothing: there is only memory."""

    def _unit(self, kind: str, numbers: npt.NDArray[np.int64], rows: RowStore) -> PUnit:
        keys = self._layout.codec.decode(self._index.words, self._index.starts(numbers))
        columns = [*keys, *rows.take(numbers).columns]
        return PUnit(kind, {}, {"rows": pa.RecordBatch.from_arrays(columns, schema=self._layout.row_schema)})
