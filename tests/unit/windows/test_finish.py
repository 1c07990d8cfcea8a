"""Results of windows outside of Spark: those of the assembly's SQL in DuckDB; what is left to Spark."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.assembly import Assembly
from penstock.operators.aggregates.decomposition import decompose
from penstock.windows.finish import Finish, Step
from penstock.windows.layout import START, ClosedWindows
from tests.oracles.graphs import duck_sql

TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
KINDS = {"count": pa.int64(), "sum": pa.float64(), "m2": pa.float64(), "max": pa.float64()}
PANE_MS, SIZE_MS = 500, 2000


def finish(aggregates: dict[str, str], *steps: Step, kind: pa.DataType | None = None) -> Finish:
    """Return the `Finish` of windows of groups ``k``; aggregates have a type, by default ``double``."""
    split = decompose(aggregates, "t", ("k",))
    assert split is not None
    partials = [(one.name, KINDS[one.kind]) for one in split.partials]
    output = [("k", pa.string()), ("window", WINDOW), *((name, kind or pa.float64()) for name in aggregates)]
    windows = pa.schema([("k", pa.string()), (START, pa.int64()), *partials])
    return Finish(
        windows, pa.schema(output), "window", PANE_MS, SIZE_MS, Assembly.from_decomposition(split), steps
    )


def windows_of(made: Finish, rows: int = 500) -> pa.RecordBatch:
    """Return windows of few values, some of none: sums are null then."""
    generator = np.random.default_rng(7)
    count = generator.integers(0, 4, rows)
    values = generator.normal(5.0, 2.0, (rows, 3))
    taken = np.where(np.arange(3) < count[:, None], values, 0.0)
    computed = {
        "count": pa.array(count),
        "sum": pa.array(taken.sum(axis=1), mask=count == 0),
        "m2": pa.array(
            [
                ((values[row, :n] - values[row, :n].mean()) ** 2).sum() if n else None
                for row, n in enumerate(count)
            ]
        ),
    }
    columns = []
    for field in made.windows:
        kind = next((one for one in ("m2", "sum", "count") if field.name.startswith(one)), None)
        if kind is not None:
            columns.append(computed[kind])
        elif field.name == START:
            columns.append(pa.array(np.arange(rows) * 3 - 600))
        else:
            columns.append(pa.array([None if n % 7 == 0 else f"key {n % 5}" for n in range(rows)]))
    return pa.RecordBatch.from_arrays(columns, schema=made.windows)


def closed(made: Finish, windows: pa.RecordBatch) -> ClosedWindows:
    """Return windows as `Panes` hands them over."""
    groups = windows.column("k").dictionary_encode("encode")
    values = windows.select(made.windows.names[2:])
    of = groups.indices.cast(pa.int64())
    return ClosedWindows([groups.dictionary], of, windows.column(START), values)


def by_duckdb(made: Finish, aggregates: dict[str, str], windows: pa.RecordBatch, rest: str) -> pa.Table:
    """Return the results of the assembly's SQL, computed by DuckDB."""
    split = decompose(aggregates, "t", ("k",))
    assert split is not None
    texts = ", ".join(f"{duck_sql(text)} AS {name}" for name, text in split.assembly.items())
    with duckdb.connect() as connection:
        numbered = pa.Table.from_batches([windows]).append_column("n", [range(windows.num_rows)])
        connection.register("windows", numbered)
        start = f"{START} * {1000 * PANE_MS}"
        inner = f"SELECT k, {start} AS start, {start} + {1000 * SIZE_MS} AS stop, {texts}, n FROM windows"
        return connection.sql(f"SELECT * EXCLUDE n FROM ({inner}) {rest} ORDER BY n").to_arrow_table()


AGGREGATES = {
    "mean": "avg(v)",
    "spread": "stddev(v)",
    "twice": "avg(v) * 2 + stddev(v)",
    "own": "sum(v) / count(v)",
    "case_of": "CASE WHEN count(v) > 1 THEN avg(v) ELSE 0.5D END",
}


@pytest.mark.parametrize(
    "predicate", [None, "mean > 5", "mean > 4.5 AND (spread IS NULL OR spread < 1)", "mean < -99"]
)
def test_aggregates_are_those_of_their_sql(predicate: str | None) -> None:
    made = finish(AGGREGATES, *(() if predicate is None else (predicate,)))
    assert made.schemas() == [made.output]
    windows = windows_of(made)
    found = made(closed(made, windows))
    wanted = by_duckdb(made, AGGREGATES, windows, "" if predicate is None else f"WHERE {predicate}")
    assert found.column("k").to_pylist() == wanted["k"].to_pylist()
    both = found.column("window")
    for name, column in (("start", wanted["start"]), ("end", wanted["stop"])):
        assert both.field(name).cast(pa.int64()).to_pylist() == column.to_pylist()
    for name in AGGREGATES:
        ours, theirs = found.column(name).to_pylist(), wanted[name].to_pylist()
        assert [one is None for one in ours] == [one is None for one in theirs], name
        pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if one is not None]
        found_ones, wanted_ones = [one for one, _ in pairs], [other for _, other in pairs]
        np.testing.assert_allclose(found_ones, wanted_ones, rtol=1e-9, atol=1e-7)


def test_selections_and_projections_come_in_their_order() -> None:
    steps: list[Step] = [
        "mean IS NOT NULL",
        {"k": "k", "high": "mean * 10", "begin": "window.start"},
        "high > 50",
        {"high": "high + 1", "begin": "begin", "one": "1"},
    ]
    made = finish({"mean": "avg(v)"}, *steps)
    schemas = made.schemas()
    assert schemas is not None
    assert schemas[-1] == pa.schema([("high", pa.float64()), ("begin", TIME), ("one", pa.int32())])
    windows = windows_of(made)
    found = made(closed(made, windows))
    wanted = by_duckdb(made, {"mean": "avg(v)"}, windows, "WHERE mean * 10 > 50")
    assert found.schema == schemas[-1]
    np.testing.assert_allclose(found.column("high"), np.asarray(wanted["mean"]) * 10 + 1)
    assert found.column("begin").cast(pa.int64()).to_pylist() == wanted["start"].to_pylist()
    assert made(closed(made, windows.slice(0, 0))).num_rows == 0


@pytest.mark.parametrize(
    ("aggregates", "steps"),
    [
        ({"share": "sum(v) / count(*)"}, []),
        ({"share": "sum(v) / count(w)"}, []),
        ({"share": "100 / count(v)"}, []),
        ({"mean": "avg(v)"}, ["rand() > mean"]),
        ({"mean": "avg(v)"}, [{"big": "upper(k)"}]),
        ({"mean": "avg(v)"}, [{"share": "1 / mean"}]),
    ],
)
def test_what_only_spark_can_compute_is_left_to_it(aggregates: dict[str, str], steps: list[Step]) -> None:
    assert finish(aggregates, *steps).schemas() is None


def test_an_aggregate_of_another_type_is_left_to_spark() -> None:
    assert finish({"n": "count(*)"}).schemas() is None
    assert finish({"n": "count(*)"}, kind=pa.int64()).schemas() is not None


def test_integers_that_overflow_fail_as_in_spark() -> None:
    made = finish({"n": "count(*)"}, {"many": "n * 9223372036854775807"}, kind=pa.int64())
    assert made.schemas() is not None
    with pytest.raises(InvalidUsageError, match="overflow"):
        made(closed(made, windows_of(made)))
