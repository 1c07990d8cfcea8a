"""Fragments are looked up as DuckDB joins them, and a lookup travels as text."""

from __future__ import annotations

import datetime
import decimal
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.scan import lookup as module
from penstock.operators.scan.lookup import Lookup, can_be_looked_up
from penstock.operators.scan.spec import PANE, Fragments, Partial, Scan
from penstock.spark_ext.border.parcels import PARCELS, from_parcel
from penstock.spark_ext.border.window_packing import facts_of, look_up
from penstock.spark_ext.sources.pushed import Pushed
from penstock.windows.layout import ENTRY_PANE

DAY = datetime.date(2020, 1, 1)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int32(): [-3, 0, 7, None],
    pa.string(): ["", "a", "ab", "a longer text than a word", None],
    pa.bool_(): [True, False, None],
    pa.date32(): [DAY, DAY.replace(year=1960), None],
    pa.binary(): [b"", b"\x00", b"\x00\x00", None],
    pa.decimal128(38, 2): [decimal.Decimal("-1.50"), decimal.Decimal("1.50"), None],
    pa.timestamp("us"): [datetime.datetime(1960, 1, 1), None],
    pa.timestamp("us", "UTC"): [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None],
}


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_joined_as_duckdb_does(seed: int) -> None:
    draw = random.Random(seed)
    kinds = draw.sample(list(VALUES), draw.randint(1, 2))
    on = [f"k{number}" for number in range(len(kinds))]
    keys = {tuple(draw.choice(VALUES[kind]) for kind in kinds) for _ in range(draw.choice([0, 3, 30]))}
    rows = [tuple(draw.choice(VALUES[kind]) for kind in kinds) for _ in range(draw.choice([0, 50]))]
    fields = [pa.field(name, kind) for name, kind in zip(on, kinds, strict=True)]
    table = made(sorted(keys, key=str), pa.schema([*fields, ("group", pa.int64())]))
    stream = made(rows, pa.schema([*fields, ("row", pa.int64())]))
    lookup = Lookup.from_text(Lookup(table, on, ["group"]).to_text())
    (batch,) = stream.to_batches() or [pa.RecordBatch.from_pylist([], stream.schema)]
    joined = lookup.join(batch)
    assert joined.schema.equals(lookup.schema(batch.schema))
    with duckdb.connect(config={"threads": 1}) as database:
        database.register("stream", stream)
        database.register("tab", table)
        wanted = database.sql(f"select * from stream join tab using ({', '.join(on)}) order by row")
        assert joined.to_pylist() == wanted.to_arrow_table().to_pylist()


def made(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Return rows with their numbers as the last column."""
    whole = [dict(zip(schema.names, (*row, number), strict=True)) for number, row in enumerate(rows)]
    return pa.Table.from_pylist(whole, schema)


ADS = pa.table({"ad": ["a", "b", "c", "d"], "campaign": [1, 1, 2, None]})


def test_a_process_reads_a_text_once() -> None:
    module._read.cache_clear()
    text = Lookup(ADS, ["ad"], ["campaign"]).to_text()
    assert Lookup.from_text(text) is Lookup.from_text("".join(text))
    assert Lookup.from_text(text).group_by == ("campaign",)
    for wrong in ("", "[]", "{}", '{"on": ["a"], "group_by": [], "table": "?"}'):
        with pytest.raises(InvalidUsageError, match="not the text of a lookup"):
            Lookup.from_text(wrong)


def test_what_cannot_be_looked_up_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"several rows for one key: rows=2 different=1 columns=k"):
        Lookup(pa.table({"k": [1, 1], "v": [1, 2]}), ["k"], ["v"])
    Lookup(pa.table({"k": pa.array([None, None], pa.int64()), "v": [1, 2]}), ["k"], ["v"])
    for kind in (pa.float64(), pa.list_(pa.int64()), pa.struct({"a": pa.int64()})):
        assert not can_be_looked_up(kind)
        with pytest.raises(InvalidUsageError, match=r"cannot be looked up: columns=k"):
            Lookup(pa.schema({"k": kind}).empty_table(), ["k"], [])
    rows = pa.RecordBatch.from_pydict({"ad": pa.array(["a"], pa.large_string())})
    with pytest.raises(InvalidUsageError, match="types: column=ad type=large_string wanted=string"):
        Lookup(ADS, ["ad"], []).join(rows)


@pytest.mark.parametrize(
    ("kind", "groups", "wanted"),
    [
        ("sum", ("campaign",), [(0, 1, 3), (0, 2, 4), (0, None, 8), (10, 1, 16)]),
        ("min", ("campaign",), [(0, 1, 1), (0, 2, 4), (0, None, 8), (10, 1, 16)]),
        # These have no time in them, and an advertisement's fragments are one already.
        ("last", ("campaign",), [(0, 1, 1), (0, 1, 2), (0, 2, 4), (0, None, 8), (10, 1, 16)]),
        ("sum", ("ad",), [(0, "a", 1), (0, "b", 2), (0, "c", 4), (0, "d", 8), (10, "a", 16)]),
    ],
)
def test_fragments_of_one_group_become_one(kind: Any, groups: Any, wanted: list[Any]) -> None:
    fragments = Fragments(10_000, PANE, "s", groups, (Partial(kind, "v", "n"),))
    batch = pa.RecordBatch.from_pydict(
        {PANE: [0, 0, 0, 0, 10, 10], "ad": ["a", "b", "c", "d", "a", "z"], "n": [1, 2, 4, 8, 16, 32]}
    )
    strangers = batch.slice(5)
    found = look_up(fragments, Lookup(ADS, ["ad"], groups), [strangers, batch, batch.slice(0, 0)])
    rows = [tuple(row[name] for name in (PANE, *groups, "n")) for one in found for row in one.to_pylist()]
    assert sorted(rows, key=str) == sorted(wanted, key=str)


def test_what_is_looked_up_has_the_types_of_spark() -> None:
    """A p-stream has types that Spark has not, such as unsigned integers, and instants without a zone."""
    stored = pa.schema({"t": pa.timestamp("ms"), "ad": pa.uint16(), "v": pa.int16()})
    rows = pa.table(
        {"t": [1000, 2000, 11_000, None], "ad": [60_000, 7, 60_000, 7], "v": [1, 2, 4, 8]}, stored
    )
    partials = (Partial("sum", "v", "total"), Partial("count", "*", "rows"))
    scan = Scan(("t", "ad", "v"), fragments=Fragments(10_000, "t", "ms", ("ad",), partials))
    table = pa.table({"ad": pa.array([7, 60_000], pa.int32()), "campaign": ["a", "a"]})
    pushed = Pushed.bind(stored, scan, 2, Lookup(table, ["ad"], ["campaign"]).to_text())
    assert pushed.spark == PARCELS
    *parcels, left_out = [row for batch in pushed.scan_tables([rows]) for row in batch.to_pylist()]
    entries = [from_parcel(row["payload"]) for row in parcels]
    found = [row for batch in entries for row in batch.to_pylist()]
    assert found == [
        {"campaign": "a", ENTRY_PANE: 0, "total": 3, "rows": 2},
        {"campaign": "a", ENTRY_PANE: 1, "total": 4, "rows": 1},
    ]
    assert [facts_of(batch) for batch in entries] == [(1, 0)] * 2, "each bucket has a parcel"
    assert (left_out["dropped"], left_out["payload"]) == (1, None), "the row without a time"
