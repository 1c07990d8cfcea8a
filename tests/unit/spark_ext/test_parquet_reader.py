"""Tasks read each row of Parquet files once, in the types of the source."""

from __future__ import annotations

import itertools
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import CorruptDataError, InvalidUsageError, UnavailableError
from penstock.spark_ext.sources.parquet_reader import RANGE, ranges_of, rows_in

ROWS = 5 * RANGE + 1234
EVERY = [(0, ROWS)]


def written(place: Path, table: pa.Table, **options: Any) -> str:
    """Write a file; return its URI as Spark has it."""
    path = place / "100% of it.parquet"
    pq.write_table(table, path, **options)
    return "file:" + str(path).replace("%", "%25").replace(" ", "%20")


def read(file: str, ranges: list[tuple[int, int]], columns: pa.Schema) -> pa.Table:
    """Return rows, with the values of dictionaries."""
    tables = list(rows_in(file, ranges, columns))
    for table, field in itertools.product(tables, columns):
        kind = table.schema.field(field.name).type
        assert field.type in (kind, getattr(kind, "value_type", None))
    return pa.concat_tables([table.cast(columns) for table in tables]) if tables else columns.empty_table()


@pytest.mark.parametrize("group", [1000, RANGE - 1, RANGE, 3 * RANGE + 7, ROWS])
def test_tasks_read_every_row_once_however_a_file_is_divided(tmp_path: Path, group: int) -> None:
    generator = np.random.default_rng(group)
    number = np.arange(ROWS)
    table = pa.table(
        {
            "number": number,
            "few": pa.array(number % 3).cast(pa.string()),
            "many": pa.array(number * 7919).cast(pa.string()),
            "some": pa.array(number % 11, mask=number % 5 == 0),
        }
    )
    file = written(tmp_path, table, row_group_size=group)
    # A task has some row groups that follow each other.
    edges = np.arange(0, ROWS + group, group).clip(0, ROWS)
    cuts = np.sort(generator.choice(edges, 2))
    found = []
    for low, high in zip([0, *cuts], [*cuts, ROWS], strict=True):
        firsts = [first for first in range(0, ROWS, RANGE) if low <= first < high]
        batches = [
            pa.record_batch([[file] * len(one), one], ["file", "first"]) for one in (firsts[:1], firsts[1:])
        ]
        for name, ranges in ranges_of(batches):
            assert len(ranges) == 1
            found.append(read(name, ranges, table.schema))
    assert pa.concat_tables(found).sort_by("number").equals(table)


def test_ranges_that_do_not_follow_each_other_stay_apart() -> None:
    batch = pa.record_batch([["a", "b", "a", "a"], [0, 0, 3 * RANGE, RANGE]], ["file", "first"])
    assert dict(ranges_of([batch])) == {"a": [(0, 2 * RANGE), (3 * RANGE, 4 * RANGE)], "b": [(0, RANGE)]}
    assert not list(ranges_of([]))


def test_texts_that_a_file_has_once_are_dictionaries(tmp_path: Path) -> None:
    table = pa.table({"few": ["a", "b"] * 5000, "many": [f"text {n}" for n in range(10_000)]})
    (rows,) = rows_in(written(tmp_path, table), EVERY, table.schema)
    assert [pa.types.is_dictionary(kind) for kind in rows.schema.types] == [True, False]


def test_values_are_of_the_types_of_the_source(tmp_path: Path) -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    columns = pa.schema(
        {"at": pa.timestamp("us", "UTC"), "n": pa.int64(), "x": pa.float64(), "t": pa.string()}
    )
    stored = {"at": pa.timestamp("us", "UTC"), "n": pa.int32(), "x": pa.float32(), "t": pa.large_string()}
    table = pa.Table.from_pylist([{"at": at, "n": 1, "x": 0.5, "t": "a"}], pa.schema(stored))
    for options in ({}, {"use_deprecated_int96_timestamps": True}):
        (found,) = read(written(tmp_path, table, **options), EVERY, columns).to_pylist()
        assert found == {"at": at, "n": 1, "x": 0.5, "t": "a"}


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (pa.string(), "1", pa.int64()),
        (pa.int64(), 2**40, pa.int32()),
        (pa.timestamp("us"), 0, pa.timestamp("us", "UTC")),
    ],
)
def test_other_values_are_refused(tmp_path: Path, kind: pa.DataType, value: Any, wanted: pa.DataType) -> None:
    file = written(tmp_path, pa.table({"a": pa.array([value], kind)}))
    with pytest.raises(InvalidUsageError, match="column=a"):
        read(file, EVERY, pa.schema({"a": wanted}))


def test_a_column_that_a_file_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="missing=b"):
        read(written(tmp_path, pa.table({"a": [1]})), EVERY, pa.schema({"b": pa.int64()}))


def test_damage_and_absence_are_told_apart(tmp_path: Path) -> None:
    columns = pa.schema({"a": pa.int64()})
    path = tmp_path / "file"
    pq.write_table(pa.table({"a": range(1000)}), path)
    whole = path.read_bytes()
    for damaged in (
        b"no Parquet",
        whole[: len(whole) // 2],
        b"PAR1" + bytes(len(whole) - 200) + whole[-196:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptDataError, match="file"):
            read(path.as_uri(), EVERY, columns)
    path.unlink()
    with pytest.raises(UnavailableError):
        read(path.as_uri(), EVERY, columns)


def test_no_more_is_decoded_at_once_than_fits(tmp_path: Path) -> None:
    table = pa.table({"text": [f"{number:04}" * 250 for number in range(2_000)]})
    file = written(tmp_path, table, use_dictionary=False, compression="none")
    tables = list(rows_in(file, EVERY, table.schema, batch_bytes=100_000))
    assert pa.concat_tables(tables).equals(table)
    assert max(part.num_rows for part in tables) == 99


DAMAGED = """
import random, sys
import pyarrow as pa, pyarrow.parquet as pq
from penstock.errors import PenstockError
from penstock.spark_ext.sources.parquet_reader import rows_in
path = sys.argv[1]
rows = range(3000)
table = pa.table({"a": rows, "k": [f"x{i % 7}" for i in rows], "m": [f"yy{i}" for i in rows]})
pq.write_table(table, path, row_group_size=1000)
whole = open(path, "rb").read()
end = len(whole) - 8
footer = end - int.from_bytes(whole[-8:-4], "little")
draw = random.Random(1)
refused = 0
for number in range(700):
    damaged = bytearray(whole)
    at = draw.randrange(footer, end) if number % 2 else draw.randrange(4, footer)
    damaged[at] ^= 1 << draw.randrange(8)
    open(path, "wb").write(damaged)
    try:
        list(rows_in("file:" + path, [(0, 1 << 17)], table.schema))
    except PenstockError as error:
        assert path in str(error)
        refused += 1
print(refused)
"""


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DAMAGED, str(tmp_path / "some.parquet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100
