"""The queries of (Scabbard Table 3) as DuckDB has them, window for window, and their streams."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.queries import CAMPAIGNS
from benchmarks.streams import DATA, REAL, advertisements, bids
from penstock.checkpointing.p_stream import PStreamReader

_S = 1_000_000


def slowly(table: pa.Table, time: str, seconds: int) -> pa.Table:
    """Return what a generator made, over so many seconds."""
    at = table[time].to_numpy().astype("int64")
    first, last = int(at[0]), int(at[-1])
    stretched = first + (at - first) * (seconds * _S) // max(1, last - first)
    place = table.column_names.index(time)
    return table.set_column(place, time, pa.array(stretched, table.schema.field(time).type))


def stream_of(stream: str, rows: int) -> pa.Table | None:
    """Return the first rows of a stream; None where its file is missing."""
    if stream == "ysb":
        return slowly(advertisements(rows, seed=3), "event_time", 47)
    if stream == "nexmark":
        return slowly(bids(rows, seed=3), "date_time", 75)
    file = REAL[stream]
    return file.read(DATA).slice(0, rows) if (DATA / file.file).exists() else None


def lines_of(stream: str, table: pa.Table) -> list[str]:
    """Return the lines of a real file that are the rows of a table, or JSON of generated rows."""
    if stream in REAL:
        return (DATA / REAL[stream].file).read_text().splitlines()[: table.num_rows]
    return [json.dumps(row, default=str) for row in table.to_pylist()]


def campaigns(table: pa.Table) -> pa.Table:
    """Return the campaigns of all advertisements."""
    ads = sorted(set(table["ad_id"].to_pylist()))
    names = [f"campaign {number // 10}" for number in range(len(ads))]
    return pa.table({"ad_id": ads, "campaign_id": names}, CAMPAIGNS)


@dataclass(frozen=True)
class Windows:
    """Windows as SQL: those that are closed, as table ``closed`` of rows with their window's ``start``.

    Parameters
    ----------
    time : str
        Microseconds, as an expression.
    size, slide : int
        In seconds; the size is a multiple of the slide.
    rows : str
        What is put into windows.
    """

    time: str
    size: int
    slide: int
    rows: str

    def sql(self, select: str) -> str:
        """Return `select` over ``closed``."""
        size, slide = self.size * _S, self.slide * _S
        return f"""
            WITH r AS (SELECT *, {self.time} AS us FROM ({self.rows})),
            newest AS (SELECT max(us) // {slide} * {slide} AS watermark FROM r),
            closed AS (
                SELECT *, unnest(range(
                    us // {slide} * {slide} - {size - slide},
                    least(us // {slide} * {slide}, watermark - {size}) + 1,
                    {slide}
                )) AS start FROM r, newest
            ) {select}"""


_SECONDS = f"timestamp * {_S}"
_SEGMENT = "highway, direction, position // 5280 AS segment"
_VEHICLES = Windows(_SECONDS, 30, 1, "FROM linear_road").sql(
    f"SELECT start, vehicle, {_SEGMENT}, count(*) AS seen FROM closed GROUP BY ALL"
)
_BIDS = Windows("epoch_us(date_time)", 60, 1, "FROM nexmark").sql(
    "SELECT start, auction, count(*) AS bids FROM closed GROUP BY ALL"
)

_OVERALL = Windows(_SECONDS, 3600, 1, "FROM smart_grid").sql(
    "SELECT start, avg(value::DOUBLE) AS load FROM closed GROUP BY ALL"
)
_PLUGS = Windows(_SECONDS, 128, 1, "FROM smart_grid").sql(
    "SELECT start, plug, household, house, avg(value::DOUBLE) AS load FROM closed GROUP BY ALL"
)

EXPECTED = {
    "CM1": Windows(_SECONDS, 60, 1, "FROM cluster").sql(
        "SELECT start, category, sum(cpu::DOUBLE) AS cpu FROM closed GROUP BY ALL"
    ),
    "CM2": Windows(_SECONDS, 60, 1, "FROM cluster WHERE eventType = 1").sql(
        'SELECT start, jobId AS "jobId", avg(cpu::DOUBLE) AS cpu FROM closed GROUP BY ALL'
    ),
    "SG1": _OVERALL,
    "SG2": _PLUGS,
    # Windows that end together; the result's window is the last second of both.
    "SG3": f"""
        SELECT plugs.start + {127 * _S} AS start, house, count(*) AS plugs
        FROM ({_PLUGS}) AS plugs JOIN ({_OVERALL}) AS overall
        ON plugs.start + {128 * _S} = overall.start + {3600 * _S} AND plugs.load > overall.load
        GROUP BY ALL""",
    "LRB1": Windows(_SECONDS, 300, 1, "FROM linear_road").sql(
        f"SELECT start, {_SEGMENT}, avg(speed) AS speed FROM closed GROUP BY ALL HAVING avg(speed) < 40"
    ),
    "LRB2": _VEHICLES,
    "LRB3": f"""
        SELECT start, highway, direction, segment, count(*) AS vehicles FROM ({_VEHICLES}) GROUP BY ALL""",
    "YSB": Windows(
        "epoch_us(event_time)", 10, 10, "FROM ysb JOIN campaigns USING (ad_id) WHERE event_type = 'view'"
    ).sql("SELECT start, campaign_id, count(*) AS views FROM closed GROUP BY ALL"),
    # The window of the result is the last second.
    "NQ5": f"""
        SELECT start + {59 * _S} AS start, auction, bids, bids AS most FROM ({_BIDS})
        QUALIFY bids = max(bids) OVER (PARTITION BY start)""",
    "SM": Windows("epoch_us(timestamp)", 60, 1, "FROM sensors").sql(
        "SELECT start, avg(mf01) AS mf01, avg(mf02) AS mf02, avg(mf03) AS mf03 FROM closed GROUP BY ALL"
    ),
}
"""The meaning of each query; `start` is the start of the window in microseconds."""


def expected(query: str, tables: dict[str, pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of a query's closed windows."""
    return rows_of(EXPECTED[query], tables)


def rows_of(sql: str, tables: dict[str, pa.Table]) -> list[dict[str, Any]]:
    """Return what DuckDB makes of tables."""
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table().to_pylist()


def found(place: Path) -> list[dict[str, Any]]:
    """Return the rows of a sink that is a p-stream."""
    return starting(PStreamReader(place).read())


def starting(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows whose window is named by its start, in microseconds."""
    start = pc.struct_field(table["window"], "start").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    rows: list[dict[str, Any]] = table.drop_columns("window").append_column("start", start).to_pylist()
    return rows


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Compare rows, window for window; floats to nine digits, for theirs are summed in another order."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in sorted(row) if not isinstance(row[name], float))

    ours, theirs = sorted(ours, key=key), sorted(theirs, key=key)
    assert [key(row) for row in ours] == [key(row) for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value == other[name] or math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-12), name


def cut(table: pa.Table, draw: random.Random, pieces: int) -> list[pa.Table]:
    """Cut a table at random places; some pieces may be empty."""
    places = sorted(draw.randrange(table.num_rows) for _ in range(pieces - 1))
    bounds = [0, *places, table.num_rows]
    return [table.slice(begin, end - begin) for begin, end in pairwise(bounds)]
