"""Tables at their edges: nothing, everything deleted, strange keys, huge values, wrong columns, bad units."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.checkpointing import PUnit
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError, UnavailableError
from penstock.state_store.tables import rocksdb_table
from penstock.state_store.tables.memory_table import MemoryTable
from penstock.state_store.tables.rocksdb_table import RocksdbTable
from penstock.state_store.tables.table import Layout, Table

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.float64())])
New = Callable[..., Table]


@pytest.fixture(params=["memory", "rocksdb"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[New]:
    tables: list[Table] = []

    def make(schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("k",)) -> Table:
        table: Table
        if request.param == "memory":
            table = MemoryTable(schema, key)
        else:
            table = RocksdbTable(schema, key, scratch=tmp_path)
        tables.append(table)
        return table

    yield make
    for table in tables:
        table.close()


def _rows(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _numbered(numbers: range, text: str = "") -> pa.RecordBatch:
    return _rows(*[(i, f"{text}{i}", i / 2) for i in numbers])


def _content(table: Table) -> dict[Any, Any]:
    return {row["k"]: row["t"] for batch in table.scan() for row in batch.to_pylist()}


def test_empty_batches_change_nothing(new: New) -> None:
    table, nothing = new(), _rows()
    table.put(nothing)
    assert table.delete(nothing) == 0
    rows, found = table.get(nothing)
    assert (rows.num_rows, len(found), len(table)) == (0, 0, 0)
    assert list(table.scan()) == []
    unit = table.delta()
    assert (unit.kind, unit.meta) == ("delta", {"rows": 0})
    assert [block.num_rows for block in unit.blocks.values()] == [0, 0]


def test_the_snapshot_of_an_empty_table_restores_it(new: New) -> None:
    (unit,) = new().snapshot()
    assert (unit.kind, unit.meta) == ("snapshot", {"rows": 0, "part": 0, "total": 0})
    table = new()
    table.put(_numbered(range(5)))
    table.restore([unit])
    assert (len(table), _content(table)) == (0, {})


def test_a_key_that_is_not_there_has_null_values(new: New) -> None:
    table = new()
    rows, found = table.get(_numbered(range(2)))
    assert rows.to_pylist() == [{"t": None, "n": None}] * 2
    table.put(_rows((7, "x", 1.0), (1, None, None)))
    rows, found = table.get(_rows((0, "", 0.0), (7, "", 0.0), (1, "", 0.0), (7, "", 0.0)).select(["k"]))
    assert found.tolist() == [False, True, True, True]
    assert rows.column("t").to_pylist() == [None, "x", None, "x"]
    assert rows.schema.names == ["t", "n"]


def test_a_table_whose_rows_are_all_deleted_is_empty_and_can_be_filled_again(new: New) -> None:
    table, follower = new(), new()
    for round_ in range(3):
        rows = _numbered(range(5000), f"{round_}/")
        table.put(rows)
        follower.restore([table.delta()])
        assert table.delete(rows) == len(rows)
        assert table.delete(rows) == 0
        assert (len(table), list(table.scan())) == (0, [])
        follower.restore([table.delta()])
        assert (len(follower), list(follower.scan())) == (0, [])
        assert not table.get(rows)[1].any()


def test_memory_of_deleted_keys_comes_back() -> None:
    table = MemoryTable(SCHEMA, ("k",))
    for begin in range(0, 200_000, 10_000):
        table.put(_numbered(range(begin, begin + 10_000), "x" * 20))
        table.delete(_numbered(range(begin, begin + 9_990)))
        table.delta()
    assert len(table) == 200
    assert table.size_bytes < 10_000 * 200
    assert _content(table)[199_999] == "x" * 20 + "199999"


def test_rows_that_keep_changing_take_no_more_memory() -> None:
    table = MemoryTable(SCHEMA, ("k",))
    for i in range(60):
        table.put(_numbered(range(1000), "x" * (100 + i)))
        table.delta()
    assert table.size_bytes < 1000 * 200 * 4 + 200_000


def test_zeros_are_one_key_and_so_are_nans(new: New) -> None:
    schema = pa.schema([("k", pa.float64()), ("t", pa.string())])
    table = new(schema)
    table.put(_rows((0.0, "a"), (-0.0, "b"), (math.nan, "c"), (-math.nan, "d"), (1.0, "e"), schema=schema))
    assert len(table) == 3
    rows, found = table.get(_rows((-0.0, ""), (math.nan, ""), (0.0, ""), schema=schema))
    assert found.all()
    assert rows.column("t").to_pylist() == ["b", "d", "b"]
    keys = sorted(map(str, (row["k"] for batch in table.scan() for row in batch.to_pylist())))
    assert keys == ["0.0", "1.0", "nan"]
    assert table.delete(_rows((-0.0, ""), (0.0, ""), schema=schema)) == 1


def test_huge_values_come_back_and_make_batches_of_their_own(new: New) -> None:
    table = new()
    texts = {i: chr(97 + i) * (9 << 20) for i in range(5)}
    table.put(_rows(*[(i, text, 0.0) for i, text in texts.items()]))
    table.put(_rows((9, "small", 0.0)))
    other = new()
    other.restore(table.snapshot())
    for copy in (table, other):
        batches = list(copy.scan())
        assert all(batch.nbytes < 150 << 20 for batch in batches)
        assert {r["k"]: r["t"] for batch in batches for r in batch.to_pylist()} == texts | {9: "small"}


def test_snapshots_come_in_units_of_bounded_bytes() -> None:
    table = MemoryTable(SCHEMA, ("k",))
    table.put(_rows(*[(i, "x" * (1 << 20), 0.0) for i in range(150)]))
    units = list(table.snapshot())
    assert [unit.meta["part"] for unit in units] == [0, 1, 2]
    assert max(unit.blocks["upserts"].nbytes for unit in units) < 65 << 20


def test_a_snapshot_may_be_written_while_the_table_changes_and_is_closed(new: New) -> None:
    table = new()
    table.put(_numbered(range(20_000), "old "))
    units, taken = table.snapshot(), list[PUnit]()
    thread = threading.Thread(target=lambda: taken.extend(units))
    thread.start()
    for i in range(5):
        table.put(_numbered(range(0, 20_000, i + 2), f"new and longer {i} "))
        table.delete(_numbered(range(i, 20_000, 7)))
        table.delta()
    table.close()
    thread.join()
    other = new()
    other.restore(taken)
    assert _content(other) == {i: f"old {i}" for i in range(20_000)}


def test_columns_keep_their_order_whatever_the_order_of_what_is_put(new: New) -> None:
    table = new()
    table.put(_numbered(range(3)).select(["n", "k", "t"]))
    (batch,) = table.scan()
    assert batch.schema == SCHEMA
    assert sorted(batch.to_pylist(), key=lambda row: int(row["k"])) == _numbered(range(3)).to_pylist()


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        (_rows((None, "x", 0.0)), "key column has nulls"),
        (_rows((1, "x", 0.0)).select(["k", "t"]), "column is missing"),
        (_rows((1, "x", 0.0)).select(["t", "n"]), "column is missing"),
        (
            _rows((1, "x", 0), schema=pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.int64())])),
            "has another type",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(
    new: New, rows: pa.RecordBatch, fact: str
) -> None:
    table = new()
    with pytest.raises(InvalidUsageError, match=fact):
        table.put(rows)
    assert (len(table), list(table.scan())) == (0, [])


@pytest.mark.parametrize(
    ("columns", "key", "fact"),
    [
        ([("k", pa.int64())], (), "needs a key"),
        ([("k", pa.int64())], ("k", "k"), "key column repeats"),
        ([("k", pa.int64()), ("k", pa.int64())], ("k",), "column repeats"),
        ([("k", pa.int64())], ("x",), "no such key"),
        ([("k", pa.list_(pa.int64()))], ("k",), "cannot be a key"),
        ([("k", pa.int64()), ("v", pa.dictionary(pa.int8(), pa.string()))], ("k",), "cannot hold"),
    ],
)
def test_schemas_that_no_table_can_have_are_refused(
    new: New, columns: list[Any], key: tuple[str, ...], fact: str
) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        new(pa.schema(columns), key)


# Units that are not as they should be.


def _units(count: int = 4, parts: int = 2) -> list[PUnit]:
    """Return a snapshot in parts."""
    layout, size = Layout(SCHEMA, ("k",)), count // parts
    units = []
    for part in range(parts):
        rows = _numbered(range(part * size, (part + 1) * size))
        values = rows.select(["t", "n"])
        units.append(layout.unit([rows.column("k")], values, rows=(part + 1) * size, part=part, total=count))
    return units


def _delta() -> PUnit:
    table = MemoryTable(SCHEMA, ("k",))
    table.put(_numbered(range(4)))
    return table.delta()


def _with_meta(unit: PUnit, **meta: Any) -> PUnit:
    return PUnit(unit.kind, {**unit.meta, **meta}, unit.blocks)


def _with_block(unit: PUnit, name: str, block: pa.RecordBatch) -> PUnit:
    return PUnit(unit.kind, unit.meta, {**unit.blocks, name: block})


BAD: dict[str, list[PUnit]] = {
    "the first part is missing": _units()[1:],
    "the last part is missing": _units()[:1],
    "the last part is missing before a delta": [_units()[0], _delta()],
    "a part comes twice": [_units()[0], *_units()],
    "parts are of different snapshots": [_units()[0], _units(count=8)[1]],
    "the middle is missing": [_units(6, 3)[0], _units(6, 3)[2]],
    "a delta is missing": [_with_meta(_delta(), rows=9)],
    "a key is there twice": [
        _with_block(_units(2, 1)[0], "upserts", _rows((1, "a", 0.0), (1, "b", 0.0))),
    ],
    "there are more rows than the total": [_with_meta(_units(2, 1)[0], total=1)],
    "the kind is unknown": [PUnit("other", {"rows": 0}, _delta().blocks)],
    "there is no count": [PUnit("delta", {}, _delta().blocks)],
    "the count is no number": [_with_meta(_delta(), rows="4")],
    "the count is negative": [_with_meta(_delta(), rows=-4)],
    "a block is missing": [PUnit("delta", {"rows": 0}, {"upserts": _rows()})],
    "a key is null": [_with_block(_delta(), "upserts", _rows((None, "a", 0.0)))],
    "a column points outside its bytes": [
        _with_block(
            _delta(),
            "upserts",
            pa.RecordBatch.from_arrays(
                [
                    pa.array([1, 2]),
                    pa.Array.from_buffers(
                        pa.string(),
                        2,
                        [None, pa.py_buffer(np.array([0, 1 << 30, 1], np.int32)), pa.py_buffer(b"x")],
                    ),
                    pa.array([1.0, 2.0]),
                ],
                schema=SCHEMA,
            ),
        )
    ],
}


@pytest.mark.parametrize("units", list(BAD.values()), ids=list(BAD))
def test_units_that_do_not_add_up_are_refused(new: New, units: list[PUnit]) -> None:
    with pytest.raises(CorruptDataError):
        new().restore(units)


def test_units_that_add_up_are_applied(new: New) -> None:
    table = new()
    table.restore([*_units(), _delta(), *_units(6, 3), _with_meta(_delta(), rows=6)])
    assert len(table) == 6
    table.restore(iter([]))
    table.restore(_units())
    assert _content(table) == {i: str(i) for i in range(4)}
    assert not any(block.num_rows for block in table.delta().blocks.values())


def test_a_snapshot_that_says_it_is_giant_takes_no_giant_memory() -> None:
    table = MemoryTable(SCHEMA, ("k",))
    with pytest.raises(CorruptDataError, match="end of a snapshot"):
        table.restore([_with_meta(_units()[0], total=1 << 50)])
    assert table.size_bytes < 1 << 20


def test_state_of_other_columns_is_refused(new: New) -> None:
    other = pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.float32())])
    with pytest.raises(InvalidUsageError, match="other columns"):
        new(other).restore(_units())
    with pytest.raises(InvalidUsageError, match="other columns"):
        new(SCHEMA, ("k", "t")).restore(_units())


# What only the copy on disk has.


def _database(table: RocksdbTable) -> Path:
    assert table._database is not None
    return table._database.path


def test_rocksdb_has_the_options_it_was_given(tmp_path: Path) -> None:
    table = RocksdbTable(SCHEMA, ("k",), scratch=tmp_path)
    (path,) = sorted(_database(table).glob("db/OPTIONS-*"))[-1:]
    options = path.read_text()
    for option in (
        "filter_policy=bloomfilter",
        "no_block_cache=false",
        "write_buffer_size=33554432",
        "compression=kLZ4Compression",
    ):
        assert option in options, option
    table.put(_numbered(range(10_000)))
    assert not any(file.stat().st_size for file in _database(table).glob("db/*.log"))
    assert table._database is not None
    table._database._db.flush()
    properties = table._database._db.property_value("rocksdb.aggregated-table-properties")
    (size,) = re.findall(r"filter block size=(\d+)", properties)
    assert 10_000 < int(size) < 20_000
    table.close()


def test_all_tables_of_a_process_share_one_cache(tmp_path: Path) -> None:
    assert rocksdb_table._shared() is rocksdb_table._shared()
    tables = [RocksdbTable(SCHEMA, ("k",), scratch=tmp_path) for _ in range(2)]
    assert rocksdb_table._shared().memtables.enabled()
    for table in tables:
        table.close()


def test_a_cache_that_rocksdb_does_not_use_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_table, "_CACHE_BYTES", 12345)
    with pytest.raises(InternalError, match="block cache"):
        RocksdbTable(SCHEMA, ("k",), scratch=tmp_path)


def test_each_copy_has_a_private_directory_that_goes_with_it(tmp_path: Path) -> None:
    one, other = (RocksdbTable(SCHEMA, ("k",), scratch=tmp_path) for _ in range(2))
    assert _database(one) != _database(other)
    for table in (one, other):
        assert _database(table).parent == tmp_path
        assert _database(table).stat().st_mode & 0o777 == 0o700
    one.put(_numbered(range(10)))
    one.restore(_units())
    assert len(list(tmp_path.iterdir())) == 2
    one.close()
    one.close()
    other.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidUsageError, match="closed"):
        one.put(_numbered(range(1)))


def test_a_scratch_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot open"):
        RocksdbTable(SCHEMA, ("k",), scratch=tmp_path / "missing")


def test_without_its_package_the_copy_on_disk_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(InvalidUsageError, match=r"penstock\[rocksdb\]"):
        RocksdbTable(SCHEMA, ("k",))


def test_a_table_that_does_not_note_its_changes_holds_none_of_them(tmp_path: Path) -> None:
    table = RocksdbTable(SCHEMA, ("k",), scratch=tmp_path, notes_changes=False)
    table.put(_numbered(range(10_000)))
    table.delete(_numbered(range(10)))
    assert len(table._changes) == len(table._changes._index) == 0
    assert sum(unit.blocks["upserts"].num_rows for unit in table.snapshot()) == len(table) == 9_990
    with pytest.raises(InvalidUsageError, match="does not note its changes"):
        table.delta()
    table.close()


def test_many_changes_go_to_files_until_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_table, "_CHANGES_BYTES", 100_000)
    table = RocksdbTable(SCHEMA, ("k",), scratch=tmp_path)
    plain = MemoryTable(SCHEMA, ("k",))
    for i in range(10):
        for copy in (table, plain):
            copy.put(_numbered(range(i * 500, i * 500 + 1000), f"{i} "))
            copy.delete(_numbered(range(i * 500 + 100, i * 500 + 110)))
    files = list(_database(table).glob("changes-*"))
    assert len(files) > 2
    unit, expected = table.delta(), plain.delta()
    assert unit.meta == expected.meta
    for name in ("upserts", "tombstones"):
        assert unit.blocks[name].sort_by("k").equals(expected.blocks[name].sort_by("k"))
    assert not list(_database(table).glob("changes-*"))
    table.close()
