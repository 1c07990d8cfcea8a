"""The console of the local engine shows rows as Spark's console does."""

from __future__ import annotations

import io

import pyarrow as pa

from penstock.local_engine.outputs import ConsoleOutput


def test_nested_values_are_shown_as_in_sparks_console() -> None:
    rows = pa.table(
        {
            "window": pa.array([{"start": 1_000_000, "end": None}], WINDOW),
            "tags": pa.array([["a", None]], pa.list_(pa.string())),
            "counts": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
            "name": pa.array([None], pa.string()),
        }
    )
    shown = io.StringIO()
    ConsoleOutput(rows.schema, file=shown).write(iter(rows.to_batches()), "q", 0)
    line = shown.getvalue().splitlines()[4]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["{1970-01-01 00:00:01+00:00, NULL}", "[a, NULL]", "{x -> 1}", "NULL"]


WINDOW = pa.struct({"start": pa.timestamp("us", "UTC"), "end": pa.timestamp("us", "UTC")})
