"""Compression of columns: Penstock's three goals beside the formats and libraries that people use.

    python -m benchmarks.compression.compression [--rounds N] [--rows N] [--data FOLDER] [--only NAME ...]
        [--save]
    python -m benchmarks.compression.compression --bandwidth | --codecs | --compile
    python -m benchmarks.compression.compression --fig6 docs/figures/scabbard-6.svg
    python -m benchmarks.compression.compression --fig12 docs/figures/scabbard-12.svg

Everything runs in memory and on one core. Times are CPU times of the process, so other processes do not
count. Every contender codes every column whose type it knows, of every stream (`benchmarks.streams`). Each
stream has its own process, in which contenders take turns for several rounds; a speed is the median of the
rounds. MB are 10**6 bytes of the Arrow arrays. A speed is all bytes of a stream's columns divided by all
time.

- ``ratio``: over all bytes of the real files or generated rows, with each column in one piece.
- ``geo``: geometric mean of the columns' ratios. ``geo var``: without columns of one value, whose ratios only
  show the size of a header.
- ``encode``, ``decode``: for replicas of 2 M rows, in blocks of 262,144 rows.
- ``as is``: repeated encoding and decoding of the real files themselves, with each column in one piece.
  Codecs that look for repeats are faster on replicas, which have more repeats than the files. The files are
  short, so the fixed cost of a call counts.

Penstock's choosers decide once, on the real file. Encode speeds include the cost of a new decision every 4 s
of encoding (or every 40 times the duration of a decision, if that is longer). ``once`` decides for every
block.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import process_time
from typing import Any

import pyarrow as pa

from benchmarks.compression.peers import Contender, Ours, contenders, missing, one_core, peers
from benchmarks.harness import machine, median, run_contender
from benchmarks.streams import DATA, GENERATED, REAL, ROWS, Stream, load
from penstock.compression.choice.chooser import DECIDING_SHARE

BLOCK_ROWS = 1 << 18
INTERVAL_S = 4.0
RESULTS = Path(__file__).parents[1] / "results"
GOALS = ("fast", "balanced", "small")
BANDWIDTHS_MB_S = (20.0, 200.0, 2000.0)
_REPEATS = 4
_ENOUGH_S = 40.0  # a contender that has used this much time on a stream gets no further round

Record = dict[str, Any]
"""The measurements of one contender and one column of a stream."""


def columns_of(table: pa.Table) -> Iterator[tuple[str, pa.Array[Any]]]:
    """Return names and columns, each as one array."""
    for name in table.column_names:
        column = table[name].combine_chunks()
        yield name, column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def blocks_of(array: pa.Array[Any]) -> list[pa.Array[Any]]:
    """Return an array in parts."""
    return [array.slice(at, BLOCK_ROWS) for at in range(0, len(array), BLOCK_ROWS)]


def check_same(decoded: pa.Array[Any], array: pa.Array[Any]) -> None:
    """Refuse a contender that does not return its input."""
    if isinstance(decoded, pa.ChunkedArray):
        decoded = decoded.combine_chunks()
    assert decoded.cast(array.type).equals(array)


def measure(stream: Stream, those: list[Contender], rounds: int) -> list[Record]:
    """Return a record for each contender and column of a stream."""
    records: dict[tuple[str, str], Record] = {}
    for column, array in columns_of(stream.whole):
        for contender in those:
            if not contender.takes(array.type):
                continue
            before = contender.spent_s if isinstance(contender, Ours) else 0.0
            coded = contender.encode(column, array)
            check_same(contender.decode(coded), array)
            records[contender.name, column] = record = {
                "stream": stream.name,
                "column": column,
                "type": str(array.type),
                "contender": contender.name,
                "varying": array.slice(1).equals(array.slice(0, len(array) - 1)) is False,
                "rows": len(array),
                "whole_bytes": array.nbytes,
                "coded_bytes": contender.size(coded),
                "long_rows": stream.long.num_rows,
                "long_bytes": 0,
                "encode_s": [],
                "decode_s": [],
                "whole_encode_s": [],
                "whole_decode_s": [],
                "decide_s": 0.0,
                "cascade": "",
            }
            if isinstance(contender, Ours):
                # Once more: the first decision loaded kernels.
                contender.chooser.columns.pop(column)
                before = contender.spent_s
                contender.encode(column, array)
                record["decide_s"] = contender.spent_s - before
                record["cascade"] = contender.cascade(column)
    spent = dict.fromkeys((contender.name for contender in those), 0.0)
    for number in range(rounds + 1):
        # The first round, over one block, is to warm up.
        start = number % len(those)
        turn = [those[(start + at) % len(those)] for at in range(len(those))]
        turn = [contender for contender in turn if number < 2 or spent[contender.name] < _ENOUGH_S]
        for column, array in columns_of(stream.long):
            blocks = blocks_of(array)[: None if number else 1]
            for contender in turn:
                if not contender.takes(array.type):
                    continue
                encoding, decoding = run(contender, column, blocks)
                if not number:
                    continue
                record = records[contender.name, column]
                record["long_bytes"] = sum(block.nbytes for block in blocks)
                record["encode_s"].append(encoding)
                record["decode_s"].append(decoding)
                spent[contender.name] += encoding + decoding
                if stream.whole is not stream.long:
                    whole = stream.whole[column].combine_chunks()
                    encoding, decoding = run(contender, column, [whole] * _REPEATS)
                    encoding, decoding = encoding / _REPEATS, decoding / _REPEATS
                record["whole_encode_s"].append(encoding)
                record["whole_decode_s"].append(decoding)
    for contender in those:
        if isinstance(contender, Ours):
            for column, decision in contender.chooser.columns.items():
                records[contender.name, column]["deoptimised"] = decision.deoptimised
    return list(records.values())


def run(contender: Contender, column: str, blocks: list[pa.Array[Any]]) -> tuple[float, float]:
    """Code blocks and back; return the seconds of both, without the time of decisions."""
    encoding = decoding = 0.0
    for block in blocks:
        decided = contender.spent_s if isinstance(contender, Ours) else 0.0
        begin = process_time()
        coded = contender.encode(column, block)
        encoded = process_time()
        contender.decode(coded)
        decoding += process_time() - encoded
        encoding += encoded - begin
        if isinstance(contender, Ours):
            encoding -= contender.spent_s - decided
    return encoding, decoding


def in_processes(names: Iterable[str], arguments: argparse.Namespace, mode: str) -> list[Record]:
    """Measure each stream in a process of its own."""
    found: list[Record] = []
    for name in names:
        only = ["--only", *arguments.only] if arguments.only else []
        command = [
            *("--stream", name, "--mode", mode, "--data", str(arguments.data)),
            *("--rows", str(arguments.rows), "--rounds", str(arguments.rounds), *only),
        ]
        found += run_contender("compression.compression", *command, timeout_s=3 * 3600)["records"]
        print(f"{name}: measured", file=sys.stderr, flush=True)
    return found


def child(arguments: argparse.Namespace) -> None:
    """Measure one stream and print it as JSON."""
    one_core()
    stream = load(arguments.stream, arguments.data, arguments.rows)
    if stream is None:
        print(json.dumps({"records": []}))
        return
    if arguments.mode == "bandwidth":
        those = [*bandwidth_goals(), *peers(arguments.only)]
    else:
        those = contenders(arguments.only)
    print(json.dumps({"records": measure(stream, those, arguments.rounds)}))


class Figures:
    """The sums of a contender's records of some columns."""

    def __init__(self, records: list[Record]) -> None:
        whole = sum(record["whole_bytes"] for record in records)
        self.columns = len(records)
        self.ratio = whole / sum(record["coded_bytes"] for record in records)
        self.geo = _geometric_mean(records)
        self.geo_varying = _geometric_mean([record for record in records if record["varying"]])
        size = sum(record["long_bytes"] for record in records) / 1e6
        deciding = sum(record["decide_s"] for record in records)
        net = _seconds_of(records, "encode_s")
        # Each `INTERVAL_S` of encoding there is a decision about all columns, or later where these take long.
        self.share = deciding / (max(INTERVAL_S, deciding / DECIDING_SHARE) + deciding)
        self.encode = size / net * (1 - self.share)
        self.decode = size / _seconds_of(records, "decode_s")
        self.encode_as_is = whole / 1e6 / _seconds_of(records, "whole_encode_s") * (1 - self.share)
        self.decode_as_is = whole / 1e6 / _seconds_of(records, "whole_decode_s")
        blocks = math.ceil(records[0]["long_rows"] / BLOCK_ROWS)
        self.once = size / (net + deciding * blocks)


def _seconds_of(records: list[Record], step: str) -> float:
    """Return the seconds that a step takes for all columns, the median of the rounds."""
    return median([sum(times) for times in zip(*(record[step] for record in records), strict=False)])


def _geometric_mean(records: list[Record]) -> float:
    ratios = [record["whole_bytes"] / record["coded_bytes"] for record in records]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def key_of(record: Record) -> tuple[str, str]:
    """Return stream and column."""
    return record["stream"], record["column"]


def by_contender(records: list[Record]) -> dict[str, list[Record]]:
    """Return the records of each contender."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["contender"], []).append(record)
    return groups


def beats(peer: list[Record], ours: list[Record]) -> str:
    """Name the peers that beat a goal on ratio, encode and decode at once, on columns that they support."""
    common = set(map(key_of, peer))
    one, other = Figures(peer), Figures([record for record in ours if key_of(record) in common])
    if one.ratio <= other.ratio:
        return ""
    replicas = one.encode > other.encode and one.decode > other.decode
    as_is = one.encode_as_is > other.encode_as_is and one.decode_as_is > other.decode_as_is
    return {(True, True): "!", (True, False): " (replicas)", (False, True): " (as is)"}.get(
        (replicas, as_is), ""
    )


_HEAD = (
    f"{'':15} {'columns':>8} {'ratio':>8} {'geo':>8} {'geo var':>8} {'encode':>8} {'decode':>8}"
    f" {'as is: e':>8} {'d':>6} {'once':>7}"
)


def table(records: list[Record]) -> Iterator[str]:
    """Return the lines of one group's table."""
    groups = by_contender(records)
    every = max(map(len, groups.values()))
    yield _HEAD
    for name, mine in groups.items():
        figures = Figures(mine)
        others = [] if name in GOALS else [goal for goal in GOALS if goal in groups]
        better = [f"{goal}{where}" for goal in others if (where := beats(mine, groups[goal]))]
        note = f"  better at once than {', '.join(better)}" if better else ""
        once = f"{figures.once:7.0f}" if name in GOALS else f"{'':7}"
        of = f"{figures.columns}/{every}"
        yield (
            f"{name:15} {of:>8} {figures.ratio:8.2f} {figures.geo:8.2f} {figures.geo_varying:8.2f}"
            f" {figures.encode:8.0f} {figures.decode:8.0f} {figures.encode_as_is:8.0f}"
            f" {figures.decode_as_is:6.0f} {once}{note}"
        ).rstrip()


def report(records: list[Record]) -> Iterator[str]:
    """Return the lines of all tables."""
    for stream in dict.fromkeys(record["stream"] for record in records):
        yield f"\n{stream}"
        yield from table([record for record in records if record["stream"] == stream])
    groups: dict[str, Callable[[Record], bool]] = {
        "all columns of numbers": lambda record: "string" not in record["type"],
        "all columns of the real files": lambda record: record["stream"] in REAL,
        "all columns": lambda _: True,
    }
    for title, belongs in groups.items():
        some = [record for record in records if belongs(record)]
        if some:
            yield f"\n{title}"
            yield from table(some)
    deciding = by_contender([record for record in records if record["contender"] in GOALS])
    yield "\nseconds that one decision takes, and its share of encode time"
    for goal, mine in deciding.items():
        streams: dict[str, list[Record]] = {}
        for record in mine:
            streams.setdefault(record["stream"], []).append(record)
        shares = (
            f"{name} {sum(record['decide_s'] for record in some):.3f} s {Figures(some).share:.2%}"
            for name, some in streams.items()
        )
        yield f"{goal:10} {', '.join(shares)}"
    yield "\nratio of each column, the best peer's, and what was chosen"
    yield from columns_table(records)


def columns_table(records: list[Record]) -> Iterator[str]:
    """Return a line for each column."""
    grouped: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        grouped.setdefault(key_of(record), []).append(record)
    yield f"{'':28} {' '.join(f'{goal:>9}' for goal in GOALS)} {'best peer':>9}"
    for (stream, column), some in grouped.items():
        ratios = {record["contender"]: record["whole_bytes"] / record["coded_bytes"] for record in some}
        others = {name: ratio for name, ratio in ratios.items() if name not in GOALS}
        best = max(others, key=others.__getitem__, default="")
        plans = " | ".join(record["cascade"] for record in some if record["contender"] in GOALS)
        line = " ".join(f"{ratios.get(goal, math.nan):9.2f}" for goal in GOALS)
        yield f"{stream + '.' + column:28} {line} {others.get(best, math.nan):9.2f} {best:14} {plans}"


def save_csv(records: list[Record], path: Path) -> None:
    """Write a line for each contender and column."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("stream", "column", "type", "contender", "ratio", "encode_mb_s", "decode_mb_s", "cascade")
        )
        for record in records:
            size = record["long_bytes"] / 1e6
            writer.writerow(
                (
                    *(record[name] for name in ("stream", "column", "type", "contender")),
                    f"{record['whole_bytes'] / record['coded_bytes']:.3f}",
                    f"{size / median(record['encode_s']):.0f}",
                    f"{size / median(record['decode_s']):.0f}",
                    record["cascade"],
                )
            )


def bandwidth_goals() -> list[Contender]:
    """Return ours, for each bandwidth."""
    from penstock.compression import Goal

    return [Ours(f"penstock {width:.0f}", Goal(width, decode_weight=0.0)) for width in BANDWIDTHS_MB_S]


def report_bandwidth(records: list[Record]) -> Iterator[str]:
    """Return the lines of the table of seconds per million rows, encode and write."""
    titles = " ".join(f"{f'{width:.0f} MB/s':>10}" for width in BANDWIDTHS_MB_S)
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["stream"], []).append(record)
    numbers = [record for record in records if "string" not in record["type"]]
    groups |= {"all columns of numbers": numbers, "all columns": records}
    for title, some in groups.items():
        yield f"\n{title}: seconds per million rows\n{'':15} {'columns':>8} {titles}"
        grouped = by_contender(some)
        every = max(map(len, grouped.values()))
        times = {name: [_seconds(mine, width) for width in BANDWIDTHS_MB_S] for name, mine in grouped.items()}
        ours = [times[f"penstock {width:.0f}"][at] for at, width in enumerate(BANDWIDTHS_MB_S)]
        yield _bandwidth_line("penstock", every, every, ours, None)
        for name, mine in grouped.items():
            if not name.startswith("penstock "):
                common = set(map(key_of, mine))
                own = [
                    _seconds(
                        [r for r in grouped[f"penstock {width:.0f}"] if key_of(r) in common],
                        width,
                    )
                    for width in BANDWIDTHS_MB_S
                ]
                yield _bandwidth_line(name, len(mine), every, times[name], own)


def _seconds(records: list[Record], width: float) -> float:
    """Return the seconds to encode and write a million rows of these columns."""
    encoding = sum(median(record["encode_s"]) / record["long_rows"] for record in records)
    share = Figures(records).share
    writing = sum(record["coded_bytes"] / record["rows"] for record in records) / (width * 1e6)
    return (encoding / (1 - share) + writing) * 1e6


def _bandwidth_line(name: str, columns: int, every: int, times: list[float], ours: list[float] | None) -> str:
    line = f"{name:15} {f'{columns}/{every}':>8} " + " ".join(f"{seconds:10.4f}" for seconds in times)
    if ours is None:
        return line
    ahead = [f"{seconds / own:.2f}" for seconds, own in zip(times, ours, strict=True)]
    return f"{line}   of ours on these columns: {' '.join(ahead)}"


def describe(arguments: argparse.Namespace, *, streams: bool) -> Iterator[str]:
    """Return the lines at the head of a result: command, machine, versions, what is missing."""
    libraries = []
    for name in ("pcodec", "vortex-data", "blosc2"):
        try:
            libraries.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    yield f"python -m benchmarks.compression.compression {' '.join(arguments.shown)}".rstrip()
    yield ""
    yield ", ".join((machine(), *libraries, platform.machine())) + "; one core, CPU time"
    if not streams:
        return
    yield f"{arguments.rows} rows, {arguments.rounds} rounds; MB/s of raw bytes"
    if missing():
        yield f"not installed: {', '.join(missing())}"
    absent = [name for name, known in REAL.items() if not (arguments.data / known.file).exists()]
    if absent:
        yield f"not there: the files of {', '.join(absent)}"


def main() -> None:
    """Run the chosen mode and print its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS, help="of replicas and generated streams")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the real files")
    parser.add_argument("--streams", nargs="*", default=[*REAL, *GENERATED], help="these streams only")
    parser.add_argument("--only", nargs="*", help="these contenders only")
    parser.add_argument("--quick", action="store_true", help="few rows, one round: does it run?")
    parser.add_argument(
        "--save", type=Path, nargs="?", const=RESULTS, help="write results to this folder too"
    )
    mode = parser.add_mutually_exclusive_group()
    for name in ("bandwidth", "codecs", "compile"):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name)
    mode.add_argument("--fig6", type=Path, metavar="FILE", help="draw ratio against throughput")
    mode.add_argument("--fig12", type=Path, metavar="FILE", help="draw a change of the distribution")
    parser.add_argument("--stream", help=argparse.SUPPRESS)
    parser.add_argument("--mode", dest="mode", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stream:
        child(arguments)
        return
    arguments.shown = [text for text in sys.argv[1:] if text not in ("--save", str(arguments.save))]
    streams = arguments.mode in (None, "bandwidth") and not (arguments.fig6 or arguments.fig12)
    if arguments.quick:
        arguments.rows, arguments.rounds = 20_000, 1
    name, lines, records = results(arguments)
    text = "\n".join((*describe(arguments, streams=streams), *lines))
    print(text)
    if arguments.save:
        (arguments.save / f"{name}.txt").write_text(text + "\n")
        if records:
            save_csv(records, arguments.save / f"{name}.csv")


def results(arguments: argparse.Namespace) -> tuple[str, list[str], list[Record]]:
    """Run one mode; return the name of its file, its lines, and records for a table of their own."""
    if arguments.mode == "bandwidth":
        records = in_processes(arguments.streams, arguments, "bandwidth")
        return "compression_bandwidth", list(report_bandwidth(records)), []
    if arguments.mode is None and not (arguments.fig6 or arguments.fig12):
        records = in_processes(arguments.streams, arguments, "compare")
        return "compression", list(report(records)), records
    from benchmarks.compression import compression_figures as figures
    from benchmarks.compression import compression_parts as parts

    if arguments.mode == "compile":
        return "compression_compile", list(parts.compile_times(quick=arguments.quick)), []
    one_core()
    if arguments.fig6:
        return "compression_fig6", list(figures.figure_6(arguments.fig6, quick=arguments.quick)), []
    if arguments.fig12:
        return "compression_fig12", list(figures.figure_12(arguments.fig12, quick=arguments.quick)), []
    return "compression_codecs", list(parts.codec_costs(quick=arguments.quick)), []


if __name__ == "__main__":
    main()
