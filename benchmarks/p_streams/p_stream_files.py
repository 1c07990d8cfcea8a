"""Compare layouts of a p-stream's commits on disk: new files, one growing file, or a pool of reused files.

``python -m benchmarks.p_streams.p_stream_files`` writes the table in ``results/p_stream_files.txt``; TMPDIR
says on which disk. Each way makes every commit durable before the next: new files by `penstock._durable`, the
others by fdatasync. The second table is what it costs to begin each p-unit, or each segment, at a multiple of
256 KiB, as a pool of files would.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, print_and_save, scratch
from benchmarks.streams import DATA, GENERATED, REAL, load
from penstock import _durable
from penstock.checkpointing.p_stream import Commit, Segment, Unit
from penstock.checkpointing.p_stream.log_codec import to_bytes
from penstock.compression import Chooser, encode_table

SIZES = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
ALIGNMENT = 256 << 10
UNIT_ROWS = 65_536
SEGMENT_BYTES = 32 << 20
RESULT = REPOSITORY / "benchmarks" / "results" / "p_stream_files.txt"

_POOL_BYTES = 64 << 20


def appended(directory: Path, content: bytes) -> Iterator[None]:
    """Append to one file that grows."""
    descriptor = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        while True:
            _write(descriptor, content)
            os.fdatasync(descriptor)
            yield
    finally:
        os.close(descriptor)


def pooled(directory: Path, content: bytes) -> Iterator[None]:
    """Write over a file that was allocated and written before, from its begin again when it is full."""
    descriptor = os.open(directory / "pool", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(_POOL_BYTES // (1 << 20)):
            _write(descriptor, bytes(1 << 20))
        os.fsync(descriptor)
        while True:
            os.lseek(descriptor, 0, os.SEEK_SET)
            for _ in range(_POOL_BYTES // (len(content) + -len(content) % ALIGNMENT)):
                _write(descriptor, content)
                os.fdatasync(descriptor)
                yield
                os.lseek(descriptor, -len(content) % ALIGNMENT, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def published(directory: Path, content: bytes, *, direct_io: bool = False) -> Iterator[None]:
    """Publish a new file for each."""
    number = 0
    while True:
        _durable.publish(directory / f"{number:020}.segment", content, direct_io=direct_io)
        number += 1
        yield


def committed(directory: Path, content: bytes) -> Iterator[None]:
    """Publish a segment and the entry of the log that names it: a p-stream's commit."""
    _durable.make_directory(directory / "log")
    number = 0
    while True:
        name = f"writer-{number:012}-0000-{number:032x}.segment"
        _durable.publish(directory / name, content)
        segment = Segment(name, (Unit(0, len(content), UNIT_ROWS),))
        entry = Commit("writer", number, "0" * 32, number * UNIT_ROWS, 0, (segment,), {"source": number})
        _durable.publish(directory / "log" / f"{number:020}.entry", to_bytes(entry))
        number += 1
        yield


WAYS: dict[str, Callable[[Path, bytes], Iterator[None]]] = {
    "appended to a growing file": appended,
    "over a pooled file": pooled,
    "a new file": published,
    "a new file, direct I/O": partial(published, direct_io=True),
    "a new file and its entry": committed,
}


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def milliseconds(way: Callable[[Path, bytes], Iterator[None]], size: int, rounds: int) -> tuple[float, float]:
    """Return what the quickest tenth of commits stays below, and the median."""
    content = os.urandom(size)
    with scratch("files") as directory:
        steps = way(Path(directory), content)
        next(steps)
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            next(steps)
            times.append((time.perf_counter() - begin) * 1000)
        steps.close()  # type: ignore[attr-defined]  # a generator
    return sorted(times)[len(times) // 10], statistics.median(times)


def unit_sizes(table: pa.Table, unit_rows: int) -> list[int]:
    """Return the bytes of a table's p-units, compressed as a writer does."""
    chooser = Chooser()
    return [
        len(encode_table(table.slice(at, unit_rows), chooser=chooser))
        for at in range(0, table.num_rows - unit_rows + 1, unit_rows)
    ]


def aligned(sizes: list[int]) -> float:
    """Return the bytes of pieces that each begin at a multiple, by their own bytes."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes) / sum(sizes)


def segments(sizes: list[int]) -> list[int]:
    """Return the bytes of segments that p-units of these sizes fill, one after the other."""
    found, size = [], 0
    for one in sizes:
        size += one
        if size >= SEGMENT_BYTES:
            found.append(size)
            size = 0
    return [*found, size] if size else found


def report(
    rounds: int, rows: int, data: Path, *, sizes: Sequence[int] = SIZES, unit_rows: int = UNIT_ROWS
) -> Iterator[str]:
    """Return the lines of the result."""
    yield "python -m benchmarks.p_streams.p_stream_files"
    yield ""
    yield f"{machine()}; load {os.getloadavg()[0]:.0f} at the begin"
    yield ""
    yield "milliseconds a commit, durable: the quickest tenth (median)"
    yield f"{'':<28}" + "".join(f"{_size(size):>18}" for size in sizes)
    for name, way in WAYS.items():
        cells = [milliseconds(way, size, rounds) for size in sizes]
        yield f"{name:<28}" + "".join(f"{quick:>10.2f} {f'({median:.1f})':>7}" for quick, median in cells)
    yield ""
    yield f"p-units of {unit_rows:,} rows, and bytes on disk by their own bytes where each begins at 256 KiB"
    yield (
        f"{'stream':<16}{'raw KiB':>10}{'coded KiB':>11}{'each p-unit':>14}{'commits of 16':>16}"
        f"{'full segments':>16}"
    )
    for name in (*REAL, *GENERATED):
        stream = load(name, data, rows=rows)
        if stream is None:
            continue
        units = unit_sizes(stream.long, unit_rows)
        raw = stream.long.nbytes / stream.long.num_rows * unit_rows
        commits = [sum(units[at : at + 16]) for at in range(0, len(units), 16)]
        mean = statistics.fmean(units)
        yield (
            f"{name:<16}{raw / 1024:>10,.0f}{mean / 1024:>11,.0f}{aligned(units):>14.2f}"
            f"{aligned(commits):>16.2f}{aligned(segments(units * 200)):>16.2f}"
        )


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    print_and_save(report(arguments.rounds, arguments.rows, arguments.data), arguments.out)


if __name__ == "__main__":
    main()
