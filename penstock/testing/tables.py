"""Conformance tests of a table that holds the rows of a bucket by key."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.state_store.tables.table import Table

__all__ = ["SCHEMA", "NewTable", "TableTests"]

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.float64())])
NewTable = Callable[..., Table]
"""A function that makes an empty table. It takes a schema and a key, by default `SCHEMA` and ``("k",)``."""


def _rows(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _number_rows(numbers: range, text: str = "") -> pa.RecordBatch:
    return _rows(*[(i, f"{text}{i}", i / 2) for i in numbers])


class TableTests:
    """The contract of `penstock.state_store.tables.table.Table`."""

    @pytest.fixture
    def new(self) -> NewTable:
        """Return a factory of tables."""
        raise NotImplementedError  # not abstract, because pytest silently skips abstract classes

    def test_empty_batches_change_nothing(self, new: NewTable) -> None:
        """Put no rows, and get no keys."""
        table, nothing = new(), _rows()
        table.put(nothing)
        rows, exists = table.get(nothing)
        assert (rows.num_rows, len(exists), len(table)) == (0, 0, 0)
        assert [batch.num_rows for batch in table.rows()] == [0]

    def test_a_key_that_is_not_there_has_null_values(self, new: NewTable) -> None:
        """Look up existing keys, missing keys, and one key twice."""
        table = new()
        rows, exists = table.get(_number_rows(range(2)))
        assert rows.to_pylist() == [{"t": None, "n": None}] * 2
        table.put(_rows((7, "x", 1.0), (1, None, None)))
        rows, exists = table.get(_rows((0, "", 0.0), (7, "", 0.0), (1, "", 0.0), (7, "", 0.0)).select(["k"]))
        assert exists.tolist() == [False, True, True, True]
        assert rows.column("t").to_pylist() == [None, "x", None, "x"]
        assert rows.schema.names == ["t", "n"]

    def test_zeros_are_one_key_and_so_are_nans(self, new: NewTable) -> None:
        """Put floating-point keys whose bits differ although users regard them as equal."""
        schema = pa.schema([("k", pa.float64()), ("t", pa.string())])
        table = new(schema)
        rows = [(0.0, "a"), (-0.0, "b"), (math.nan, "c"), (-math.nan, "d"), (1.0, "e")]
        table.put(_rows(*rows, schema=schema))
        assert len(table) == 3
        found_rows, exists = table.get(_rows((-0.0, ""), (math.nan, ""), (0.0, ""), schema=schema))
        assert exists.all()
        assert found_rows.column("t").to_pylist() == ["b", "d", "b"]
        keys = sorted(map(str, (row["k"] for batch in table.rows() for row in batch.to_pylist())))
        assert keys == ["0.0", "1.0", "nan"]

    def test_a_table_equals_a_dictionary(self, new: NewTable) -> None:
        """Put and get random keys. If a batch has a key several times, the last row wins."""
        draw, table, model = random.Random(3), new(), dict[int, dict[str, Any]]()
        for _ in range(100):
            keys = [draw.randint(0, 60) for _ in range(draw.randint(0, 20))]
            batch = _rows(*[(key, f"{draw.random()}", draw.random()) for key in keys])
            table.put(batch)
            model |= zip(keys, batch.to_pylist(), strict=True)
            assert len(table) == len(model)
            probes = [draw.randint(0, 80) for _ in range(10)]
            rows, exists = table.get(_rows(*[(key, "", 0.0) for key in probes]))
            assert exists.tolist() == [key in model for key in probes]
            assert rows["t"].to_pylist() == [model[key]["t"] if key in model else None for key in probes]
        assert {row["k"]: row for batch in table.rows() for row in batch.to_pylist()} == model

    def test_huge_values_come_back(self, new: NewTable) -> None:
        """Put values so large that few fit into one batch."""
        table = new()
        texts = {i: chr(97 + i) * (9 << 20) for i in range(5)}
        table.put(_rows(*[(i, text, 0.0) for i, text in texts.items()]))
        table.put(_rows((9, "small", 0.0)))
        batches = list(table.rows())
        assert all(batch.nbytes < 150 << 20 for batch in batches)
        assert {r["k"]: r["t"] for batch in batches for r in batch.to_pylist()} == texts | {9: "small"}

    def test_rows_are_those_of_the_call(self, new: NewTable) -> None:
        """Consume the rows in another thread while the table changes and is closed."""
        table = new()
        table.put(_number_rows(range(20_000), "old "))
        batches, consumed = table.rows(), list[pa.RecordBatch]()
        thread = threading.Thread(target=lambda: consumed.extend(batches))
        thread.start()
        for i in range(5):
            table.put(_number_rows(range(0, 20_000, i + 2), f"new and longer {i} "))
        table.close()
        thread.join()
        content = {row["k"]: row["t"] for batch in consumed for row in batch.to_pylist()}
        assert content == {i: f"old {i}" for i in range(20_000)}

    def test_the_key_comes_first(self, new: NewTable) -> None:
        """Put columns in an order that differs from the schema's order."""
        table = new(SCHEMA, ("n",))
        table.put(_number_rows(range(3)).select(["n", "t", "k"]))
        (batch,) = table.rows()
        assert batch.schema.names == ["n", "k", "t"]
        assert sorted(batch["k"].to_pylist()) == [0, 1, 2]

    def test_rows_that_do_not_fit_are_refused_and_change_nothing(self, new: NewTable) -> None:
        """Put a null key, too few columns, and a column of a wrong type."""
        other = pa.schema([("k", pa.int64()), ("t", pa.string()), ("n", pa.int64())])
        table = new()
        for rows, fact in (
            (_rows((None, "x", 0.0)), "key column has nulls"),
            (_rows((1, "x", 0.0)).select(["k", "t"]), "column is missing"),
            (_rows((1, "x", 0.0)).select(["t", "n"]), "column is missing"),
            (_rows((1, "x", 0), schema=other), "has another type"),
        ):
            with pytest.raises(InvalidUsageError, match=fact):
                table.put(rows)
        assert (len(table), [batch.num_rows for batch in table.rows()]) == (0, [0])

    def test_a_closed_table_may_be_closed_again(self, new: NewTable) -> None:
        """Close twice."""
        table = new()
        table.close()
        table.close()
