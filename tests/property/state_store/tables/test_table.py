"""A table on local disk equals a dictionary."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.state_store.tables.rocksdb_table import RocksdbTable
from penstock.state_store.tables.table import Table
from tests.checkpoints.tables import DictTable
from tests.samples.columns import KINDS

SCRATCH = next((path for path in [Path("/dev/shm")] if path.is_dir()), None)
"""A directory in memory, if there is one, so that RocksDB does not wait for a disk."""

_KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([0, 1, 2, -1, 255, 256, -(1 << 63), (1 << 63) - 1]),
    pa.int8(): st.integers(-3, 3),
    pa.string(): st.sampled_from(["", "a", "b", "aa", "a\0", "12345678", "123456789", "zürich"]),
    pa.binary(): st.sampled_from([b"", b"\0", b"\0\0", b"\xff", b"abcdefgh"]),
    pa.decimal128(7, 2): st.sampled_from([Decimal("0.00"), Decimal("-1.50"), Decimal("99999.99")]),
    pa.date32(): st.sampled_from([date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, -math.nan]),
    pa.bool_(): st.booleans(),
}
_LIST, _MAP = pa.list_(pa.int64()), pa.map_(pa.string(), pa.list_(pa.int8()))
_PAIR = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])

# Name: the columns in their order, and the key.
TABLES: dict[str, tuple[list[tuple[str, pa.DataType]], tuple[str, ...]]] = {
    "integer": ([("k", pa.int64()), ("v", pa.float64()), ("t", pa.string())], ("k",)),
    "string": ([("v", _LIST), ("k", pa.string()), ("w", _PAIR)], ("k",)),
    "composite": (
        [
            ("v", pa.bool_()),
            ("d", pa.decimal128(7, 2)),
            ("s", pa.string()),
            ("w", pa.binary()),
            ("day", pa.date32()),
            ("x", pa.decimal128(38, 0)),
        ],
        ("d", "s", "day"),
    ),
    "fixed composite": (
        [("f", pa.float64()), ("b", pa.int8()), ("v", pa.timestamp("us", "UTC"))],
        ("b", "f"),
    ),
    "float": ([("k", pa.float64()), ("v", _MAP), ("n", pa.null())], ("k",)),
    "no values": ([("k", pa.binary()), ("b", pa.bool_())], ("k", "b")),
}


class Tables(RuleBasedStateMachine):
    """A table does what a dictionary does."""

    table: Table | None = None
    model: DictTable

    @initialize(name=st.sampled_from(list(TABLES)), small=st.booleans(), forgets=st.booleans())
    def open(self, name: str, small: bool, forgets: bool) -> None:
        columns, self.key = TABLES[name]
        self.schema = pa.schema([pa.field(n, kind) for n, kind in columns])
        limits: dict[str, Any] = {"batch_bytes": 50} if small else {}
        if forgets:  # so that the database is asked which keys there are
            limits["key_set_bytes"] = 0
        self.table = RocksdbTable(self.schema, self.key, scratch=SCRATCH, **limits)
        self.model = DictTable(self.schema, self.key)

    @property
    def opened(self) -> Table:
        assert self.table is not None
        return self.table

    def rows(self, data: st.DataObject, names: list[str]) -> pa.RecordBatch:
        count = data.draw(st.integers(0, 8), "rows")
        arrays = []
        for name in names:
            kind = self.schema.field(name).type
            values = _KEYS[kind] if name in self.key else st.none() | KINDS[kind]
            drawn = data.draw(st.lists(values, min_size=count, max_size=count), name)
            arrays.append(pa.array(drawn, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(n) for n in names]))

    def content(self, batches: Iterator[pa.RecordBatch]) -> dict[Any, Any]:
        found = DictTable(self.schema, self.key)
        rows = 0
        for batch in batches:
            batch.validate(full=True)
            found.put(batch)
            rows += batch.num_rows
        assert len(found) == rows, "each key once"
        return {key: self._values(row) for key, row in found.content.items()}

    def _values(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in self.key}

    def _model(self) -> dict[Any, Any]:
        return {key: self._values(row) for key, row in self.model.content.items()}

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        rows = self.rows(data, self.schema.names)
        self.opened.put(rows)
        self.model.put(rows)

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        keys = self.rows(data, list(self.key))
        (rows, found), (wanted, there) = self.opened.get(keys), self.model.get(keys)
        rows.validate(full=True)
        assert found.tolist() == there.tolist()
        assert rows.num_rows == keys.num_rows
        assert rows.to_pylist() == wanted.to_pylist()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        keys = self.rows(data, list(self.key))
        assert self.opened.remove(keys) == self.model.remove(keys)

    @rule()
    def scan(self) -> None:
        assert self.content(self.opened.rows()) == self._model()

    @rule(data=st.data())
    def scan_while_changing(self, data: st.DataObject) -> None:
        taken, then = self.opened.rows(), self._model()
        begun = next(taken)
        self.put(data)
        assert self.content(itertools.chain([begun], taken)) == then

    @precondition(lambda self: self.table is not None)
    @invariant()
    def lengths_agree(self) -> None:
        assert len(self.opened) == len(self.model)

    def teardown(self) -> None:
        if self.table is not None:
            self.table.close()
            self.table.close()


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=max(settings().max_examples // 3, 5), stateful_step_count=20)
