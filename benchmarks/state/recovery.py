"""Measure the throughput of a graph before, during and after a kill (Scabbard, Fig. 10).

    python -m benchmarks.state.recovery [--gigabytes 1] [--keys 1000000] [--seconds 120] [--plot FILE.svg]

A process appends to a p-stream, at half of the rate that the graph can sustain, which is measured first; the
graph's update queue passes the newest tuple of each key on to another p-stream. In the middle of the run the
driver, its JVM and its workers are killed, and the graph is started again at once. The p-stream holds a
gigabyte, for another reader that has not released it, and the state a hundred megabytes. Rows are counted
where they are durable: in the log of the second p-stream.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import descendants, machine, median, pyplot, save, scratch, session
from penstock.checkpointing.p_stream import PStream, PStreamWriter

SCHEMA = pa.schema(
    [("key", pa.int64()), ("time", pa.int64()), ("value", pa.float64()), ("text", pa.binary(16))]
)
_CHUNK = 1 << 18
_BATCH_ROWS = 2 << 20
_STEPS_S = 0.1
"""The interval at which the source appends and the sink is polled."""


def rows(first: int, count: int, keys: int) -> pa.Table:
    """Return tuples that hardly compress."""
    generator = np.random.default_rng(first)
    columns = [
        pa.array(generator.integers(0, keys, count)),
        pa.array(np.arange(first, first + count)),
        pa.array(generator.random(count)),
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), count, [None, pa.py_buffer(generator.bytes(16 * count))]
        ),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def fill(place: Path, gigabytes: float, keys: int) -> int:
    """Make a p-stream of so many bytes, which a reader holds; return its rows."""
    PStream(place, SCHEMA).subscribe("holds")
    count = 0
    with PStreamWriter(place, goal="fast") as writer:
        while writer.metrics()["written_bytes"] < gigabytes * 1e9:
            writer.append(rows(count, _CHUNK, keys))
            count += _CHUNK
    return count


def feed(place: Path, first: int, rate: float, keys: int) -> None:
    """Append tuples at a rate until the process is killed."""
    with PStreamWriter(place, goal="fast") as writer:
        begin, sent = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begin) * rate)
            if due > sent:
                writer.append(rows(first + sent, due - sent, keys))
                sent = due
            time.sleep(_STEPS_S)  # the pace of a source; nothing is waited for


def work(place: Path) -> None:
    """Run the graph until the process is killed; print what happens."""
    import penstock
    from penstock.spark_ext.api.metrics import batch_metrics

    def tell(event: str, **facts: Any) -> None:
        print(json.dumps({"event": event, "at": time.time(), **facts}), flush=True)

    spark = session(**{"spark.ui.showConsoleProgress": "false"})
    tell("spark")
    newest = (
        penstock.graph("recovery")
        .source("rows", SCHEMA, key="key", time="time")
        .update_queue("key", "time", buckets=2)
        .sink("pstream", path=str(place / "sink"), goal="fast")
    )
    running = penstock.start(
        newest, spark, place / "checkpoint", sources={"rows": place / "rows"}, max_rows=_BATCH_ROWS
    )
    tell("started")
    with running:
        told = -1
        while not running.await_termination(_STEPS_S / 2):
            for batch in running.queries["results"].recentProgress:
                metrics = batch_metrics(batch)
                if batch.batchId > told and metrics:
                    told = batch.batchId
                    offset = json.loads(batch.sources[0].endOffset)["offset"]
                    phases = running.recovery and asdict(running.recovery)
                    tell("batch", offset=offset, metrics=metrics[0], recovery=phases)


class Job:
    """The graph's process, and its output."""

    def __init__(self, place: Path) -> None:
        self.told: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._ended = False
        self.process = _run("--work", str(place))
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, out: IO[str]) -> None:
        for line in out:
            with self._news:
                self.told.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def batches(self) -> list[dict[str, Any]]:
        """Return what was told of micro-batches."""
        return [one for one in self.told if one["event"] == "batch"]

    def wait_for(self, offset: int) -> None:
        """Wait until the graph has read its source up to an offset."""

        def has_read() -> bool:
            return any(batch["offset"] >= offset for batch in self.batches())

        with self._news:
            self._news.wait_for(lambda: self._ended or has_read())
        if not has_read():
            raise SystemExit("the graph ended by itself")


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and all below it."""
    for pid in descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _run(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.state.recovery", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def measure(place: Path, gigabytes: float, keys: int, seconds: float) -> dict[str, Any]:
    """Run, kill and run again; return rates, times and samples."""
    filled = fill(place / "rows", gigabytes, keys)
    size = sum(path.stat().st_size for path in (place / "rows").rglob("*.segment"))
    print(f"{filled:,} rows in {size / 1e9:.2f} GB", flush=True)
    job = Job(place)
    job.wait_for(filled)
    batches, sink = job.batches(), place / "sink"
    # The first is slower, and the last may be smaller.
    sustained = median(
        [(b["offset"] - a["offset"]) / (b["at"] - a["at"]) for a, b in pairwise(batches[1:-1])]
    )
    state_bytes = batches[-1]["metrics"]["state_bytes"]
    feeder = _run(
        "--feed", str(place), "--first", str(filled), "--rate", str(sustained / 2), "--keys", str(keys)
    )
    samples: list[tuple[float, int]] = []
    begin = time.time()
    killed = again = None
    try:
        while (now := time.time()) < begin + seconds:
            samples.append((now - begin, PStream(sink).end))
            if again is None and now > begin + seconds / 2:
                _kill(job.process)
                killed = time.time()
                again = Job(place)
            time.sleep(max(0.0, _STEPS_S - (time.time() - now)))  # the pace of samples; nothing is waited for
    finally:
        for process in (feeder, job.process, *([again.process] if again else [])):
            _kill(process)
    if again is None or killed is None or not again.batches():
        raise SystemExit("no results came after the kill; give it more --seconds")
    return {
        "sustained": sustained,
        "state MB": state_bytes / 1e6,
        "killed": killed - begin,
        "samples": samples,
        "events": {one["event"]: one["at"] - killed for one in reversed(again.told)},
        "first": again.batches()[0],
        "recovery": again.batches()[-1]["recovery"],
    }


def report(found: dict[str, Any]) -> None:
    """Print how the time from the kill to the first results divides."""
    events, first = found["events"], found["first"]
    load = first["metrics"]["duration_ms"]["load"] / 1000
    phases = {name: took for name, took in (found["recovery"] or {}).items() if name.endswith("_s")}
    # The last phase is the micro-batch that was under way, done again by Spark and by us.
    replay = phases.pop("upstream_replay_s", float("nan"))
    ours = sum(phases.values()) + load
    before, after = (_rate(found, *part) for part in _parts(found))
    print(f"sustained {found['sustained'] / 1e6:.2f} M rows/s; state {found['state MB']:.0f} MB")
    print(f"M rows/s out of the graph: {before / 1e6:.2f} before the kill, {after / 1e6:.2f} at the end")
    print(f"{'after the kill, s':44}")
    print(f"  {'Python, JVM and session are there':42}{events['spark']:8.2f}")
    print(f"  {'the graph is started':42}{events['started']:8.2f}")
    print(f"  {'results of the first micro-batch':42}{events['batch']:8.2f}")
    print(f"{'of this ours, s':44}{ours:8.3f}")
    for name, took in phases.items():
        print(f"  {name.removesuffix('_s').replace('_', ' '):42}{took:8.3f}")
    print(f"  {'load of the state (both buckets)':42}{load:8.3f}")
    print(f"{'and the micro-batch that was under way':44}{replay:8.2f}")


def _parts(found: dict[str, Any]) -> list[tuple[float, float]]:
    end = found["samples"][-1][0]
    return [(found["killed"] / 2, found["killed"]), (0.75 * end, end)]


def _rate(found: dict[str, Any], begin: float, end: float) -> float:
    inside = [one for one in found["samples"] if begin <= one[0] <= end]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def plot(found: dict[str, Any], file: Path) -> None:
    """Draw rows a second at the sink."""
    figure, axis = pyplot().subplots(figsize=(8, 3), layout="constrained")
    times, ends = (np.array(one) for one in zip(*found["samples"], strict=True))
    width = round(1 / _STEPS_S)
    axis.plot(times[width:], (ends[width:] - ends[:-width]) / (times[width:] - times[:-width]) / 1e6)
    axis.axvline(found["killed"], color="C3", label="kill -9")
    for number, (event, label) in enumerate((("spark", "Spark is up"), ("batch", "first results")), 1):
        at = found["killed"] + found["events"][event]
        axis.axvline(at, color=f"C{number}", linestyle=":", label=label)
    axis.set(xlabel="seconds", ylabel="million rows a second", ylim=(0, None))
    axis.legend()
    axis.grid(visible=True, alpha=0.3)
    save(figure, file)


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the p-stream")
    parser.add_argument("--keys", type=int, default=1_000_000, help="in the state")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the run; the kill is in the middle")
    parser.add_argument("--plot", type=Path)
    for name, kind in (("--work", Path), ("--feed", Path), ("--first", int), ("--rate", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
    elif arguments.feed:
        feed(arguments.feed / "rows", arguments.first, arguments.rate, arguments.keys)
    else:
        print(machine(), flush=True)
        with scratch("recovery") as place:
            found = measure(Path(place), arguments.gigabytes, arguments.keys, arguments.seconds)
        report(found)
        if arguments.plot:
            plot(found, arguments.plot)


if __name__ == "__main__":
    main()
