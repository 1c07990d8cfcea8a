"""Two figures of the Scabbard paper from our own runs. See `benchmarks.compression.compression`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.compression.compression_parts import seconds
from benchmarks.harness import pyplot, save

__all__ = ["figure_6", "figure_12"]

_VALUES = 1 << 20
_BOUND = 0.005


def _kinds(count: int) -> dict[str, tuple[pa.Array[Any], dict[str, str]]]:
    """Return the data of (Scabbard Fig. 6), and for each kind the cascades, by the names of their marks."""
    generator = np.random.default_rng(1)
    start = 1_700_000_000_000_000
    fixed = start + np.arange(count, dtype=np.int64) * 1000
    shared = start + np.cumsum(generator.random(count) < 0.01) * 1000
    values = generator.integers(0, 1000, count)
    runs = np.repeat(values, generator.integers(1, 50, count))[:count]
    walk = 100 + np.cumsum(generator.normal(0, 0.05, count))
    words = pa.array([f"{n:016x}" for n in generator.integers(0, 1 << 60, 256)])
    times = {
        "run length": "base_delta>run_length>ns_words",
        "delta of delta": "delta_of_delta>ns",
        "base-delta": "base_delta>ns",
        "base-delta, run length": "run_length>base_delta>ns",
    }
    integers = {
        "variable byte": "variable_byte",
        "NS, run length": "run_length>ns_words",
        "Simple-8b": "simple8b",
        "NS": "ns",
    }
    return {
        "timestamp 1": (pa.array(fixed), times),
        "timestamp 2": (pa.array(shared), times),
        "integer 1": (pa.array(values.astype(np.int32)), integers),
        "integer 2": (pa.array(runs.astype(np.int32)), integers),
        "float": (
            pa.array(walk.astype(np.float32)),
            {
                "XOR": "xor>ns",
                f"within {_BOUND}, base-delta": f"quantized_{_BOUND}>base_delta>ns",
                f"within {_BOUND}, delta": f"quantized_{_BOUND}>delta>ns",
                f"within {_BOUND}, variable byte": f"quantized_{_BOUND}>variable_byte",
                "Snappy": "snappy",
            },
        ),
        "text": (
            words.take(pa.array(generator.integers(0, 256, count, np.int32))),
            {
                "dictionary": "dictionary>base_delta>ns",
                "Snappy": "snappy",
                "LZ4": "lz4",
                "Zstandard": "zstd",
            },
        ),
    }


def figure_6(file: Path, *, quick: bool = False) -> Iterator[str]:
    """Draw ratio against throughput for each kind of data and codec; return the lines of the table.

    A chooser's cascades are lossless, also for floats.
    """
    from penstock.compression import Chooser, decode, encode

    points: dict[str, list[tuple[str, float, float]]] = {}
    yield f"\n{'data':14} {'codec':28} {'ratio':>8} {'encode':>8} {'decode':>8}  cascade"
    for kind, (array, cascades) in _kinds(5000 if quick else _VALUES).items():
        repeats = 1 if quick else 5
        for mark, cascade in cascades.items():
            coded = encode(array, cascade)
            encoding = array.nbytes / seconds(partial(encode, array, cascade), repeats) / 1e6
            decoding = array.nbytes / seconds(partial(decode, coded), repeats) / 1e6
            ratio = array.nbytes / len(coded)
            points.setdefault(kind, []).append((mark, ratio, encoding))
            yield f"{kind:14} {mark:28} {ratio:8.2f} {encoding:8.0f} {decoding:8.0f}  {cascade}"
        for goal in ("fast", "balanced"):
            chooser = Chooser(goal, now_s=lambda: 0.0)
            ratio = array.nbytes / len(encode(array, chooser=chooser, column="c"))
            took = seconds(partial(encode, array, chooser=chooser, column="c"), repeats)
            points[kind].append((f"chosen: {goal}", ratio, array.nbytes / took / 1e6))
            chosen = ", ".join(">".join(cascade) for cascade in chooser.columns["c"].plan.cascades)
            speed = array.nbytes / took / 1e6
            yield f"{kind:14} {f'chosen: {goal}':28} {ratio:8.2f} {speed:8.0f} {'':8}  {chosen}"
    _draw_6(points, file)


def _draw_6(points: dict[str, list[tuple[str, float, float]]], file: Path) -> None:
    plt = pyplot()
    marks = dict.fromkeys(mark for some in points.values() for mark, _, _ in some)
    shapes = dict(zip((m for m in marks if not m.startswith("chosen")), "ovs^DPXp<>hd8H*1", strict=False))
    shapes |= {"chosen: fast": "$f$", "chosen: balanced": "$b$"}
    figure, axis = plt.subplots(figsize=(8.5, 4.6), layout="constrained")
    for number, (kind, some) in enumerate(points.items()):
        colour = f"C{number}"
        path = sorted((ratio, speed / 1000) for mark, ratio, speed in some if not mark.startswith("chosen"))
        axis.plot(*zip(*path, strict=True), color=colour, linewidth=1, label=kind)
        for mark, ratio, speed in some:
            axis.plot(ratio, speed / 1000, marker=shapes.get(mark, "o"), color=colour, markersize=7)
    axis.set(xlabel="compression ratio", ylabel="encode, GB/s, one core", xscale="log", yscale="log")
    axis.grid(visible=True, which="both", alpha=0.2)
    lines = axis.legend(loc="lower right", title="data")
    axis.add_artist(lines)
    handles = [plt.Line2D([], [], linestyle="", color="k", marker=shapes.get(m, "o"), label=m) for m in marks]
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="codec", fontsize="small")
    save(figure, file)


@dataclass(frozen=True)
class Change:
    """A stream of sensor readings whose distribution changes.

    Until `change_s` the readings move a little from row to row, as in the file of the sensors, and the
    states stay as they are. Then the readings jump among a few levels, far from one another, and the states
    change now and then.
    """

    seconds: float = 20.0
    change_s: float = 10.0
    rows: int = 1 << 17
    bandwidth_mb_s: float = 200.0
    interval_s: float = 4.0
    seed: int = 1
    levels: int = 200

    def batches(self) -> tuple[list[pa.Table], list[pa.Table]]:
        """Return a few batches from before the change, and from after it."""
        generator = np.random.default_rng(self.seed)
        level = generator.integers(-(1 << 31), 1 << 31, self.levels).astype(np.int32)
        before, after = [], []
        for number in range(4):
            index = np.arange(self.rows, dtype=np.int64) + number * self.rows
            instants = pa.array(index * 10_000 + generator.integers(0, 30, self.rows), pa.timestamp("us"))
            first: dict[str, Any] = {"timestamp": instants, "index": index}
            second = dict(first)
            for name in ("mf01", "mf02", "mf03", "pc13", "pc14", "pc15"):
                steps = generator.integers(-3, 4, self.rows)
                first[name] = (13_000 + np.cumsum(steps) % 1_000).astype(np.int32)
                second[name] = level[generator.integers(0, self.levels, self.rows)]
            for name in ("pc25", "pc26", "pc27", "res", "bm05", "bm06"):
                first[name] = np.zeros(self.rows, np.int32)
                switched = np.cumsum(generator.random(self.rows) < 0.002)
                second[name] = level[switched % self.levels]
            before.append(pa.table(first))
            after.append(pa.table(second))
        return before, after


@dataclass
class Trace:
    """The end and speed of each batch, and the number of columns that did not fit their plan."""

    times: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    deoptimised: list[int] = field(default_factory=list)
    decided: list[int] = field(default_factory=list)

    def mean(self, begin: float, end: float) -> float:
        """Return the throughput between two moments, in MB/s."""
        pairs = [(t, s) for t, s in zip(self.times, self.speeds, strict=True) if begin <= t < end]
        return len(pairs) / sum(1 / speed for _, speed in pairs) if pairs else float("nan")


def replay(change: Change, how: str) -> Trace:
    """Encode and write the stream, one batch after the other; return the trace.

    The clock, also the chooser's, is that of a writer on one core: the CPU time of coding, and the time
    to write so many bytes at the bandwidth, one after the other.
    """
    from penstock.compression import Chooser, encode_table

    now = 0.0
    chooser = Chooser("balanced", interval_s=change.interval_s, now_s=lambda: now)
    fixed = {"default": "base_delta>ns", "none": "plain"}.get(how)
    before, after = change.batches()
    names = before[0].column_names
    cascades = dict.fromkeys(names, fixed) if fixed else None
    for batch in (before[0], after[0]):
        encode_table(batch, chooser=Chooser("balanced"), codecs=cascades)  # loads the kernels
    trace = Trace()
    count = misfits = decisions = 0
    while now < change.seconds:
        batch = (before if now < change.change_s else after)[count % len(before)]
        begin = process_time()
        size = len(encode_table(batch, chooser=chooser, codecs=cascades))
        took = process_time() - begin + size / (change.bandwidth_mb_s * 1e6)
        now += took
        count += 1
        known = chooser.columns.values()
        trace.times.append(now)
        trace.speeds.append(batch.nbytes / 1e6 / took)
        trace.deoptimised.append(sum(decision.deoptimised for decision in known) - misfits)
        trace.decided.append(sum(decision.decisions for decision in known) - decisions)
        misfits += trace.deoptimised[-1]
        decisions += trace.decided[-1]
    return trace


def figure_12(file: Path, *, quick: bool = False) -> Iterator[str]:
    """Draw throughput over time where the distribution changes; return the lines of the table."""
    change = Change(seconds=0.6, change_s=0.3, rows=5000, interval_s=0.1) if quick else Change()
    traces = {how: replay(change, how) for how in ("adaptive", "default", "none")}
    end, middle = change.seconds, change.change_s
    settled = middle + change.interval_s / 2
    yield (
        f"\n{change.rows} rows a batch, written at {change.bandwidth_mb_s:.0f} MB/s; MB/s of raw bytes\n"
        f"{'':10} {'before':>8} {'after':>8} {'slowest':>8} {'batches':>8} {'misfits':>8} {'decisions':>9}"
    )
    for how, trace in traces.items():
        yield (
            f"{how:10} {trace.mean(0, middle):8.0f} {trace.mean(settled, end):8.0f} {min(trace.speeds):8.0f}"
            f" {len(trace.times):8} {sum(trace.deoptimised):8} {sum(trace.decided):9}"
        )
    adaptive = traces["adaptive"]
    gains = {how: adaptive.mean(settled, end) / traces[how].mean(settled, end) for how in ("default", "none")}
    yield ", ".join(f"after the change {gain:.2f} times {how}" for how, gain in gains.items())
    misfit = [time for time, columns in zip(adaptive.times, adaptive.deoptimised, strict=True) if columns]
    if misfit:
        yield f"columns fell back to the default from {misfit[0]:.2f} s to {misfit[-1]:.2f} s"
    _draw_12(change, traces, file)


def _draw_12(change: Change, traces: dict[str, Trace], file: Path) -> None:
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    titles = {"adaptive": "adaptive", "default": "default: base_delta>ns", "none": "no compression"}
    for how, trace in traces.items():
        axis.plot(trace.times, [speed / 1000 for speed in trace.speeds], label=titles[how], linewidth=1.2)
    adaptive = traces["adaptive"]
    rows = list(zip(adaptive.times, adaptive.speeds, adaptive.deoptimised, adaptive.decided, strict=True))
    for label, mark, chosen in (
        ("did not fit: default", "v", [(t, s) for t, s, misfits, _ in rows if misfits]),
        ("decided", ".", [(t, s) for t, s, _, decided in rows if decided]),
    ):
        if chosen:
            axis.plot([t for t, _ in chosen], [s / 1000 for _, s in chosen], f"k{mark}", label=label)
    axis.axvline(change.change_s, color="k", linestyle=":", linewidth=1)
    axis.set(xlabel="time, s", ylabel=f"GB/s, written at {change.bandwidth_mb_s:.0f} MB/s", ylim=(0, None))
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize="small", loc="upper right")
    save(figure, file)
