"""A table that is a dictionary: the oracle of `penstock.state_store.tables`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state_store.tables.table import Found

__all__ = ["DictTable"]

Key = tuple[Any, ...]


class DictTable:
    """Rows by key, as Python's values."""

    def __init__(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self.schema, self.key = schema, key
        self.values = pa.schema([field for field in schema if field.name not in key])
        self.content: dict[Key, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self.content)

    @property
    def size_bytes(self) -> int:
        return 100 * len(self)

    def keys_of(self, rows: pa.RecordBatch) -> list[Key]:
        columns = [rows.column(name).to_pylist() for name in self.key]
        return [tuple(map(_canonical, key)) for key in zip(*columns, strict=True)]

    def get(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Found]:
        found = [self.content.get(key) for key in self.keys_of(keys)]
        rows = [{name: row and row[name] for name in self.values.names} for row in found]
        if not self.values.names:
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
            return batch, np.array([row is not None for row in found], np.bool_)
        fields = pa.schema([field.with_nullable(True) for field in self.values])
        return pa.RecordBatch.from_pylist(rows, fields), np.array(
            [row is not None for row in found], np.bool_
        )

    def put(self, rows: pa.RecordBatch) -> None:
        self.content |= zip(self.keys_of(rows), rows.to_pylist(), strict=True)

    def remove(self, keys: pa.RecordBatch) -> int:
        there = set(self.keys_of(keys)) & self.content.keys()
        for key in there:
            del self.content[key]
        return len(there)

    def rows(self) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([*(self.schema.field(name) for name in self.key), *self.values])
        return iter([pa.RecordBatch.from_pylist(list(self.content.values()), schema)])

    def close(self) -> None:
        self.content = {}


def _canonical(value: Any) -> Any:
    """Return a key's value as tables see it."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value
