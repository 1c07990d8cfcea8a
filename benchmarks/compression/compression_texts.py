"""Compression of service logs and similar texts, and of columns that are encoded once, without a chooser.

    python -m benchmarks.compression.compression_texts [--rows N] [--rounds N] [--quick] [--save]

In memory, on one core, CPU time; contenders take turns for several rounds, and a speed is the median. MB are
10**6 bytes of the texts, and ratios are of these, not of Arrow's offsets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.compression import texts
from benchmarks.compression.peers import Ours, contenders, one_core
from benchmarks.harness import machine, median
from penstock.compression import decode, encode

RESULT = Path(__file__).parents[1] / "results" / "compression_texts.txt"
_TITLE = f"{'':20} {'ratio':>7} {'encode':>8} {'decode':>8}   MB/s"


_CASCADES = (
    *("tokens>base_delta>ns", "fsst>base_delta>ns", "fsst>lz4", "fsst>zstd"),
    *("lz4", "zstd"),
)
"""The contenders that encode texts with every goal."""


class _Always:
    """A fixed cascade."""

    def __init__(self, cascade: str) -> None:
        self.name = cascade

    def encode(self, _: str, array: pa.Array[Any]) -> bytes:
        """Return the block."""
        return encode(array, self.name)

    def decode(self, coded: bytes) -> pa.Array[Any]:
        """Return the array."""
        return decode(coded)

    def size(self, coded: bytes) -> int:
        """Return the bytes of the block."""
        return len(coded)


class _Once:
    """A call of `encode` without a chooser, which decides each time."""

    name = "once"

    def encode(self, _: str, array: pa.Array[Any]) -> bytes:
        """Return the block."""
        return encode(array)

    def decode(self, coded: bytes) -> pa.Array[Any]:
        """Return the array."""
        return decode(coded)

    def size(self, coded: bytes) -> int:
        """Return the bytes of the block."""
        return len(coded)


def compare(array: pa.Array[Any], size: int, rounds: int, only: list[str] | None) -> Iterator[str]:
    """Return a line for each contender that codes a column."""
    those = [one for one in contenders(only) if one.takes(array.type)]
    every: list[Any] = [*those, _Once(), *map(_Always, _CASCADES)]
    coded = {one.name: one.encode("c", array) for one in every}
    for one in every:
        decoded = one.decode(coded[one.name])
        assert pa.chunked_array([decoded.cast(array.type)]).equals(pa.chunked_array([array]))
    took: dict[str, tuple[list[float], list[float]]] = {one.name: ([], []) for one in every}
    for _ in range(rounds):
        for one in every:
            encoding, decoding = took[one.name]
            encoding.append(_seconds(partial(one.encode, "c", array)))
            decoding.append(_seconds(partial(one.decode, coded[one.name])))
    for one in every:
        encode_s, decode_s = map(median, took[one.name])
        line = f"{one.name:20} {size / one.size(coded[one.name]):7.2f}"
        line += f" {size / 1e6 / encode_s:8.0f} {size / 1e6 / decode_s:8.0f}"
        yield f"{line}   {one.cascade('c') if isinstance(one, Ours) else ''}".rstrip()


def _seconds(work: Callable[[], Any]) -> float:
    begin = process_time()
    work()
    return process_time() - begin


def numbers_once(rows: int, rounds: int) -> Iterator[str]:
    """Return the lines of the table of numbers that are coded by one call without a chooser."""
    pick = np.random.default_rng(1)
    columns = {
        "times": np.cumsum(pick.integers(0, 2000, rows)),
        "random": pick.integers(0, 1 << 40, rows),
        "small": pick.integers(0, 5000, rows),
        "prices": np.round(pick.normal(100, 5, rows), 2),
        "zipf": np.minimum(pick.zipf(1.3, rows), 100_000),
        "runs": np.repeat(pick.integers(0, 1000, rows // 20 + 1), 20)[:rows],
        "codes, int16": pick.choice([200, 404, 500], rows, p=[0.9, 0.06, 0.04]).astype(np.int16),
    }
    yield f"\n{rows} numbers, coded once without a chooser\n{_TITLE}"
    for name, values in columns.items():
        array = pa.array(values)
        block = encode(array)
        assert decode(block).equals(array)
        encode_s = median([_seconds(partial(encode, array)) for _ in range(rounds)])
        decode_s = median([_seconds(partial(decode, block)) for _ in range(rounds)])
        speeds = f"{array.nbytes / 1e6 / encode_s:8.0f} {array.nbytes / 1e6 / decode_s:8.0f}"
        yield f"{name:20} {array.nbytes / len(block):7.2f} {speeds}"


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="these contenders only")
    parser.add_argument("--quick", action="store_true", help="few rows, one round: does it run?")
    parser.add_argument("--save", action="store_true", help="write the result's file too")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.rounds = 5000, 1
    one_core()
    shown = " ".join(text for text in sys.argv[1:] if text != "--save")
    lines = [
        f"python -m benchmarks.compression.compression_texts {shown}".rstrip(),
        "",
        f"{machine()}; {arguments.rows} rows, {arguments.rounds} rounds; one core, CPU time",
    ]
    for name, array in texts.columns(arguments.rows).items():
        size = array.buffers()[2].size
        lines += [f"\n{name}: {size / 1e6:.1f} MB, such as {array[0]}", _TITLE]
        lines += compare(array, size, arguments.rounds, arguments.only)
    lines += numbers_once(arguments.rows, arguments.rounds)
    print("\n".join(lines))
    if arguments.save:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
