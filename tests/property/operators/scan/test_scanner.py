"""A scan in a reader equals the same operators after the read, as DuckDB computes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.p_streams.scans import scan_p_stream
from penstock.checkpointing.p_stream import Piece, PStream, PStreamWriter
from penstock.compression import TableBlock, encode_table
from penstock.errors import InvalidUsageError
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.spec import PANE, Fragments, LatestBy, Partial, Scan
from tests.long_tests import examples

SCHEMA = pa.schema(
    {
        "ts": pa.int64(),
        "moment": pa.timestamp("us", "UTC"),
        "small": pa.int8(),
        "k": pa.int32(),
        "name": pa.string(),
        "x": pa.float64(),
        "n": pa.int64(),
        "day": pa.date32(),
    }
)
ALL = tuple(SCHEMA.names)


def table(seed: int, rows: int, *, nulls: float, disorder: int, keys: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    ts = np.sort(draw.integers(-50, 200, rows)) + draw.integers(0, disorder + 1, rows)

    def column(values: Any, kind: pa.DataType) -> pa.Array[Any]:
        return pa.array(values, kind, mask=draw.random(rows) < nulls)

    return pa.table(
        [
            column(ts, pa.int64()),
            column(ts * 1_000_000 + draw.integers(0, 1_000_000, rows), pa.int64()).cast(
                SCHEMA.field("moment").type
            ),
            column(draw.integers(-3, 3, rows), pa.int8()),
            column(draw.integers(0, keys, rows) * 1_000_003, pa.int32()),
            column([f"name {n}" for n in draw.integers(0, 4, rows)], pa.string()),
            column(draw.integers(-8, 8, rows) / 4, pa.float64()),
            column(draw.integers(-1000, 1000, rows), pa.int64()),
            column(draw.integers(0, 3, rows), pa.int32()).cast(pa.date32()),
        ],
        schema=SCHEMA,
    )


def units(rows: pa.Table, cuts: Sequence[int]) -> list[tuple[Piece, TableBlock]]:
    """Return p-units of rows. A reader wants all rows of each p-unit except its first two and its last."""
    found: list[tuple[Piece, TableBlock]] = []
    for start, stop in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
        part = rows.slice(start, stop - start)
        padded = pa.concat_tables([rows.slice(0, 2), part, rows.slice(0, 1)])
        codecs = dict.fromkeys(ALL, "plain") | ({"name": "dictionary>plain"} if len(found) % 2 else {})
        block = TableBlock(encode_table(padded, codecs=codecs))
        found.append((Piece("s", 0, block.size_bytes, block.rows, 2 if rows.num_rows > 1 else 1, 0), block))
    return [
        (Piece("s", 0, block.size_bytes, block.rows, piece.first, block.rows - 1), block)
        for piece, block in found
    ]


def run(scan: Scan, rows: pa.Table, cuts: Sequence[int]) -> pa.Table:
    scanner = Scanner(scan, SCHEMA)
    batches = list(scanner.run(units(rows, cuts)))
    assert all(batch.schema.equals(scanner.schema) for batch in batches)
    return pa.Table.from_batches(batches, scanner.schema)


def equal(found: pa.Table, sql: str, rows: pa.Table) -> None:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("rows", rows)
    wanted = connection.sql(sql).fetchall()
    have = list(zip(*(found.column(i).to_pylist() for i in range(found.num_columns)), strict=True))
    assert sorted(map(_key, have)) == sorted(map(_key, wanted))


def _key(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((value is None, "" if value is None else _plain(value)) for value in row)


def _plain(value: Any) -> Any:
    return (
        value.timestamp()
        if hasattr(value, "timestamp")
        else float(f"{value:.12g}")
        if isinstance(value, float)
        else value
    )


WHERE = st.sampled_from(
    [
        None,
        "small = 1",
        "x > 0 AND n < 500",
        "name = 'name 2' OR k = 0",
        "n < 2000",
        "n < -2000",
        "name = 'name 2' AND small <> 0",
        "k > 0 AND name <> 'name 1' AND n * 2 < 1000",
    ]
)
GROUPS = st.sampled_from([(), ("k",), ("name",), ("k", "small"), ("day", "name", "k"), ("small",)])


@settings(
    max_examples=examples(150), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    seed=st.integers(0, 2**32), rows=st.integers(2, 400), nulls=st.sampled_from([0.0, 0.0, 0.2]),
    disorder=st.sampled_from([0, 0, 30]), keys=st.sampled_from([1, 5, 300]), where=WHERE, group_by=GROUPS,
    pane_s=st.sampled_from([1, 7, 60]), micros=st.booleans(), cuts=st.lists(st.integers(1, 400), max_size=4),
)  # fmt: skip
def test_fragments_equal_a_group_by(
    seed: int, rows: int, nulls: float, disorder: int, keys: int, where: str | None,
    group_by: tuple[str, ...], pane_s: int, micros: bool, cuts: list[int],
) -> None:  # fmt: skip
    data = table(seed, rows, nulls=nulls, disorder=disorder, keys=keys)
    time = "moment" if micros else "ts"
    partials = tuple(
        Partial(kind, expression, name)  # type: ignore[arg-type]
        for kind, expression, name in [
            ("count", "*", "c"), ("count", "x", "cx"), ("sum", "x", "sx"), ("sum", "n", "sn"),
            ("sum", "n * 2 + k", "se"), ("count", "n", "cn"), ("m2", "n", "sq"), ("min", "x", "lx"),
            ("max", "n", "gn"),
            ("min", "moment", "la"), ("max", "day", "gd"), ("min", "small", "ls"),
        ]
    )  # fmt: skip
    fragments = Fragments(pane_s * 1000, time, "us" if micros else "s", group_by, partials)
    found = run(Scan(ALL, where, None, None, fragments), data, sorted({c for c in cuts if c < rows}))
    seconds = "epoch_us(moment)" if micros else "ts"
    steps = pane_s * (1_000_000 if micros else 1)
    pane = f"floor({seconds}::double / {steps})::bigint * {steps}"
    pane = f"make_timestamptz(({pane})::bigint)" if micros else pane
    groups = "".join(f", {name}" for name in group_by)
    equal(
        found,
        f"""select {pane} as pane{groups}, count(*), count(x), sum(x), sum(n)::bigint, sum(n * 2 + k)::bigint,
        count(n), var_pop(n) * count(n), min(x), max(n), min(moment), max(day), min(small)
        from rows where {time} is not null and ({where or "true"}) group by pane{groups}""",
        data,
    )


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32), rows=st.integers(2, 300), nulls=st.sampled_from([0.0, 0.2]),
    disorder=st.sampled_from([0, 30]), group_by=GROUPS, cuts=st.lists(st.integers(1, 300), max_size=4),
)  # fmt: skip
def test_first_and_last_are_by_time_then_by_arrival(
    seed: int, rows: int, nulls: float, disorder: int, group_by: tuple[str, ...], cuts: list[int]
) -> None:
    data = table(seed, rows, nulls=nulls, disorder=disorder, keys=5)
    partials = (Partial("first", "name", "f"), Partial("last", "x", "l"), Partial("last", "n + 1", "e"))
    fragments = Fragments(7000, "ts", "s", group_by, partials)
    found = run(Scan(ALL, "small < 2", None, None, fragments), data, sorted({c for c in cuts if c < rows}))
    numbered = data.append_column("i", pa.array(range(rows)))
    groups = "".join(f", {name}" for name in group_by)
    equal(
        found,
        f"""select floor(ts::double / 7)::bigint * 7 as pane{groups},
        list(name order by ts, i)[1], list(x order by ts desc, i desc)[1],
        list(n + 1 order by ts desc, i desc)[1]
        from rows where ts is not null and small < 2 group by pane{groups}""",
        numbered,
    )


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32), rows=st.integers(2, 300), nulls=st.sampled_from([0.0, 0.2]),
    where=WHERE, key=st.sampled_from([("k",), ("name", "small")]), time=st.sampled_from(["ts", "moment"]),
    cuts=st.lists(st.integers(1, 300), max_size=4),
)  # fmt: skip
def test_the_newest_of_each_key_is_kept_and_all_that_have_no_key_or_time(
    seed: int, rows: int, nulls: float, where: str | None, key: tuple[str, ...], time: str, cuts: list[int]
) -> None:
    data = table(seed, rows, nulls=nulls, disorder=20, keys=5)
    data = data.set_column(6, "n", pa.array(range(rows), pa.int64()))
    scan = Scan(
        ALL, where, {"k": "k", "name": "name", "small": "small", time: time, "n": "n"}, LatestBy(key, time)
    )
    found = run(scan, data, sorted({c for c in cuts if c < rows}))
    whole = " and ".join(f"{name} is not null" for name in (*key, time))
    columns = f"k, name, small, {time}, n"
    equal(
        found,
        f"""select {columns} from rows where ({where or "true"}) and ({whole})
        qualify row_number() over (partition by {", ".join(key)} order by {time} desc, n desc) = 1
        union all select {columns} from rows where ({where or "true"}) and not ({whole})""",
        data,
    )


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32), rows=st.integers(2, 300), nulls=st.sampled_from([0.0, 0.2]), where=WHERE,
    cuts=st.lists(st.integers(1, 300), max_size=4),
)  # fmt: skip
def test_rows_keep_their_order(
    seed: int, rows: int, nulls: float, where: str | None, cuts: list[int]
) -> None:
    data = table(seed, rows, nulls=nulls, disorder=20, keys=5)
    select = {"twice": "n * 2", "name": "name", "half": "x / 2"}
    scan = Scan(("n", "name", "x", "small", "k"), where, select)
    found = run(scan, data, sorted({c for c in cuts if c < rows}))
    connection = duckdb.connect()
    connection.register("rows", data.append_column("i", pa.array(range(rows))))
    sql = f"select n * 2, name, x / 2 from rows where ({where or 'true'}) order by i"
    assert list(zip(*found.to_pydict().values(), strict=True)) == connection.sql(sql).fetchall()


def test_a_scan_without_columns_counts_rows() -> None:
    data = table(1, 10, nulls=0.0, disorder=0, keys=1)
    assert run(Scan(()), data, [4]).num_rows == 10


def test_rows_without_a_time_are_counted() -> None:
    data = table(1, 300, nulls=0.2, disorder=0, keys=1)
    scan = Scan(ALL, "n > 0", None, None, Fragments(1000, "ts", "s", (), (Partial("count", "*", "c"),)))
    scanner = Scanner(scan, SCHEMA)
    (found,) = scanner.run(units(data, [100]))
    connection = duckdb.connect()
    connection.register("rows", data)
    (wanted,) = connection.sql("select count(*) from rows where n > 0 and ts is null").fetchall()
    assert (scanner.null_times,) == wanted
    assert scanner.schema.names == [PANE, "c"]
    assert found.num_rows


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("scan", "sql"),
    [
        (Scan(("n", "k"), "k <> 0"), "select n, k from rows where k <> 0"),
        (
            Scan(ALL, fragments=Fragments(60_000, "ts", "s", ("k",), (Partial("sum", "n", "s"),))),
            "select floor(ts / 60)::bigint * 60 as p, k, sum(n)::bigint from rows group by p, k",
        ),
        (
            Scan(("ts", "k"), latest_by=LatestBy(("k",), "ts")),
            "select max(ts), k from rows group by k",
        ),
    ],
)
def test_threads_share_a_p_stream(tmp_path: Path, threads: int, scan: Scan, sql: str) -> None:
    data = table(3, 500, nulls=0.0, disorder=10, keys=5)
    with PStreamWriter(tmp_path / "s", SCHEMA, unit_rows=70, threads=1) as writer:
        writer.append(data)
    stream = PStream(tmp_path / "s")
    found = scan_p_stream(stream, scan, threads=threads)
    equal(found, sql, data)
    if not scan.fragments and not scan.latest_by:
        assert scan_p_stream(stream, scan, 100, 300, threads=threads).num_rows == sum(
            k != 0 for k in data["k"][100:300].to_pylist()
        )


def _fragments(time: str, partial: Partial) -> Fragments:
    return Fragments(1000, time, "s", (), (partial,))


@pytest.mark.parametrize(
    ("scan", "words"),
    [
        (Scan(("n", "nn")), "no such columns"),
        (Scan(("n",), "uuid() = 'a'"), "cannot be computed"),
        (Scan(("x",), fragments=_fragments("x", Partial("count", "*", "c"))), "neither"),
        (Scan(("ts", "name"), fragments=_fragments("ts", Partial("sum", "name", "c"))), "of this type"),
    ],
)
def test_what_cannot_be_computed_is_refused_at_once(scan: Scan, words: str) -> None:
    with pytest.raises(InvalidUsageError, match=words):
        Scanner(scan, SCHEMA)


def test_many_fragments_are_returned_before_the_end() -> None:
    rows = table(3, 300, nulls=0.0, disorder=0, keys=5)
    scan = Scan(ALL, None, None, None, _fragments("ts", Partial("sum", "n", "s")))
    parts = [rows.slice(at, 20) for at in range(0, 300, 20)]
    whole = list(Scanner(scan, SCHEMA).scan_tables(parts))
    some = list(Scanner(scan, SCHEMA).scan_tables(parts, 1))
    assert (len(whole), len(some)) == (1, len(parts) + 1)
    sums = [pa.Table.from_batches(one).group_by(PANE).aggregate([("s", "sum")]) for one in (whole, some)]
    assert sums[0].sort_by(PANE).equals(sums[1].sort_by(PANE))
