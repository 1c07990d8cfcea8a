"""Checkpoints of graphs as Spark leaves them, made without Spark."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.spark_ext.border.buckets import spark_hash
from penstock.state_store.bucket_store import Pointer

SCHEMA = pa.schema({"n": pa.int64()})


def write_logs(place: Path, query: str, *, planned: Sequence[Sequence[object]], committed: int) -> None:
    """Write Spark's logs of micro-batches: the sources' offsets of each planned one, and commits."""
    home = place / "queries" / query
    for log in ("offsets", "commits"):
        (home / log).mkdir(parents=True, exist_ok=True)
    (home / "metadata").write_text(json.dumps({"id": f"id of {query}"}))
    for batch, offsets in enumerate(planned):
        lines = ["v1", json.dumps({"batchWatermarkMs": 0}), *(json.dumps(one) for one in offsets)]
        (home / "offsets" / str(batch)).write_text("\n".join(lines))
        (home / "offsets" / f".{batch}.tmp").write_text("")
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


def write_pointers(
    place: Path,
    query: str,
    versions: Sequence[Mapping[int, Pointer | None]],
    *,
    partitions: int = 2,
    operator: int = 0,
    fields: Sequence[tuple[str, str]] = (("version", "long"), ("file_id", "string")),
    waits: bool = False,
) -> Path:
    """Write Spark's state: for each version, the labels that it put or removed. Return its directory."""
    home = place / "queries" / query / "state" / str(operator)
    (home / "_metadata").mkdir(parents=True, exist_ok=True)
    facts = {
        "operatorInfo": {"operatorId": operator, "operatorName": "applyInPandasWithState"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    (home / "_metadata" / "metadata").write_text("v1\n" + json.dumps(facts))
    group = {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    value: list[dict[str, object]] = [{"name": "groupState", "type": group}]
    value += [{"name": "timeoutTimestamp", "type": "integer"}] if waits else []
    schemas = [
        {"type": "struct", "fields": some} for some in ([{"name": "bucket", "type": "integer"}], value)
    ]
    content = _utf("v2") + b"".join(struct.pack(">i", 1) + _utf(json.dumps(one)) for one in schemas)
    for partition in range(partitions):
        (home / str(partition)).mkdir(exist_ok=True)
        for number, put in enumerate(versions, 1):
            mine = {label: at for label, at in put.items() if _partition(label, partitions) == partition}
            write_delta(home / str(partition) / f"{number}.delta", list(mine.items()), waits=waits)
    (home / "0" / "_metadata").mkdir(exist_ok=True)
    (home / "0" / "_metadata" / "schema").write_bytes(content)
    return home


def write_delta(
    path: Path, pairs: Sequence[tuple[int, Pointer | None]], *, waits: bool = False, checksums: bool = False
) -> None:
    """Write the puts and removals of a micro-batch, optionally with checksums of rows."""
    rows = b"".join(_row(label, pointer, waits=waits, checksums=checksums) for label, pointer in pairs)
    path.write_bytes(_blocks(rows + struct.pack(">i", -1)))


def _partition(label: int, partitions: int) -> int:
    return int(spark_hash(np.array([label], np.int64))[0]) % partitions


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _row(label: int, pointer: Pointer | None, *, waits: bool, checksums: bool) -> bytes:
    key = struct.pack("<Qii", 0, label, 0)
    checksum = struct.pack("<I", 0x1234567) if checksums else b""
    if pointer is None:
        key = checksum + key
        return struct.pack(">i", len(key)) + key + struct.pack(">i", -1)
    name = pointer.file_id.encode()
    group = struct.pack("<QqII", 0, pointer.version, len(name), 24) + name + bytes(-len(name) % 8)
    more = struct.pack("<q", -1) if waits else b""
    value = checksum + struct.pack("<QII", 0, len(group), 16 + len(more)) + more + group
    return struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value


def _blocks(content: bytes, size: int = 100) -> bytes:
    """Return content in blocks of LZ4 as Java writes them, every other one compressed, and an empty one."""
    made = b""
    for at in range(0, len(content), size):
        plain = content[at : at + size]
        coded = pa.Codec("lz4_raw").compress(plain).to_pybytes() if at // size % 2 else plain
        checksum = xxhash.xxh32_intdigest(plain, 0x9747B28C) & 0x0FFFFFFF
        token = 0x20 if at // size % 2 else 0x10
        made += struct.pack("<8sBiiI", b"LZ4Block", token, len(coded), len(plain), checksum) + coded
    return made + struct.pack("<8sBiiI", b"LZ4Block", 0x10, 0, 0, 0)
