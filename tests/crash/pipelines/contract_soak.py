"""Check a freshness contract for a long time, under overload, with a slow sink and kills.

Usage: ``script/soak --contract [--minutes 10] [--load 5] [--report FILE]``. Updates of keys come `load`
times as fast as the sink takes rows. The process that serves them (`contract_job`, on the local engine) is
killed at random moments and started again. This process measures staleness itself, from what it sent and what
came out. In one minute of each ten the sink is six times slower, and the promise cannot hold.

1. While the process runs, a promise that is broken is reported within five seconds.
2. Memory of the process and disk use of p-stream, state and checkpoint do not grow.
3. In the end the table has the newest row of each key.
4. While the measured promise holds for a whole window, few reports say that it is broken.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import machine
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.errors import PenstockError
from tests.crash.p_streams.soak import size_of
from tests.crash.pipelines.contract_job import LIMIT_S, MS_OF_A_ROW, SHARE, is_slow

__all__ = ["CLEAR", "Breach", "Oracle", "Tick", "count_false_alarms", "find_breaches", "main"]

_KEYS: Final = 200
_SCHEMA: Final = pa.schema({"k": pa.string(), "t": pa.int64(), "arrived": pa.timestamp("us", "UTC")})
_TICK_S: Final = 0.25
_WINDOW_S: Final = 2 * LIMIT_S
"""The promise is judged over this time, as the operator does."""
_PATIENCE_S: Final = 5.0
CLEAR: Final = 1.5 * (1 - SHARE)
"""The share of keys and time beyond the limit above which a breach is clear: both sides measure in steps."""
_SLACK: Final = 1.3
"""How much larger the second half's peak may be than the first one's."""
_MOST_FALSE: Final = 0.25
"""The share of reports of a kept promise that may say it is broken. The operator forgets a breach slowly, and
counts a result as late until its micro-batch has ended."""
_BETWEEN_KILLS_S: Final = (90.0, 270.0)
_AFTER_START_S: Final = 15.0
"""Keys are late until a process that was killed has started again and has served what waited."""
_AFTER_SLOW_S: Final = 60.0
"""What waited for the slow sink is served in this time."""


@dataclass
class Oracle:
    """Staleness of keys as UpStream defines it: the age of the oldest update that was not delivered."""

    pending: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)

    def send(self, key: str, time_: int, at_s: float) -> None:
        """Note an update."""
        self.pending.setdefault(key, deque()).append((time_, at_s))

    def deliver(self, key: str, time_: int) -> None:
        """Note that a key's newest delivered update has a time."""
        waiting = self.pending[key]
        while waiting and waiting[0][0] <= time_:
            waiting.popleft()

    def share_late(self, now_s: float) -> float:
        """Return the share of keys that are staler than promised."""
        late = sum(bool(one) and now_s - one[0][1] > LIMIT_S for one in self.pending.values())
        return late / max(len(self.pending), 1)


@dataclass(slots=True)
class Breach:
    """A time in which the promise was broken.

    Attributes
    ----------
    begin_s, end_s : float
        When it began, and its last moment.
    late : float
        The greatest share of keys and time beyond the limit.
    alive_s : float
        For how long the process ran until it reported the breach, or until now.
    reported : bool
        Whether the process reported it.
    """

    begin_s: float
    end_s: float
    late: float = 0.0
    alive_s: float = 0.0
    reported: bool = False

    def __str__(self) -> str:
        """Return the breach for people, without its begin."""
        told = f"reported after {self.alive_s:.1f} s" if self.reported else "not reported"
        return f"{self.end_s - self.begin_s:5.1f} s, {self.late:.0%} late, {told}"

    def is_excused(self, patience_s: float = _PATIENCE_S) -> bool:
        """Return whether it was reported in time, or the process did not run for so long."""
        return self.alive_s <= patience_s


@dataclass(frozen=True, slots=True)
class Tick:
    """The measured standing of the promise at a moment: the share beyond the limit, and if it can be told.

    `when` says in which circumstances the process served.
    """

    at_s: float
    late: float
    runs: bool
    when: str = ""


def find_breaches(ticks: list[Tick], reports: list[tuple[float, bool]]) -> list[Breach]:
    """Return the breaches.

    Parameters
    ----------
    ticks : list of Tick
        What was measured.
    reports : list of (time, is kept)
        What the process said.
    """
    breaches: list[Breach] = []
    running: Breach | None = None
    before = ticks[0].at_s if ticks else 0.0
    for tick in ticks:
        if tick.late <= CLEAR:
            running = None
        else:
            if running is None:
                running = Breach(tick.at_s, tick.at_s)
                breaches.append(running)
            elif tick.runs and not running.reported:
                running.alive_s += tick.at_s - before
            running.end_s, running.late = tick.at_s, max(running.late, tick.late)
            # A report of the seconds before tells of the same window of time.
            begin_s = running.begin_s - _WINDOW_S
            running.reported = running.reported or any(
                begin_s <= at <= tick.at_s and not kept for at, kept in reports
            )
        before = tick.at_s
    return breaches


def count_false_alarms(ticks: list[Tick], reports: list[tuple[float, bool]]) -> tuple[int, int]:
    """Return how many reports say that a kept promise is broken, and how many reports there are of it.

    Only reports count before which the process ran, and the measured promise was kept, for a whole window.

    Parameters
    ----------
    ticks : list of Tick
        What was measured.
    reports : list of (time, is kept)
        What the process said.
    """
    calm_since: float | None = None
    false = calm = 0
    waiting = deque(sorted(reports))
    for tick in ticks:
        if not tick.runs or tick.late > 1 - SHARE:
            calm_since = None
        elif calm_since is None:
            calm_since = tick.at_s
        while waiting and waiting[0][0] <= tick.at_s:
            at, kept = waiting.popleft()
            if calm_since is not None and at - calm_since >= _WINDOW_S:
                calm += 1
                false += not kept
    return false, calm


class _Process:
    """The job, and what it says."""

    def __init__(self, place: Path) -> None:
        self._log = (place / "log").open("ab")
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.pipelines.contract_job", str(place)],
            stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self.lines: deque[tuple[float, dict[str, Any]]] = deque()
        self.runs = False
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

    @property
    def memory_bytes(self) -> int:
        """Memory in RAM."""
        try:
            pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
        except (FileNotFoundError, IndexError):
            return 0
        return pages * 4096

    def end(self, *, kill: bool) -> None:
        """End the process and wait for it."""
        self.popen.kill() if kill else self.popen.terminate()
        self.popen.wait()
        self._thread.join()
        self._log.close()


def main(arguments: list[str] | None = None) -> int:
    """Run for some minutes; return 0 if all held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--load", type=float, default=5, help="updates for each row that the sink can take")
    parser.add_argument("--report", type=Path, help="file for the report")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="contract-soak-") as name:
        lines, passed = _Soak(Path(name), chosen.minutes, chosen.load, chosen.seed).run()
    text = "\n".join(
        [machine(), f"minutes={chosen.minutes:g} load={chosen.load:g} seed={chosen.seed}", *lines]
    )
    print(text)
    if chosen.report is not None:
        chosen.report.write_text(text + "\n", encoding="utf-8")
    return 0 if passed else 1


class _Soak:
    """One run."""

    def __init__(self, place: Path, minutes: float, load: float, seed: int) -> None:
        self._place, self._seconds = place, 60 * minutes
        self._rate = load * 1000 / MS_OF_A_ROW
        self._draws = random.Random(seed)
        ranks = np.arange(1, _KEYS + 1)
        self._shares = (1 / ranks**0.9) / (1 / ranks**0.9).sum()
        self._numbers = np.random.default_rng(seed)
        self._oracle = Oracle()
        self._sent = 0
        self._newest: dict[str, int] = {}
        self._ticks: list[Tick] = []
        self._reports: list[tuple[float, bool]] = []
        self._peaks = [[0, 0], [0, 0]]
        self._kills = self._delivered = 0
        self._late: deque[tuple[float, float]] = deque()
        self._started_s = self._slow_s = -math.inf

    def run(self) -> tuple[list[str], bool]:
        """Return the report, and whether all held."""
        with PStreamWriter(self._place / "in", _SCHEMA, threads=1) as writer:
            self._send(writer, _KEYS)
            process = _Process(self._place)
            begin = time.monotonic()
            due_s = sent_s = begin
            kill_s = begin + self._draws.uniform(*_BETWEEN_KILLS_S)
            try:
                while (now := time.monotonic()) < begin + self._seconds:
                    due_s += _TICK_S
                    count = round(self._rate * (now - sent_s))
                    self._send(writer, count)
                    sent_s = now
                    self._note(process)
                    self._measure(process, now, int(now > begin + self._seconds / 2))
                    if now > kill_s and process.runs:
                        process.end(kill=True)
                        self._note(process)
                        self._kills += 1
                        kill_s = now + self._draws.uniform(*_BETWEEN_KILLS_S)
                        process = _Process(self._place)
                    elif process.popen.poll() is not None:
                        raise PenstockError(
                            "the process has ended", log=(self._place / "log").read_text()[-2000:]
                        )
                    rest_s = due_s - time.monotonic()
                    time.sleep(max(0.0, rest_s))  # the pace of updates; nothing is waited for
            finally:
                process.end(kill=False)
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
            if "started" in line:
                continue
            process.runs = True
            self._reports.append((at, line["kept"]))
            self._delivered += len(line["delivered"])
            for key, one in line["delivered"]:
                self._oracle.deliver(key, one)

    def _measure(self, process: _Process, now: float, half: int) -> None:
        self._late.append((now, self._oracle.share_late(now)))
        while self._late[0][0] < now - _WINDOW_S:
            self._late.popleft()
        late = float(np.mean([share for _, share in self._late]))
        self._ticks.append(Tick(now, late, process.runs, self._circumstances(process, now)))
        peaks = self._peaks[half]
        peaks[0] = max(peaks[0], process.memory_bytes)
        if len(self._ticks) % 20 == 0:
            used = sum(size_of(self._place / name)[1] for name in ("in", "checkpoint"))
            peaks[1] = max(peaks[1], used)

    def _circumstances(self, process: _Process, now: float) -> str:
        if not process.runs:
            self._started_s = now
        if is_slow(time.time()):
            self._slow_s = now
        if now < self._slow_s + _AFTER_SLOW_S:
            return "during and after slow minutes of the sink"
        return "after a kill" if now < self._started_s + _AFTER_START_S else "else"

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
        (memory, disk), (memory_later, disk_later) = self._peaks
        bounded = memory_later <= memory * _SLACK and disk_later <= disk * _SLACK
        broken = sum(tick.late > 1 - SHARE for tick in self._ticks) / max(len(self._ticks), 1)
        false, calm = count_false_alarms(self._ticks, self._reports)
        told = sum(not kept for _, kept in self._reports)
        begin_s = self._ticks[0].at_s if self._ticks else 0.0
        lines = [
            f"updates sent {self._sent:,}, rows delivered {self._delivered:,}, kills {self._kills}, "
            f"reports {len(self._reports):,}",
            f"promise p{SHARE * 100:g} {LIMIT_S:g} s, measured outside: broken {broken:.1%} of the time; "
            f"{told:,} reports say so",
            *self._shares_by_circumstance(),
            f"clear breaches {len(breaches)}, not reported within {_PATIENCE_S:g} s of the process's life: "
            f"{len(missed)}",
            *(f"  at {one.begin_s - begin_s:6.1f} s for {one}" for one in breaches),
            f"false alarms: {false} of {calm} reports while the promise was kept",
            f"peaks of memory in MiB: first half {memory >> 20}, second half {memory_later >> 20}",
            f"peaks of disk use in KiB: first half {disk >> 10}, second half {disk_later >> 10}",
            f"keys whose newest row is not in the table: {wrong} of {len(self._newest)}",
        ]
        passed = bounded and not missed and not wrong and false <= _MOST_FALSE * calm
        return [*lines, "all held" if passed else "FAILED"], passed


if __name__ == "__main__":
    sys.exit(main())
