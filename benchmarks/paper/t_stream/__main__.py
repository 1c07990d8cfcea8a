"""Measure and draw figures 8 to 13 of the TStream paper, with cheap accesses and with work at each.

Every scheme gets the same accesses and does the same work; the engine's modes look rows up, check and undo as
always, the peers do not (`benchmarks.paper.t_stream.schemes`). The result of each run is compared with that
of the serial run. A time is the least of several repeats. In figure 13 all schemes of a program get the same
rate: half of what the slowest one reaches. Two spinning threads need two free cores:
``--real-time`` gives the timed parts real-time priority, which needs privileges.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.harness import machine, pyplot, save
from benchmarks.paper.t_stream.breakdown import PARTS, breakdown
from benchmarks.paper.t_stream.latency import PERCENTILES, latencies
from benchmarks.paper.t_stream.schemes import SCHEMES, run_scheme
from benchmarks.paper.t_stream.workloads import Accesses, access, accesses_of, grep_and_sum, loaded, rounds_of
from penstock.procedures.compiler.program import Program
from penstock.procedures.parallel.evaluation import Evaluation

Point = dict[str, Any]
PUNCTUATION = 500
"""As in the paper."""
OURS = ("serial", "chains", "levels", "split")
FIGURES = {
    "8": "throughput of GS, SL, OB and TP",
    "9": "where the time of a transaction of SL goes",
    "10": "GS, half reads, by accesses of a transaction",
    "11a": "GS without skew, by percentage of reads",
    "11b": "GS, writes only, by skew",
    "12": "throughput by punctuation interval",
    "13": "latency at half the rate of the slowest scheme",
}
UNITS = {"9": "ns of thread time", "13": "microseconds"}
RATE = "thousand transactions/s"
PROGRAMS = ("GS", "SL", "OB", "TP")
RATE_SHARE = 0.5
"""Figure 13 has this share of the slowest scheme's rate."""


@dataclass(frozen=True)
class Scale:
    """The size of a measurement."""

    count: int = 4_000
    latency_count: int = 16_000
    repeats: int = 3
    punctuations: tuple[int, ...] = (100, 500, 2_000, 4_000)
    works_ns: tuple[int, ...] = (0, 1_000)


@contextlib.contextmanager
def _priority(real_time: bool) -> Iterator[None]:
    """Give all threads of this process real-time priority within the context, if asked."""

    def set_all(policy: int, priority: int) -> None:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread may have ended since
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

    if real_time:
        set_all(os.SCHED_RR, 1)
    try:
        yield
    finally:
        if real_time:
            set_all(os.SCHED_OTHER, 0)


class Bench:
    """Measures schemes over accesses."""

    def __init__(self, scale: Scale, *, real_time: bool) -> None:
        self.scale, self.real_time = scale, real_time
        self.rounds = {work: rounds_of(work) for work in scale.works_ns}

    def rate(self, scheme: str, accesses: Accesses, work: int, punctuation: int = PUNCTUATION) -> float:
        """Return thousands of transactions a second on two threads; ``serial`` has one."""
        return accesses.count / min(self._times(scheme, accesses, work, punctuation)) / 1e3

    def _times(self, scheme: str, accesses: Accesses, work: int, punctuation: int) -> list[float]:
        rounds, repeats = self.rounds[work], self.scale.repeats
        times = []
        for repeat in range(repeats + 1):
            if scheme in OURS:
                state = loaded(accesses.keys)
                state.evaluation = Evaluation(scheme, 2, punctuation)
                run = state.begin(cast(Program, access.program()), accesses.events(rounds))
                with _priority(self.real_time):
                    begin = time.perf_counter()
                    state.evaluation.run(state, run)
                    times.append(time.perf_counter() - begin)
                state.close()
                if scheme not in state.evaluation.metrics["access"].transactions:
                    raise SystemExit(f"{scheme} did not run")
                made = run.results().column("total").to_numpy(zero_copy_only=False)
            else:
                values = np.arange(accesses.keys) % 1000 + 1
                go, made, values = run_scheme(
                    scheme, 2, rounds, accesses.offsets, accesses.rows, accesses.writes, values
                )
                with _priority(self.real_time):
                    begin = time.perf_counter()
                    go()
                    times.append(time.perf_counter() - begin)
            if repeat == 0:
                expected = self._expected(accesses, rounds)
                if scheme != "No-Lock" and not np.array_equal(made, expected):
                    raise SystemExit(f"{scheme} has other results than the serial run")
        return times[1:]

    def _expected(self, accesses: Accesses, rounds: int) -> Any:
        state = loaded(accesses.keys)
        return state.run(access.program(), accesses.events(rounds)).column("total").to_numpy()

    def point(self, at: Point, accesses: Accesses, work: int) -> Point:
        """Return the rates of all schemes."""
        rates = {scheme: self.rate(scheme, accesses, work) for scheme in (*SCHEMES, *OURS)}
        return {**at, "work, ns": work, **rates}

    def latencies(self, program: str, work: int) -> list[Point]:
        """Return percentiles of all schemes at one rate."""
        accesses = accesses_of(program, self.scale.count)
        slowest = min(self.rate(scheme, accesses, work) for scheme in (*SCHEMES, *OURS))
        rate, accesses = RATE_SHARE * slowest, accesses_of(program, self.scale.latency_count)
        points = []
        for scheme in (*SCHEMES, *OURS):
            found = latencies(
                scheme, accesses, self.rounds[work], 1e3 * rate, PUNCTUATION,
                lambda: _priority(self.real_time),
            )  # fmt: skip
            percentiles = {f"p{one}": value for one, value in zip(PERCENTILES, found, strict=True)}
            points.append(
                {"program": program, "work, ns": work, "scheme": scheme, "k/s": rate, **percentiles}
            )
        return points

    def figure(self, name: str) -> list[Point]:
        """Measure all points of a figure."""
        count, points = self.scale.count, []
        for work in self.scale.works_ns:
            if name == "8":
                points += [
                    self.point({"program": program}, accesses_of(program, count), work)
                    for program in PROGRAMS
                ]
            elif name == "9":
                made = breakdown(
                    accesses_of("SL", count), self.rounds[work], OURS, self.scale.repeats, PUNCTUATION,
                    lambda: _priority(self.real_time),
                )  # fmt: skip
                points += [{"scheme": one.pop("scheme"), "work, ns": work, **one} for one in made]
            elif name == "13":
                for program in PROGRAMS:
                    points += self.latencies(program, work)
            elif name == "10":
                for length in (2, 4, 6, 8, 10):
                    accesses = grep_and_sum(count, length=length, reads=0.5, skew=0.6)
                    points.append(self.point({"accesses": length}, accesses, work))
            elif name == "11a":
                for reads in (0, 25, 50, 75, 100):
                    accesses = grep_and_sum(count, length=10, reads=reads / 100, skew=0.0)
                    points.append(self.point({"reads, %": reads}, accesses, work))
            elif name == "11b":
                for skew in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
                    accesses = grep_and_sum(count, length=10, reads=0.0, skew=skew)
                    points.append(self.point({"skew": skew}, accesses, work))
            else:
                for punctuation in self.scale.punctuations:
                    for program in ("GS", "TP"):
                        accesses = accesses_of(program, count)
                        rates = {mode: self.rate(mode, accesses, work, punctuation) for mode in OURS[1:]}
                        points.append(
                            {"interval": punctuation, "program": program, "work, ns": work, **rates}
                        )
        return points


def tell(points: list[Point]) -> list[str]:
    """Return points as a table of text."""
    names = list(points[0])
    lines = ["  ".join(name.rjust(9) for name in names)]
    for point in points:
        cells = [_cell(value) for value in point.values()]
        lines.append("  ".join(cell.rjust(max(len(n), 9)) for cell, n in zip(cells, names, strict=True)))
    return lines


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def draw(name: str, points: list[Point], unit: str) -> Any:
    """Return a plot of a figure: a panel for each amount of work."""
    plt = pyplot()
    works = list(dict.fromkeys(point["work, ns"] for point in points))
    plot, axes = plt.subplots(1, len(works), figsize=(5 * len(works), 4), layout="constrained", squeeze=False)
    by = next(iter(points[0]))
    for axis, work in zip(axes[0], works, strict=True):
        own = [point for point in points if point["work, ns"] == work]
        if name == "9":
            _draw_parts(axis, own)
            axis.set(ylabel=unit, title=f"{work} ns of work an access")
            continue
        if name == "13":
            own = _by_program(own)
        for scheme in (*SCHEMES, *OURS):
            if scheme in own[0]:
                places = [
                    ", ".join(str(p[k]) for k in (by, "program") if k in p and (k != by or k == by))
                    for p in own
                ]
                axis.plot(places, [point[scheme] for point in own], marker="o", label=scheme)
        axis.set(xlabel=by, ylabel=unit, title=f"{work} ns of work an access", yscale="log")
    axes[0][0].legend(fontsize=7)
    plot.suptitle(FIGURES[name])
    return plot


def _draw_parts(axis: Any, points: list[Point]) -> None:
    """Draw a stack of parts for each scheme."""
    names, below = [point["scheme"] for point in points], np.zeros(len(points))
    for part in PARTS:
        heights = np.maximum([point[part] for point in points], 0.0)
        axis.bar(names, heights, bottom=below, label=part)
        below += heights
    axis.tick_params(axis="x", rotation=45)


def _by_program(points: list[Point]) -> list[Point]:
    """Return a point for each program, with the highest percentile of each scheme."""
    made: dict[str, Point] = {}
    for point in points:
        made.setdefault(point["program"], {"program": point["program"]})[point["scheme"]] = point["p99"]
    return list(made.values())


def main() -> None:
    """Write each figure as a text and as a plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper.t_stream", description=__doc__)
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)}; all by default"
    )
    parser.add_argument("--fast", action="store_true", help="fewer transactions, one repeat")
    parser.add_argument("--real-time", action="store_true", help="time with real-time priority")
    parser.add_argument("--texts", type=Path, default=Path("penstock-figures"), help="where tables go")
    parser.add_argument("--plots", type=Path, default=Path("penstock-figures"), help="where plots go")
    options = parser.parse_args()
    if unknown := [name for name in options.figures if name not in FIGURES]:
        parser.error(f"there is no figure {', '.join(unknown)}: choose of {', '.join(FIGURES)}")
    fast = Scale(count=200, latency_count=600, repeats=1, punctuations=(50, 200), works_ns=(0,))
    scale = fast if options.fast else Scale()
    for directory in (options.texts, options.plots):
        directory.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    bench = Bench(scale, real_time=options.real_time)
    flags = " --real-time" * options.real_time + " --fast" * options.fast
    for name in options.figures or FIGURES:
        points = bench.figure(name)
        unit = UNITS.get(name, RATE)
        text = "\n".join([
            f"TStream, Figure {name}: {FIGURES[name]}; {unit}. Two threads; serial has one.",
            "",
            f"{machine()}; load average {load:.1f} at the begin and {os.getloadavg()[0]:.1f} at the end",
            f"$ python -m benchmarks.paper.t_stream {name}{flags}",
            "",
            *tell(points),
            "",
        ])  # fmt: skip
        print(text, flush=True)
        (options.texts / f"t_stream_fig{name}.txt").write_text(text)
        unit = "p99, microseconds" if name == "13" else unit
        save(draw(name, points, unit), options.plots / f"t-stream-{name}.svg")


if __name__ == "__main__":
    main()
