"""Check a freshness contract for a long time, under overload, with a slow sink and kills.

Usage: ``script/soak --contract [--engine spark] [--minutes 10] [--load 5] [--report FILE]``. Updates of keys
come `load` times as fast as the sink takes rows. The process that serves them (`contract_job`, on the local
engine or on Spark) is killed at random moments, with all processes that it started, and started again. This
process measures staleness itself, from what it sent and what came out. In one minute of each ten the sink is
six times slower, and the promise cannot hold.

1. While the process runs, a promise that is broken is reported within five seconds: by the metrics of a
   micro-batch, or by a warning in the log. A dead process reports nothing, so its restart is not counted. It
   lasts until the process says that it has started. The report names these seconds.
2. Memory of the process and disk use of p-stream, state and checkpoint do not grow. Disk use is compared by
   what stays when garbage is deleted, by the peaks of each directory, and for the p-stream by the peak in
   relation to the longest time without a micro-batch, because unread rows stay.
3. In the end the table has the newest row of each key.
4. While the measured promise holds for a whole window, few reports say that it is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.errors import PenstockError
from tests.crash.harness import kill_all, processes_of
from tests.crash.p_streams.soak import size_of
from tests.crash.pipelines.contract_oracle import (
    PATIENCE_S,
    WINDOW_S,
    Oracle,
    Tick,
    count_false_alarms,
    find_breaches,
    find_floor,
    longest_gap,
)
from tests.crash.pipelines.contract_table import LIMIT_S, MS_OF_A_ROW, SHARE, is_slow

__all__ = ["main"]

_KEYS: Final = 200
_SCHEMA: Final = pa.schema({"k": pa.string(), "t": pa.int64(), "arrived": pa.timestamp("us", "UTC")})
_TICK_S: Final = 0.25
_SLACK: Final = 1.3
"""The greatest ratio of the second half's use to the first half's."""
_SLICE_S: Final = 150.0
"""Garbage of all kinds is deleted several times in such a time, also if it has a slow minute of the sink."""
_SAMPLE_TICKS: Final = 20
_BROKEN: Final = b"promise of freshness broken"
"""The beginning of warnings in the log."""
_MAX_FALSE: Final = 0.1
"""The share of reports of a kept promise that may say it is broken. The operator counts a result as late
until its micro-batch has ended, so both differ where a promise is just kept."""
_BETWEEN_KILLS_S: Final = (90.0, 270.0)
_BATCHES_AFTER_START: Final = 3
"""Keys are late until a process has started and has served what waited, in so many micro-batches: the
repeated one, a short one, and one that serves all. The measured promise shows that for another window."""
_LONGEST_START_S: Final = 60.0
"""Micro-batches that begin after this time do not belong to a start."""
_AFTER_SLOW_S: Final = 60.0
"""The time in which the rows that waited for the slow sink are served."""


class _Process:
    """The job, and what it says."""

    def __init__(self, place: Path, engine: str) -> None:
        self._path = place / "log"
        self._log = self._path.open("ab")
        self._read = self._log.tell()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.pipelines.contract_job", str(place), engine],
            stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: deque[tuple[float, dict[str, Any]]] = deque()
        self.begin_s = time.monotonic()
        self.runs = False
        self.batches = 0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        if self.popen.stdout is None:
            return
        for line in self.popen.stdout:
            try:
                self.lines.append((time.monotonic(), json.loads(line)))
            except ValueError:
                return  # a line that a kill has cut

    def count_warnings(self) -> int:
        """Return how many warnings of a broken promise are new in the log."""
        with self._path.open("rb") as log:
            log.seek(self._read)
            lines, end, _ = log.read().rpartition(b"\n")
        self._read += len(lines + end)
        return lines.count(_BROKEN)

    def memory_bytes(self) -> int:
        """Return the memory in RAM of all processes."""
        pages = 0
        for number in processes_of(self.popen.pid):
            with contextlib.suppress(FileNotFoundError, IndexError, ProcessLookupError):
                pages += int(Path(f"/proc/{number}/statm").read_text().split()[1])
        return pages * 4096

    def kill(self) -> None:
        """Kill all processes."""
        kill_all(self.popen)
        self._close()

    def stop(self) -> None:
        """Let the process serve what waits, and end."""
        self.popen.terminate()
        self.popen.wait()
        self._close()

    def _close(self) -> None:
        self._thread.join()
        self._log.close()


def main(arguments: list[str] | None = None) -> int:
    """Run for some minutes; return 0 if all held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--load", type=float, default=5, help="updates for each row that the sink can take")
    parser.add_argument("--report", type=Path, help="file for the report")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="contract-soak-") as name:
        lines, passed = _Soak(Path(name), chosen).run()
    text = "\n".join(
        [
            machine(),
            f"engine={chosen.engine} minutes={chosen.minutes:g} load={chosen.load:g} seed={chosen.seed}",
            *lines,
        ]
    )
    print(text)
    if chosen.report is not None:
        chosen.report.write_text(text + "\n", encoding="utf-8")
    return 0 if passed else 1


@dataclass
class _Use:
    """Memory, disk use and micro-batches of a half of the run."""

    memory: int = 0
    disk: list[tuple[float, int]] = field(default_factory=list)
    peaks: Counter[str] = field(default_factory=Counter)
    batches_s: list[float] = field(default_factory=list)

    def add(self, now: float, memory: int, place: Path) -> None:
        """Add a sample."""
        self.memory = max(self.memory, memory)
        parts = {"in": size_of(place / "in")[1]}
        for directory in (place / "checkpoint").glob("*/"):
            parts[f"checkpoint/{directory.name}"] = size_of(directory)[1]
        self.disk.append((now, sum(parts.values())))
        self.peaks |= Counter(parts)

    def is_bound_of(self, later: _Use) -> bool:
        """Return whether a later half does not use more."""
        longer = max(1.0, longest_gap(later.batches_s) / max(longest_gap(self.batches_s), 1e-9))
        return (
            later.memory <= self.memory * _SLACK
            and find_floor(later.disk, _SLICE_S) <= find_floor(self.disk, _SLICE_S) * _SLACK
            and all(
                peak <= self.peaks[part] * _SLACK * (longer if part == "in" else 1.0)
                for part, peak in later.peaks.items()
            )
        )

    def __str__(self) -> str:
        """Return the use for people."""
        parts = ", ".join(f"{part} {peak >> 10}" for part, peak in sorted(self.peaks.items()))
        return (
            f"memory {self.memory >> 20} MiB; disk in KiB: floor {find_floor(self.disk, _SLICE_S) >> 10}, "
            f"peak {max((used for _, used in self.disk), default=0) >> 10} (of {parts}); "
            f"{longest_gap(self.batches_s):.0f} s without a micro-batch"
        )


class _Soak:
    """One run."""

    def __init__(self, place: Path, chosen: argparse.Namespace) -> None:
        self._place, self._seconds, self._engine = place, 60 * chosen.minutes, chosen.engine
        self._rate = chosen.load * 1000 / MS_OF_A_ROW
        self._draws = random.Random(chosen.seed)
        ranks = np.arange(1, _KEYS + 1)
        self._shares = (1 / ranks**0.9) / (1 / ranks**0.9).sum()
        self._numbers = np.random.default_rng(chosen.seed)
        self._oracle = Oracle()
        self._sent = 0
        self._newest: dict[str, int] = {}
        self._ticks: list[Tick] = []
        self._reports: list[tuple[float, bool]] = []
        self._halves = (_Use(), _Use())
        self._half = self._halves[0]
        self._loads: list[float] = []
        self._kills = self._delivered = self._warnings = 0
        self._late: deque[tuple[float, float]] = deque()
        self._started_s = self._slow_s = -math.inf

    def run(self) -> tuple[list[str], bool]:
        """Return the report, and whether all held."""
        with PStreamWriter(self._place / "in", _SCHEMA, threads=1) as writer:
            self._send(writer, _KEYS)
            process = _Process(self._place, self._engine)
            begin = time.monotonic()
            due_s = sent_s = begin
            kill_s = begin + self._draws.uniform(*_BETWEEN_KILLS_S)
            try:
                while (now := time.monotonic()) < begin + self._seconds:
                    due_s += _TICK_S
                    count = round(self._rate * (now - sent_s))
                    self._send(writer, count)
                    sent_s = now
                    self._half = self._halves[now > begin + self._seconds / 2]
                    self._note(process)
                    self._measure(process, now)
                    if now > kill_s and process.runs:
                        self._note(process)
                        process.kill()
                        self._note(process)
                        self._kills += 1
                        kill_s = now + self._draws.uniform(*_BETWEEN_KILLS_S)
                        process = _Process(self._place, self._engine)
                    elif process.popen.poll() is not None:
                        raise PenstockError(
                            "the process has ended", log=(self._place / "log").read_text()[-2000:]
                        )
                    rest_s = due_s - time.monotonic()
                    time.sleep(max(0.0, rest_s))  # the pace of updates; nothing is waited for
                self._note(process)
                process.stop()
            finally:
                process.kill()
        self._note(process)
        return self._report()

    def _send(self, writer: PStreamWriter, count: int) -> None:
        if not count:
            return
        if self._sent:
            keys = [f"k{n}" for n in self._numbers.choice(_KEYS, count, p=self._shares)]
        else:
            keys = [f"k{n}" for n in range(count)]
        times = range(self._sent, self._sent + count)
        self._sent += count
        at_us = time.time_ns() // 1000
        arrived = pa.array([at_us] * count, pa.int64()).cast(_SCHEMA.field("arrived").type)
        at_s = time.monotonic()
        for key, one in zip(keys, times, strict=True):
            self._oracle.send(key, one, at_s)
            self._newest[key] = one
        writer.append(pa.table({"k": keys, "t": list(times), "arrived": arrived}, _SCHEMA))
        writer.flush()

    def _note(self, process: _Process) -> None:
        while process.lines:
            at, line = process.lines.popleft()
            process.runs = True
            if "started" in line:
                continue
            process.batches += 1
            self._reports.append((at, line["kept"]))
            self._half.batches_s.append(at)
            self._delivered += len(line["delivered"])
            for key, one in line["delivered"]:
                self._oracle.deliver(key, one)
        count = process.count_warnings()
        self._warnings += count
        self._reports += [(time.monotonic(), False)] * count

    def _measure(self, process: _Process, now: float) -> None:
        self._late.append((now, self._oracle.share_late(now)))
        while self._late[0][0] < now - WINDOW_S:
            self._late.popleft()
        late = float(np.mean([share for _, share in self._late]))
        self._ticks.append(Tick(now, late, process.runs, self._circumstances(process, now)))
        if len(self._ticks) % _SAMPLE_TICKS == 0:
            self._loads.append(os.getloadavg()[0])
            self._half.add(now, process.memory_bytes(), self._place)

    def _circumstances(self, process: _Process, now: float) -> str:
        if process.batches < _BATCHES_AFTER_START and now < process.begin_s + _LONGEST_START_S:
            self._started_s = now
        if is_slow(time.time()):
            self._slow_s = now
        if now < self._slow_s + _AFTER_SLOW_S:
            return "during and after slow minutes of the sink"
        return "after a start" if now < self._started_s + WINDOW_S else "else"

    def _shares_by_circumstance(self) -> Iterator[str]:
        """Yield a line with the broken share of time for each of the circumstances."""
        for when in dict.fromkeys(tick.when for tick in self._ticks):
            late = [tick.late > 1 - SHARE for tick in self._ticks if tick.when == when]
            yield f"  {when}: {len(late) * _TICK_S / 60:.1f} min, broken {np.mean(late):.1%} of the time"

    def _report(self) -> tuple[list[str], bool]:
        breaches = find_breaches(self._ticks, self._reports)
        missed = [one for one in breaches if not one.is_excused()]
        with closing(sqlite3.connect(self._place / "table.db")) as connection:
            table = dict(connection.execute("SELECT k, t FROM newest").fetchall())
        wrong = sum(table.get(key) != one for key, one in self._newest.items())
        first, second = self._halves
        broken = sum(tick.late > 1 - SHARE for tick in self._ticks) / max(len(self._ticks), 1)
        false, calm = count_false_alarms(self._ticks, self._reports)
        told = sum(not kept for _, kept in self._reports)
        begin_s = self._ticks[0].at_s if self._ticks else 0.0
        lines = [
            f"load average: {min(self._loads):.0f} to {max(self._loads):.0f}, "
            f"median {median(self._loads):.1f}",
            f"updates sent {self._sent:,}, rows delivered {self._delivered:,}, kills {self._kills}, "
            f"reports {len(self._reports):,}, of which {self._warnings:,} are warnings in the log",
            f"promise p{SHARE * 100:g} {LIMIT_S:g} s, measured outside: broken {broken:.1%} of the time; "
            f"{told:,} reports say so",
            *self._shares_by_circumstance(),
            f"clear breaches {len(breaches)}, not reported within {PATIENCE_S:g} s of the process's life: "
            f"{len(missed)}",
            *(f"  at {one.begin_s - begin_s:6.1f} s for {one}" for one in breaches),
            f"false alarms: {false} of {calm} reports while the promise was kept",
            f"first half: {first}",
            f"second half: {second}",
            f"keys whose newest row is not in the table: {wrong} of {len(self._newest)}",
        ]
        bounded = first.is_bound_of(second)
        passed = bounded and not missed and not wrong and false <= _MAX_FALSE * calm
        return [*lines, "all held" if passed else "FAILED"], passed


if __name__ == "__main__":
    sys.exit(main())
