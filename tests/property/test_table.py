"""Both working copies of a table equal a dictionary, and each opens what the other wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.checkpointing import PUnit, decode, encode
from penstock.state_store.keys import key_index
from penstock.state_store.tables import memory_table, rocksdb_table, row_store
from penstock.state_store.tables.memory_table import MemoryTable
from penstock.state_store.tables.rocksdb_table import RocksdbTable
from penstock.state_store.tables.table import Table, portions
from tests.columns import KINDS
from tests.naive import last_of_each

Model = dict[tuple[Any, ...], dict[str, Any]]

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


def _canonical(value: Any) -> Any:
    """Return a key's value as tables see it."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


class Tables(RuleBasedStateMachine):
    """Two tables do the same; two more follow them by deltas, each of the other kind."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.tables: list[Table] = []
        self.followers: list[Table] = []
        self.closing: list[Table] = []
        self.model: Model = {}
        self.stored: Model = {}

    @initialize(name=st.sampled_from(list(TABLES)), small=st.booleans(), forgets=st.booleans())
    def open(self, name: str, small: bool, forgets: bool) -> None:
        columns, self.key = TABLES[name]
        self.schema = pa.schema([pa.field(n, kind) for n, kind in columns])
        if small:  # so that everything happens with a few rows
            for module in (memory_table, rocksdb_table):
                self.patch.setattr(module, "UNIT_ROWS", 3)
                self.patch.setattr(module, "BATCH_BYTES", 50)
            self.patch.setattr(rocksdb_table, "_CHUNK", 2)
            self.patch.setattr(rocksdb_table, "_CHANGES_BYTES", 3000)
            self.patch.setattr(memory_table, "_LEAST_DEAD", 1)
            self.patch.setattr(row_store, "_LEAST_GARBAGE_BYTES", 10)
            self.patch.setattr(key_index, "_LEAST", 1)
        if forgets:  # so that the database is asked which keys there are
            self.patch.setattr(rocksdb_table, "_KEY_SET_BYTES", 0)
        self.tables = [self.new("memory"), self.new("rocksdb")]
        self.followers = [self.new("rocksdb"), self.new("memory")]

    def new(self, kind: str) -> Table:
        make: Any = MemoryTable if kind == "memory" else RocksdbTable
        table: Table = make(self.schema, self.key)
        self.closing.append(table)
        return table

    def rows(self, data: st.DataObject, names: list[str]) -> pa.RecordBatch:
        count = data.draw(st.integers(0, 8), "rows")
        arrays = []
        for name in names:
            kind = self.schema.field(name).type
            values = _KEYS[kind] if name in self.key else st.none() | KINDS[kind]
            drawn = data.draw(st.lists(values, min_size=count, max_size=count), name)
            arrays.append(pa.array(drawn, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(n) for n in names]))

    def keys_of(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        columns = [batch.column(name).to_pylist() for name in self.key]
        return [tuple(map(_canonical, key)) for key in zip(*columns, strict=True)]

    def content(self, batches: Iterator[pa.RecordBatch]) -> Model:
        model: Model = {}
        for batch in batches:
            batch.validate(full=True)
            assert batch.schema.equals(self.schema)
            keys = self.keys_of(batch)
            assert not set(keys) & set(model)
            model |= zip(keys, self.values(batch), strict=True)
        return model

    def values(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        names = [name for name in self.schema.names if name not in self.key]
        columns = [batch.column(name).to_pylist() for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] or [
            {}
        ] * batch.num_rows

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        rows = self.rows(data, self.schema.names)
        for table in self.tables:
            table.put(rows)
        self.model |= zip(self.keys_of(rows), self.values(rows), strict=True)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        keys = self.rows(data, list(self.key))
        gone = {key for key in self.keys_of(keys) if self.model.pop(key, None) is not None}
        assert [table.delete(keys) for table in self.tables] == [len(gone)] * 2

    @rule()
    def delete_all(self) -> None:
        for table in self.tables:
            for batch in list(table.scan()):
                assert table.delete(batch) == batch.num_rows
        self.model = {}

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        keys = self.rows(data, list(self.key))
        wanted = self.keys_of(keys)
        nothing = {name: None for name in self.schema.names if name not in self.key}
        for table in self.tables:
            rows, found = table.get(keys)
            rows.validate(full=True)
            assert found.tolist() == [key in self.model for key in wanted]
            assert rows.num_rows == len(wanted)
            assert self.values(rows) == [self.model.get(key, nothing) for key in wanted]

    @rule()
    def scan(self) -> None:
        for table in self.tables:
            assert self.content(table.scan()) == self.model

    @rule()
    def follow(self) -> None:
        for table, follower in zip(self.tables, self.followers, strict=True):
            unit = table.delta()
            assert unit.kind == "delta"
            upserts = self.content(iter([unit.blocks["upserts"].select(self.schema.names)]))
            tombstones = set(self.keys_of(unit.blocks["tombstones"]))
            assert len(tombstones) == unit.blocks["tombstones"].num_rows
            assert not tombstones & set(self.model)
            assert set(self.stored) - set(self.model) <= tombstones
            changed = {key: row for key, row in self.model.items() if self.stored.get(key) != row}
            assert changed.items() <= upserts.items() <= self.model.items()
            follower.restore([_through_bytes(unit)])
            assert self.content(follower.scan()) == self.model
            assert not any(block.num_rows for block in table.delta().blocks.values())
            assert not any(block.num_rows for block in follower.delta().blocks.values())
        self.stored = dict(self.model)

    @rule(data=st.data())
    def snapshot_while_changing(self, data: st.DataObject) -> None:
        taken = [table.snapshot() for table in self.tables]
        self.stored = then = dict(self.model)
        begun = [next(units) for units in taken]
        self.put(data)
        self.delete(data)
        for kind, table, first, units in zip(("rocksdb", "memory"), self.tables, begun, taken, strict=True):
            if data.draw(st.booleans()):
                table.delta()  # rebuilds and compacts
                self.stored = {}
            other = self.new(kind)
            other.restore(map(_through_bytes, (first, *units)))
            assert self.content(other.scan()) == then
            other.close()
        self.reload(data)

    @rule(data=st.data())
    def reload(self, data: st.DataObject) -> None:
        """All tables are loaded from snapshots; what they held before does not matter."""
        units = [[_through_bytes(unit) for unit in table.snapshot()] for table in self.tables]
        for source, table in zip(data.draw(st.permutations(units)), self.followers, strict=True):
            table.restore(source)
        self.tables, self.followers = self.followers[::-1], self.tables[::-1]
        for source, table in zip(units, self.followers, strict=True):
            table.restore(iter(source))
        self.stored = dict(self.model)

    @precondition(lambda self: self.tables)
    @invariant()
    def lengths_agree(self) -> None:
        assert [len(table) for table in self.tables] == [len(self.model)] * 2

    def teardown(self) -> None:
        for table in self.closing:
            table.close()
            table.close()
        self.patch.undo()


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=max(settings().max_examples // 3, 5), stateful_step_count=20)


def _through_bytes(unit: PUnit) -> PUnit:
    return decode(encode(unit), "memory")


@given(st.lists(st.integers(0, 9), max_size=40))
def test_the_last_of_each_number_is_marked(numbers: list[int]) -> None:
    keep = np.empty(len(numbers), np.bool_)
    seen = np.full(128, -1, np.int64)
    count = memory_table._mark_last(np.array(numbers, np.int64), seen, keep)
    assert keep.tolist() == last_of_each(numbers)
    assert count == len(set(numbers))


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20), st.integers(1, 5))
def test_portions_hold_as_much_as_they_may(sizes: list[int], most_bytes: int, most_rows: int) -> None:
    cuts = list(portions(np.array(sizes, np.int64), most_bytes, most_rows))
    assert [i for cut in cuts for i in range(cut.start, cut.stop)] == list(range(len(sizes)))
    for cut in cuts:
        size = sum(sizes[cut])
        assert size <= most_bytes or cut.stop - cut.start == 1
        if cut.stop < len(sizes) and cut.stop - cut.start < most_rows:
            assert size + sizes[cut.stop] > most_bytes
