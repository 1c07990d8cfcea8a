"""Checkpoints of graphs as Spark leaves them, made without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.checkpointing.graph_directory import GraphDirectory
from penstock.checkpointing.p_stream import PStream, PStreamWriter

SCHEMA = pa.schema({"n": pa.int64()})


def write_logs(place: Path, query: str, *, planned: Sequence[Sequence[object]], committed: int) -> None:
    """Write what Spark writes of micro-batches: for each planned one the sources' offsets, and commits."""
    home = place / "queries" / query
    for log in ("offsets", "commits"):
        (home / log).mkdir(parents=True, exist_ok=True)
    (home / "metadata").write_text(json.dumps({"id": f"id of {query}"}))
    for batch, offsets in enumerate(planned):
        lines = ["v1", json.dumps({"batchWatermarkMs": 0}), *(json.dumps(one) for one in offsets)]
        (home / "offsets" / str(batch)).write_text("\n".join(lines))
        (home / "offsets" / f".{batch}.crc").write_text("")
    for batch in range(committed + 1):
        (home / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def offset(stream: PStream, row: int) -> dict[str, object]:
    """Return an offset of a p-stream as its source tells it to Spark."""
    return {"offset": row, "identity": stream.identity}


def write_graph(place: Path, *, commits: int = 3, planned: int = 2, committed: int = 1) -> PStream:
    """Make the checkpoint of a graph whose p-stream got ten rows a commit, of which a batch reads ten."""
    location = place / "p-streams" / "numbers"
    with PStreamWriter(location, SCHEMA, threads=1) as writer:
        for commit in range(commits):
            writer.append(pa.table({"n": range(10 * commit, 10 * commit + 10)}, SCHEMA))
            writer.flush()
    stream = PStream(location)
    stream.subscribe("sums")
    if committed >= 0:
        stream.trim_from("sums", 10 * committed)
    write_logs(place, "ingest-numbers", planned=[["-"]] * commits, committed=commits - 1)
    offsets = [[offset(stream, 10 * batch + 10)] for batch in range(planned + 1)]
    write_logs(place, "results", planned=offsets, committed=committed)
    GraphDirectory(place).put(
        "graph",
        {
            "name": "sums",
            "shape": ["a", "b"],
            "queries": [
                {"name": "ingest-numbers", "writes": str(location)},
                {"name": "results", "writes": None},
            ],
            "streams": [
                {
                    "name": "numbers",
                    "location": str(location),
                    "own": True,
                    "readers": [{"name": "sums", "query": "results"}],
                }
            ],
            "explanation": "graph sums\n",
            "plan": {"graph": "sums"},
        },
    )
    return stream
