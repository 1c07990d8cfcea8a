"""The local engine: the time to the first row, and from a tuple to its result.

    python -m benchmarks.local_engine [--seconds 10] [--rates 10000 100000] [--starts 5] [--out FILE]

The first row: from the start of the process ``penstock run`` to the first line of its console sink, with
kernels compiled before. Latency: rows of the market arrive at a fixed rate and wait for their micro-batch.
It ends when the results of the micro-batch are in the sink, with the state of the queue durable. Every tuple
counts, whether a newer one of its key replaces it or not.

``--starts 0 --rates`` (no rate) measures only micro-batches: their CPU time, and in turns the time of the
sink if each file is synced on its own, or all files at once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from benchmarks.harness import REPOSITORY, machine, print_and_save, scratch
from penstock._clock import monotonic_s, now_us
from penstock._durable.file_system import FileSystem
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.conf.pipeline import Pipeline
from penstock.jobs.local.pipeline import Places, open_pipeline
from penstock.local_engine.outputs import Output, PStreamOutput
from penstock.local_engine.start import LocalGraph
from penstock.market import Market

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "local_engine.txt"
SINKS = ("memory", "pstream")
WARM_UP_S = 5.0
STEP_ROWS = 2_000
WARM_UP_STEPS = 50


@dataclass
class _Timed:
    """A sink that notes when the results of each micro-batch are in it."""

    into: Output | None = None
    at_us: dict[int, int] = field(default_factory=dict)
    took_ms: list[float] = field(default_factory=list)

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        batches = list(rows)
        begin = monotonic_s()
        if self.into is not None:
            self.into.write(iter(batches), query, batch)
        self.took_ms.append(1000 * (monotonic_s() - begin))
        self.at_us[batch] = now_us()


def _pipeline(place: Path, rate: int) -> Pipeline:
    return Pipeline.model_validate(
        {
            "engine": "local",
            "source": {"type": "market", "rows_per_second": rate},
            "queue": {"key": "symbol", "time": "time", "policy": "linecutting"},
            "sink": {"type": "memory"},
            "query": {"checkpoint": str(place / "checkpoint")},
        }
    )


def latency(
    place: Path, rate: int, seconds: float, sink: str, warm_up_s: float = WARM_UP_S
) -> dict[str, Any]:
    """Return the latency of tuples at a rate, in milliseconds, and the length of micro-batches."""
    timed = _Timed()

    def output(schema: Any, checkpoint: str) -> Output:
        if sink == "pstream":
            timed.into = PStreamOutput({"path": str(place / "out")}, schema, checkpoint)
        return timed

    running = open_pipeline(_pipeline(place, rate), places=Places(output=output))
    (query,) = running.queries
    begin = monotonic_s()
    found: list[np.ndarray[Any, Any]] = []
    row, batches = 0, 0
    while (passed := monotonic_s() - begin) < seconds + warm_up_s:
        if not running.step():
            time.sleep(0.001)  # polls, as `penstock run` does: the source does not announce its rows
            continue
        number = query.log.committed
        offset = query.log.offsets(number)[0] or {}
        rows = np.arange(row, offset["row"])
        row = offset["row"]
        if passed >= warm_up_s:
            due_us = offset["startTime"] + rows * 1e6 / rate
            found.append((timed.at_us[number] - due_us) / 1000)
            batches += 1
    all_ms = np.concatenate(found)
    return {
        "sink": sink,
        "tuples/s": round(len(all_ms) / seconds),
        "batch ms": round(1000 * seconds / max(batches, 1), 1),
        **{f"p{share}": round(float(np.percentile(all_ms, share)), 1) for share in (50, 95, 99)},
    }


def _stepped(place: Path, sink: str, step_rows: int) -> tuple[LocalGraph, _Timed]:
    """Open a pipeline whose micro-batches have a fixed number of rows."""
    timed = _Timed()

    def output(schema: Any, checkpoint: str) -> Output:
        if sink == "pstream":
            timed.into = PStreamOutput({"path": str(place / "out")}, schema, checkpoint)
        return timed

    source = {
        "type": "market", "rows_per_second": 100_000, "real_time": False,
        "max_rows_per_trigger": step_rows, "start_time": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    document = _pipeline(place, 1).model_dump(mode="json", by_alias=True, exclude_unset=True)
    running = open_pipeline(
        Pipeline.model_validate(document | {"source": source}), places=Places(output=output)
    )
    for _ in range(WARM_UP_STEPS):  # compiles, and fills the queue
        running.step()
    return running, timed


def step_cpu_ms(place: Path, sink: str, steps: int = 100) -> tuple[float, float]:
    """Return the CPU time of a micro-batch of `STEP_ROWS` tuples: of its thread and of the process, in ms."""
    running, _ = _stepped(place, sink, STEP_ROWS)
    thread_s, process_s = time.thread_time(), time.process_time()
    for _ in range(steps):
        running.step()
    ended = time.thread_time() - thread_s, time.process_time() - process_s
    return 1000 * ended[0] / steps, 1000 * ended[1] / steps


def sync_designs(steps: int = 200) -> Iterator[str]:
    """Yield the times of micro-batches into a p-stream by the way of their syncs; designs take turns."""
    syncs = {"each file": False, "all at once": True}
    with ExitStack() as stack:
        places = {name: Path(stack.enter_context(scratch("local"))) for name in [*syncs, "memory"]}
        runs = {}
        for name, place in places.items():
            sink = "pstream" if name in syncs else "memory"
            with mock.patch.object(FileSystem, "syncs_all", syncs.get(name, False)):
                runs[name] = (*_stepped(place, sink, STEP_ROWS), list[float]())
        for _ in range(steps):
            for running, _, all_ms in runs.values():
                begin = monotonic_s()
                running.step()
                all_ms.append(1000 * (monotonic_s() - begin))
        for name, (_, timed, all_ms) in runs.items():
            taken = [
                "  ".join(f"p{share} {np.percentile(some, share):.1f}" for share in (25, 50, 90))
                for some in (all_ms, timed.took_ms[-steps:])
            ]
            yield f"{name:>12}  micro-batch {taken[0]}" + (f"  sink {taken[1]}" if name in syncs else "")


def first_row_s(place: Path) -> float:
    """Return the seconds from the start of a process to its first row."""
    market = Market(rate=10_000)
    if not (place / "in").exists():
        with PStreamWriter(place / "in", market.batch(0, 1).schema) as writer:
            writer.append(pa.Table.from_batches([market.batch(0, 10_000)]))
    number = len(list(place.glob("first-*.yaml")))
    file = place / f"first-{number}.yaml"
    file.write_text(
        f"engine: local\nsource: {{type: pstream, path: {place / 'in'}}}\n"
        "queue: {key: symbol, time: time}\nsink: {type: console}\n"
        f"query: {{name: first-{number}, checkpoint: {place}/checkpoint-{number}, trigger: available_now}}\n"
    )
    begin = monotonic_s()
    command = [sys.executable, "-m", "penstock.cli", "run", str(file), "--no-progress"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        passed = monotonic_s() - begin
        process.stdout.read()
    assert line.startswith("batch "), line
    return passed


def report(seconds: float, rates: Sequence[int], starts: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield machine()
    yield f"load average before: {os.getloadavg()[0]:.1f}"
    with scratch("local") as name:
        place = Path(name)
        if starts:
            first_row_s(place)  # compiles
            times = [first_row_s(place) for _ in range(starts)]
            yield (
                f"first row after the start of the process: median {statistics.median(times):.2f} s, "
                f"least {min(times):.2f} s, most {max(times):.2f} s of {starts}"
            )
    yield "from a tuple to its result, in ms; a linecutting queue of 3,000 symbols, one bucket"
    for rate in rates:
        for sink in SINKS:
            with scratch("local") as name:
                facts = latency(Path(name), rate, seconds, sink)
            yield f"{rate:>9,} tuples/s  " + "  ".join(f"{name} {value}" for name, value in facts.items())
    yield f"CPU of a micro-batch of {STEP_ROWS:,} tuples, in ms; the load of the machine changes it little"
    for sink in SINKS:
        with scratch("local") as name:
            thread_ms, process_ms = step_cpu_ms(Path(name), sink)
        yield f"sink {sink}  its thread {thread_ms:.1f}  all threads {process_ms:.1f}"
    yield f"time of a micro-batch of {STEP_ROWS:,} tuples in ms, by syncs of the p-stream's sink, in turns"
    yield from sync_designs()
    yield f"load average after: {os.getloadavg()[0]:.1f}"


def main() -> None:
    """Print the report, and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rates", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    print_and_save(report(arguments.seconds, arguments.rates, arguments.starts), arguments.out)


if __name__ == "__main__":
    main()
