"""Parts of compression by themselves: codecs, compiling. See `benchmarks.compression.compression`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.harness import REPOSITORY, median, scratch

_VALUES = 1 << 18
Stream = Any
"""An array of signed integers."""


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the CPU seconds of some work, the median of several times after one to warm up."""
    work()
    took = []
    for _ in range(repeats):
        begin = process_time()
        work()
        took.append(process_time() - begin)
    return median(took)


def _streams(count: int) -> dict[str, list[Stream]]:
    """Return streams of several kinds, each in several widths."""
    from penstock.compression.kernels.bits import seal

    generator = np.random.default_rng(1)
    small = generator.integers(0, 100, count)
    outliers = np.where(generator.random(count) < 0.01, generator.integers(0, 120, count), small % 8)
    rising = np.cumsum(generator.integers(0, 2, count)) % 120
    runs = np.repeat(small, generator.integers(1, 20, count))[:count]
    decimals = np.round(generator.random(count) * 1000, 2)
    letters = generator.integers(97, 123, 64 * 64, dtype=np.int8).reshape(64, 64)
    numbers = {
        **{"small": small, "zeros": small * 0, "outliers": outliers, "rising": rising},
        **{"runs": runs, "fives": small // 5 * 5},
    }
    return {
        **{
            name: [seal(values.astype(kind)) for kind in ("i1", "i2", "i4", "i8")]
            for name, values in numbers.items()
        },
        "floats": [seal(decimals.astype(np.float32).view(np.int32)), seal(decimals.view(np.int64))],
        "text": [seal(letters[generator.integers(0, 64, count // 64)].reshape(-1))],
    }


_KINDS: dict[str, tuple[str, ...]] = {
    "plain": ("small",),
    "constant": ("zeros",),
    "ns": ("small",),
    "base_delta>ns": ("small", "rising"),
    "delta>ns": ("rising",),
    "delta_of_delta>ns": ("rising",),
    "xor>ns": ("floats",),
    "base_delta>patched_ns": ("outliers", "small"),
    "delta>patched_ns": ("rising",),
    "ns_words": ("small",),
    "base_delta": ("small", "rising"),
    "delta": ("rising", "small"),
    "multiple": ("fives",),
    "xor": ("floats",),
    "run_length": ("runs",),
    "dictionary": ("small", "runs", "fives"),
    "variable_byte": ("small",),
    "simple8b": ("small", "runs"),
    "decimal_2": ("floats",),
    "quantized_0.005": ("floats",),
    "pcodec": ("small", "rising"),
    "snappy": ("small", "runs", "text"),
    "lz4": ("small", "runs", "text"),
    "zstd": ("small", "runs", "text"),
    "zstd_9": ("small", "runs", "text"),
    "zstd_19": ("small", "text"),
}


def _line(rows: list[tuple[int, float]]) -> tuple[float, float]:
    """Fit nanoseconds per value and per byte to the measurements."""
    sizes, times = (np.array(numbers, float) for numbers in zip(*rows, strict=True))
    weights = 1.0 / np.maximum(times, 0.02)
    columns = np.stack([np.ones_like(sizes), sizes]).T
    value, byte = np.linalg.lstsq(columns * weights[:, None], times * weights, rcond=None)[0]
    if value < 0 or byte < 0:
        # One of both alone.
        value, byte = (0.0, float(np.median(times / sizes))) if value < 0 else (float(np.median(times)), 0.0)
    return float(value), float(byte)


def codec_costs(*, quick: bool = False) -> Iterator[str]:
    """Measure the constants of the chooser; return the lines of their table.

    The time of a transform excludes its child, which is not encoded.
    """
    from penstock.compression.abc import UnfitError
    from penstock.compression.choice.costs import COSTS, kind_of
    from penstock.compression.codecs import decode_stream
    from penstock.compression.codecs.registry import Transform, encode_stream, find_codec

    streams = _streams(2048 if quick else _VALUES)
    found: dict[str, list[tuple[int, float, float]]] = {}
    details = []
    for name, kinds in _KINDS.items():
        codec = find_codec(name)
        repeats = 1 if quick or name in ("zstd_19", "pcodec") else 7
        for kind in kinds:
            for values in streams[kind]:
                try:
                    node = (
                        encode_stream(values, (name, "plain"))
                        if isinstance(codec, Transform)
                        else codec.encode(values)
                    )
                except UnfitError:
                    continue  # an optional library is not there
                work = codec.split if isinstance(codec, Transform) else codec.encode
                encode = seconds(partial(work, values), repeats) / values.size * 1e9
                decode = seconds(partial(decode_stream, node), repeats) / values.size * 1e9
                found.setdefault(kind_of(name), []).append((values.dtype.itemsize, encode, decode))
                details.append(f"{name:24} {kind:10} {values.dtype!s:6} {encode:9.2f} {decode:9.2f}")
    yield "\nnanoseconds to encode a value, and a byte of it; to decode them: nearest to the streams below"
    yield "COSTS: dict[str, Cost] = {"
    for key, known in COSTS.items():
        rows = found.get(key, [])
        if rows:
            times = (*_line([(size, one) for size, one, _ in rows]), *_line([(s, two) for s, _, two in rows]))
            line = f'    "{key}": Cost({", ".join(f"{time:.2g}" for time in times)}),'
            yield f"{line:52}  # is {', '.join(f'{time:g}' for time in known)}"
    yield "}"
    yield f"\n{'codec':24} {'stream':10} {'type':6} {'encode':>9} {'decode':>9}   nanoseconds a value"
    yield from details


def compile_times(*, quick: bool = False) -> Iterator[str]:
    """Return the lines of a table: first use with an empty cache of kernels, and with a full one.

    `quick` does not empty the cache.
    """
    with scratch("kernels") as cache:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        if not quick:
            environment["NUMBA_CACHE_DIR"] = cache
        runs = []
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.compression.compression_parts"],
                cwd=REPOSITORY,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        files = [path for path in Path(cache).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    yield f"\n{'CPU seconds':30} {'empty cache':>12} {'kernels':>8} {'full cache':>12} {'kernels':>8}"
    for (step, took, kernels), (_, again, still) in zip(*runs, strict=True):
        yield f"{step:30} {took:12.2f} {kernels:8} {again:12.2f} {still:8}"
    totals = [(sum(row[1] for row in run), sum(row[2] for row in run)) for run in runs]
    yield f"{'sum':30} {totals[0][0]:12.2f} {totals[0][1]:8} {totals[1][0]:12.2f} {totals[1][1]:8}"
    yield f"the cache: {len(files)} files, {size / 1e6:.1f} MB"


def first_use(rows: int = 20_000) -> list[tuple[str, float, int]]:
    """Code and decode a part of each generated stream with each goal.

    Return each step with its seconds and the kernels that were compiled in it.
    """
    import numba.core.event as events

    from benchmarks.streams import GENERATED

    class Count(events.Listener):  # type: ignore[misc]  # numba ships no types
        kernels = 0

        def on_start(self, event: Any) -> None:
            self.kernels += 1

        def on_end(self, event: Any) -> None:
            pass

    count = Count()
    events.register("numba:compile", count)
    steps = []

    def step(name: str, work: Callable[[], Any]) -> None:
        begin, before = process_time(), count.kernels
        work()
        steps.append((name, process_time() - begin, count.kernels - before))

    def load() -> None:
        import penstock.compression.table  # noqa: F401  # only loaded

    step("import", load)
    from penstock.compression import BlockReader, Chooser, encode_table

    for name in ("market", "ysb", "nexmark"):
        table = GENERATED[name](rows, 1)
        # "small" takes long to decide about text, which is not what is measured here.
        for goal in ("fast", "balanced", "small")[: 3 if name == "market" else 2]:
            chooser = Chooser(goal)
            coded: list[bytes] = []
            step(
                f"encode {name}, {goal}",
                lambda table=table, chooser=chooser, coded=coded: coded.append(  # type: ignore[misc]  # bound per turn
                    encode_table(table, chooser=chooser)
                ),
            )
            step(f"decode {name}, {goal}", lambda coded=coded: BlockReader(coded[0]).read())  # type: ignore[misc]  # bound per turn
    return steps


if __name__ == "__main__":
    print(json.dumps(first_use()))
