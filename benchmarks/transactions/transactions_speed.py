"""Transactions a second of one core: GS, SL, OB and TP (TStream §VI-A), beside plain Python.

``python -m benchmarks.transactions.transactions_speed [--events N] [--keys N ...]`` prints a table. Kernels
run over the tables that queries have, with look-ups by key and undo logs, all rows changed since the last
version. Times are CPU time of the thread, the best of `ROUNDS`: of the kernel with events in NumPy as a
micro-batch has them, with and without prefetching, and with Arrow in and out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from benchmarks.transactions.transaction_dicts import DICTS
from penstock.procedures.engine import TableSet
from penstock.procedures.programs import PROGRAMS, PackagedProgram

ROUNDS = 5
NAMES = ("GS", "SL", "OB", "TP")


@dataclass(frozen=True)
class Workload:
    """A program with its events.

    Attributes
    ----------
    name : str
        The program's name.
    count, keys : int
        The numbers of events and of keys.
    """

    name: str
    count: int
    keys: int

    @property
    def program(self) -> PackagedProgram:
        """The program."""
        return PROGRAMS[self.name]

    @cached_property
    def events(self) -> pa.RecordBatch:
        """The events."""
        return self.program.workload(self.count, self.keys, 1)

    def loaded(self) -> TableSet:
        """Return tables with their first rows."""
        state = TableSet(self.program.database.tables.values())
        state.run(self.program.procedure.program(), self.program.opening(self.keys))
        return state


def best(rounds: int, run: Callable[[], Any]) -> float:
    """Return the least CPU time of this thread that a run takes, in seconds."""
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        run()
        times.append(time.thread_time() - begin)
    return min(times)


class Compiled:
    """A workload as compiled code over its tables."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.state = workload.loaded()
        self._program = workload.program.procedure.program()

    def run(self) -> None:
        """Run all events."""
        self.state.run(self._program, self.workload.events)

    def kernel_s(self, *, prefetches: bool = True) -> float:
        """Return the CPU time of the kernel alone."""
        spent = 0.0
        kernel = self._program.kernel

        def timed(*arguments: Any) -> int:
            nonlocal spent
            begin = time.thread_time()
            done = kernel(*arguments)
            spent += time.thread_time() - begin
            return done

        least = self.state.prefetch_index_bytes
        self._program.__dict__["kernel"] = timed
        self.state.prefetch_index_bytes = least if prefetches else 1 << 60
        try:
            self.run()
        finally:
            self.state.prefetch_index_bytes = least
            self._program.__dict__["kernel"] = kernel
        return spent


def plain_rate(workload: Workload, count: int) -> float:
    """Return transactions a second of plain Python over dicts, without checks, undo or versions."""
    dicts = DICTS[workload.name]()
    dicts.run(workload.program.opening(workload.keys))
    events = dicts.events(workload.events.slice(0, count))
    return len(events) / best(2, lambda: dicts.each(events))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="*", default=NAMES)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--plain-events", type=int, default=100_000)
    options = parser.parse_args()
    print(f"{options.events} transactions, CPU time of one thread, best of {ROUNDS}; M transactions/s")
    print("program      keys   kernel  not prefetching  Arrow in, out   dicts  first run s  tables MiB")
    for name in options.programs:
        for keys in options.keys:
            workload = Workload(name, options.events, keys)
            begin = time.monotonic()
            compiled = Compiled(workload)
            first = time.monotonic() - begin
            rounds = [(compiled.kernel_s(), compiled.kernel_s(prefetches=False)) for _ in range(ROUNDS)]
            kernel, without = (min(times) for times in zip(*rounds, strict=True))
            whole = best(ROUNDS, compiled.run)
            dicts = plain_rate(workload, min(options.plain_events, options.events))
            rates = [options.events / one / 1e6 for one in (kernel, without, whole)]
            print(
                f"{name:7} {keys:9}  {rates[0]:7.1f}  {rates[1]:15.1f}  {rates[2]:13.1f}  {dicts / 1e6:6.2f}"
                f"  {first:11.1f}  {compiled.state.size_bytes / 2**20:10.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
