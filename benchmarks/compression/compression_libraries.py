"""Compare `zstandard` and `lz4` with Arrow's own Zstandard and LZ4, and with our cascades.

    python -m benchmarks.compression.compression_libraries [--quick] [--save]

``pip install lz4`` for it. One core, CPU time, in memory; the contenders of a table take turns, and each
figure is the median of several rounds.

- *contexts*: frames of 65,536 values, by Arrow, which makes a context for each frame, and by `zstandard`,
  whose contexts are kept.
- *dictionaries*: the columns of small p-units, such as deltas of state are, each by itself: by Zstandard, by
  Zstandard with a dictionary that was trained for each column on 200 units before, and as blocks, the first
  of which are those that p-units have. A reader would need the dictionary, too; its bytes are not counted.
- *lz4 hc*: frames that are read often, by LZ4 and by LZ4 HC, beside Zstandard and, of text, our tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.compression import texts
from benchmarks.compression.peers import one_core
from benchmarks.harness import machine, median
from penstock.compression import decode, encode
from penstock.compression.codecs.agnostic import FRAME

RESULT = Path(__file__).parents[1] / "results" / "compression_libraries.txt"
Work = Callable[[], Any]


def in_turns(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Return the CPU seconds of each work, the median of some rounds after one to warm up."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begin = process_time()
            work()
            if number:
                took[name].append(process_time() - begin)
    return {name: median(times) for name, times in took.items()}


def streams(rows: int) -> dict[str, Any]:
    """Return bytes of several kinds."""
    pick = np.random.default_rng(1)
    log = texts.columns(rows // 8)["log"]
    return {
        "int8, ten values": pick.integers(0, 10, rows).astype(np.int8),
        "int16, normal": np.clip(pick.normal(0, 300, rows), -30_000, 30_000).astype(np.int16),
        "int64, rising": np.cumsum(pick.integers(0, 9, rows)),
        "log lines": np.frombuffer(log.buffers()[2], np.uint8),
    }


def _frames(values: Any) -> list[bytes]:
    return [values[at : at + FRAME].tobytes() for at in range(0, values.size, FRAME)]


def contexts(rows: int, rounds: int) -> Iterator[str]:
    """Return the lines of the table of kept contexts."""
    import zstandard

    yield f"\n{'contexts, level 1':20} {'coded by':12} {'ratio':>7} {'encode':>8} {'decode':>8}   MB/s"
    for name, values in streams(rows).items():
        frames = _frames(values)
        arrow, writer, reader = pa.Codec("zstd", 1), zstandard.ZstdCompressor(1), zstandard.ZstdDecompressor()
        coded = {
            "Arrow": [arrow.compress(frame, asbytes=True) for frame in frames],
            "zstandard": [writer.compress(frame) for frame in frames],
        }
        encoding = in_turns(
            {
                "Arrow": lambda a=arrow, f=frames: [a.compress(frame, asbytes=True) for frame in f],
                "zstandard": lambda w=writer, f=frames: [w.compress(frame) for frame in f],
            },
            rounds,
        )
        sizes = list(map(len, frames))
        decoding = in_turns(
            {
                "Arrow": lambda a=arrow, c=coded["Arrow"], s=sizes: [
                    a.decompress(frame, decompressed_size=size) for frame, size in zip(c, s, strict=True)
                ],
                "zstandard": lambda r=reader, c=coded["zstandard"]: [r.decompress(frame) for frame in c],
            },
            rounds,
        )
        for contender, parts in coded.items():
            yield _line(name, contender, values.nbytes, parts, encoding[contender], decoding[contender])


def _line(name: str, contender: str, size: int, parts: list[bytes], encoding: float, decoding: float) -> str:
    ratio = size / sum(map(len, parts))
    return f"{name:20} {contender:12} {ratio:7.2f} {size / 1e6 / encoding:8.0f} {size / 1e6 / decoding:8.0f}"


def small_units(rows: int, count: int, seed: int) -> list[dict[str, pa.Array[Any]]]:
    """Return deltas of the state of a queue of trades: keys, prices, times, clients."""
    pick = np.random.default_rng(seed)
    units = []
    for number in range(count):
        keys = np.sort(pick.choice(20_000, rows, replace=False))
        now = 1_700_000_000_000_000 + number * 500_000
        units.append(
            {
                "key": pa.array(keys),
                "price": pa.array(np.round(pick.normal(100, 5, rows), 2)),
                "time": pa.array(now + np.sort(pick.integers(0, 500_000, rows))),
                "client": pa.array([f"client-{key % 900:04}/{key % 7}" for key in keys.tolist()]),
            }
        )
    return units


def dictionaries(count: int, rounds: int) -> Iterator[str]:
    """Return the lines of the table of small units."""
    import zstandard

    head = f"{'ratio':>7} {'encode':>8} {'decode':>8}   microseconds a unit"
    yield f"\n{'units of four columns':24} {'coded by':24} {head}"
    for rows in (10, 50, 200, 1000):
        before, units = small_units(rows, 200, 1), small_units(rows, count, 2)
        raw = {name: [_bytes(unit[name]) for unit in units] for name in units[0]}
        trained = {}
        for name in raw:
            samples = [_bytes(unit[name]) for unit in before]
            known = zstandard.train_dictionary(1 << 12, samples)
            trained[name] = (
                zstandard.ZstdCompressor(1, dict_data=known),
                zstandard.ZstdDecompressor(dict_data=known),
            )
        plain = zstandard.ZstdCompressor(1), zstandard.ZstdDecompressor()
        pairs: dict[str, Callable[[str], tuple[Any, Any]]] = {
            "zstandard": lambda _, plain=plain: plain,
            "zstandard, dictionary": lambda name, trained=trained: trained[name],
        }
        size = sum(len(data) for parts in raw.values() for data in parts)
        works: dict[str, tuple[Work, Work, int]] = {}
        for contender, of in pairs.items():
            coded = {name: [of(name)[0].compress(data) for data in parts] for name, parts in raw.items()}
            works[contender] = (
                lambda raw=raw, of=of: [
                    of(n)[0].compress(data) for n, parts in raw.items() for data in parts
                ],
                lambda coded=coded, of=of: [
                    of(n)[1].decompress(data) for n, parts in coded.items() for data in parts
                ],
                sum(len(data) for parts in coded.values() for data in parts),
            )
        for codec in ("zstd", "base_delta>ns"):
            blocks = [encode(column, codec) for unit in units for column in unit.values()]
            works[f"block, {codec}"] = (
                lambda units=units, codec=codec: [
                    encode(column, codec) for unit in units for column in unit.values()
                ],
                lambda blocks=blocks: list(map(decode, blocks)),
                sum(map(len, blocks)),
            )
        encoding = in_turns({name: work[0] for name, work in works.items()}, rounds)
        decoding = in_turns({name: work[1] for name, work in works.items()}, rounds)
        for name, (_, _, coded_size) in works.items():
            yield (
                f"{f'{rows} rows':24} {name:24} {size / coded_size:7.2f} {encoding[name] / count * 1e6:8.1f}"
                f" {decoding[name] / count * 1e6:8.1f}"
            )


def _bytes(array: pa.Array[Any]) -> bytes:
    """Return the bytes of a column, of text the lengths first."""
    buffers = [buffer for buffer in array.buffers() if buffer is not None]
    if len(buffers) == 1:
        return buffers[0].to_pybytes()[: 8 * len(array)]
    lengths = np.diff(np.frombuffer(buffers[0], np.int32, len(array) + 1))
    return lengths.astype(np.int32).tobytes() + buffers[1].to_pybytes()


def high_compression(rows: int, rounds: int) -> Iterator[str]:
    """Return the lines of the table of LZ4 HC."""
    import lz4.block

    yield f"\n{'lz4 hc':20} {'coded by':12} {'ratio':>7} {'encode':>8} {'decode':>8}   MB/s"
    for name, values in streams(rows).items():
        frames = _frames(values)
        sizes = list(map(len, frames))
        writers: dict[str, Callable[[bytes], bytes]] = {
            "lz4": lambda frame: lz4.block.compress(frame, store_size=False),
            "lz4 hc": lambda frame: lz4.block.compress(
                frame, mode="high_compression", compression=9, store_size=False
            ),
        }
        coded = {contender: list(map(write, frames)) for contender, write in writers.items()}
        encoding = in_turns(
            {contender: lambda w=write, f=frames: list(map(w, f)) for contender, write in writers.items()},
            rounds,
        )
        decoding = in_turns(
            {
                contender: lambda p=parts, s=sizes: [
                    lz4.block.decompress(part, uncompressed_size=size)
                    for part, size in zip(p, s, strict=True)
                ]
                for contender, parts in coded.items()
            },
            rounds,
        )
        for contender, parts in coded.items():
            yield _line(name, contender, values.nbytes, parts, encoding[contender], decoding[contender])
        for cascade in ("zstd", "base_delta>ns", "tokens>base_delta>ns"):
            array = pa.array(values)
            if name == "log lines":
                array = texts.columns(rows // 8)["log"]
            elif cascade.startswith("tokens"):
                continue
            block = encode(array, cascade)
            encode_s = in_turns({"": lambda a=array, c=cascade: encode(a, c)}, rounds)[""]
            decode_s = in_turns({"": lambda b=block: decode(b)}, rounds)[""]
            yield _line(
                name, cascade.removesuffix(">base_delta>ns"), values.nbytes, [block], encode_s, decode_s
            )


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few values, one round: does it run?")
    parser.add_argument("--save", action="store_true", help="write the result's file too")
    arguments = parser.parse_args()
    one_core()
    rows, rounds, count = (20_000, 1, 10) if arguments.quick else (1 << 20, 7, 100)
    import lz4
    import zstandard

    versions = f"zstandard {zstandard.__version__}, lz4 {lz4.__version__}"
    shown = " ".join(text for text in sys.argv[1:] if text != "--save")
    lines = [
        f"python -m benchmarks.compression.compression_libraries {shown}".rstrip(),
        "",
        f"{machine()}, {versions}; one core, CPU time",
        *contexts(rows, rounds),
        *dictionaries(count, rounds),
        *high_compression(rows, rounds),
    ]
    print("\n".join(lines))
    if arguments.save:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
