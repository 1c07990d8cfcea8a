"""Steps of pipelines for tests of both engines, over the p-stream ``in`` of `updates`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "v": pa.float64()})
AGGREGATES: dict[str, Any] = {
    "group_by": ["k"],
    "aggregates": {"n": "count(*)", "mean": "avg(v)", "newest": "last(v)"},
    "persist": "never",
}
WINDOWS: dict[str, Any] = {
    "window": {"time": "t", "unit": "s", "size": "60 s", "slide": "20 s", "watermark_delay": "5 s"},
    "group_by": ["k"],
    "aggregates": {"n": "count(*)", "mean": "avg(v)"},
    "persist": "never",
}
STEPS: dict[str, dict[str, Any]] = {
    "queue": {"queue": {"key": "k", "time": "t", "policy": "fifo", "buckets": 2}},
    "budget": {"queue": {"key": "k", "time": "t", "policy": "fifo", "budget": 4, "buckets": 2}},
    "windows": WINDOWS,
    **{
        name: {"window": {"time": "t", "unit": "s", "watermark_delay": "5 s"} | window} | AGGREGATES
        for name, window in {
            "lazy windows": {"size": "60 s", "slide": "20 s", "mode": "lazy"},
            "eager windows": {"size": "20 s", "mode": "eager"},
            "windows of rows": {"size": "10 rows", "slide": "5 rows"},
            "sessions": {"session": "8 s"},
            "windows with deletes": {"size": "20 s", "delete_when": "v < 30"},
        }.items()
    },
    "windows joined": WINDOWS
    | {"window_join": {"by_window": {"aggregates": {"most": "max(n)"}}, "condition": "n = most"}},
    "windows by window": WINDOWS | {"by_window": {"aggregates": {"groups": "count(*)", "all": "sum(n)"}}},
    "transactions": {"database": {"file": "tally.py", "procedure": "add", "keep": ["k", "t"], "buckets": 2}},
}
TALLY = """\
import penstock
from penstock import abort

tally = penstock.database("tally")
tally.table("sums", "k string, n bigint NOT NULL, total double NOT NULL", key="k", partition_by="k")


@tally.procedure(returns="n bigint, total double")
def add(e, sums):
    if e.v > 90.0:
        abort("high")
    if e.k not in sums:
        sums.insert(k=e.k, n=0, total=0.0)
    row = sums[e.k]
    row.n += 1
    row.total += e.v
    return row.n, row.total
"""


def updates(rows: int, first: int) -> pa.Table:
    draws = random.Random(first)
    return pa.table(
        {
            "k": [f"k{draws.randrange(12)}" for _ in range(rows)],
            "t": list(range(first, first + rows)),
            "v": [float(draws.randrange(100)) for _ in range(rows)],
        },
        SCHEMA,
    )


def tally_serially(*parts: pa.Table) -> list[dict[str, Any]]:
    """Return the results of `TALLY`, one row after the other."""
    sums: dict[str, tuple[int, float]] = {}
    results = []
    for row in (row for part in parts for row in part.to_pylist()):
        result: dict[str, Any] = {"k": row["k"], "t": row["t"], "n": None, "total": None, "rejected": "high"}
        if row["v"] <= 90:
            count, total = sums.get(row["k"], (0, 0.0))
            sums[row["k"]] = count + 1, total + row["v"]
            result |= {"n": count + 1, "total": total + row["v"], "rejected": None}
        results.append(result)
    return results


def steps_at(place: Path, steps: dict[str, Any]) -> dict[str, Any]:
    """Return steps with their files in a directory."""
    if "database" not in steps:
        return steps
    place.mkdir(exist_ok=True)
    (place / "tally.py").write_text(TALLY)
    return {"database": steps["database"] | {"file": str(place / "tally.py")}}
