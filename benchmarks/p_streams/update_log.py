"""Disk and time of an update log: ``python -m benchmarks.p_streams.update_log``.

A writer appends updates of random keys; in *p-stream* to a p-stream without a key, in *update log* to one
with a key, which it compacts meanwhile. *most* is the greatest size of the directory after any commit, and
*in the end* its size after the writer has closed. *new reader* is how long a new reader takes for all rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine, print_and_save
from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter

RESULT = Path(__file__).parents[1] / "results" / "update_log.txt"
SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "v": pa.float64(), "gone": pa.bool_()})
KINDS: dict[str, dict[str, Any]] = {
    "p-stream": {},
    "update log": {"key": "k", "time": "t", "delete_when": "gone"},
}
CHUNK = 50_000


def size_of(place: Path) -> int:
    """Return the bytes of all files."""
    size = 0
    for path in place.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # a compaction has deleted it meanwhile
            continue
    return size


def measure(kind: str, updates: int, keys: int, place: Path) -> tuple[float, int, int, int, float]:
    """Return the seconds of appending, the greatest and the last size, a new reader's rows and seconds."""
    rng = np.random.default_rng(3)
    most = 0
    begin = time.perf_counter()
    with PStreamWriter(place, SCHEMA, **KINDS[kind]) as writer:
        for first in range(0, updates, CHUNK):
            count = min(CHUNK, updates - first)
            columns = [
                rng.integers(0, keys, count), np.arange(first, first + count), rng.random(count).round(3),
                rng.random(count) < 0.01,
            ]  # fmt: skip
            writer.append(pa.table(columns, SCHEMA))
            writer.flush()
            most = max(most, size_of(place))
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    rows = PStreamReader(place).read()
    return seconds, most, size_of(place), rows.num_rows, time.perf_counter() - begin


def report(updates: int, keys: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "python -m benchmarks.p_streams.update_log"
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.0f} at the begin"
    yield f"{updates:,} updates of {keys:,} keys, durable every {CHUNK:,}"
    yield ""
    yield (
        f"{'':<12}{'M updates/s':>12}{'most, MB':>10}{'in the end, MB':>16}{'rows':>12}{'new reader, s':>15}"
    )
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as directory:
            seconds, most, last, rows, reading = measure(kind, updates, keys, Path(directory, "s"))
        yield (
            f"{kind:<12}{updates / seconds / 1e6:>12.2f}{most / 1e6:>10.1f}{last / 1e6:>16.1f}{rows:>12,}"
            f"{reading:>15.2f}"
        )


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    print_and_save(report(arguments.updates, arguments.keys), arguments.out)


if __name__ == "__main__":
    main()
