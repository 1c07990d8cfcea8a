"""GS, SL, OB and TP (TStream §VI-A) here and in PostgreSQL, DuckDB and plain Python, event by event.

``python -m benchmarks.transactions.transactions_peers [--keys N]`` prints a table. Each contender has a
process of its own, and runs as many of the same events as it can in some seconds. Results and tables must be
those of Penstock for these events; of two threads with locks only the rate is taken. Memory is that of the
process and of servers, after the run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, run_contender
from benchmarks.transactions.transaction_peers import PEERS, UNORDERED, Peer
from benchmarks.transactions.transactions_speed import NAMES
from penstock.procedures.programs import PROGRAMS

EVENTS = {
    "penstock": 2_000_000,
    "dicts": 200_000,
    "dicts, locks": 100_000,
    "dicts, locks, 2 threads": 100_000,
    "duckdb": 1_000,
    "postgres, statements": 5_000,
    "postgres, procedures": 20_000,
    "postgres, inside": 50_000,
}
"""The number of events that each contender runs."""


def digest(peer: Peer) -> str:
    """Return what identifies results and tables."""
    tables = {name: sorted(rows) for name, rows in peer.tables().items()}
    return hashlib.sha256(repr((peer.outcomes(), sorted(tables.items()))).encode()).hexdigest()[:16]


def memory_mib(peer: Peer) -> float:
    """Return the memory of a contender's processes."""
    total = 0.0
    for process in peer.processes:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        total += int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
    return total / 1024


def measure(name: str, program: str, keys: int, events: int, *, checks: bool) -> dict[str, Any]:
    """Run a contender in this process."""
    peer = PEERS[name](program, keys)
    try:
        peer.prepare(PROGRAMS[program].workload(events, keys, 1))
        begin = time.monotonic()
        peer.run()
        seconds = time.monotonic() - begin
        made = {"seconds": seconds, "MiB": memory_mib(peer)}
        return made | ({"digest": digest(peer)} if checks else {})
    finally:
        peer.close()


def contend(name: str, program: str, keys: int, events: int, *, checks: bool) -> dict[str, Any]:
    """Run a contender in a process of its own."""
    options = ["--one", name, "--programs", program, "--keys", str(keys), "--events", str(events)]
    return run_contender("transactions.transactions_peers", *options, *(["--check"] if checks else []))


def main() -> None:
    """Print the table, or run one contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="*", default=NAMES)
    parser.add_argument("--contenders", nargs="*", default=list(PEERS))
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--share", type=float, default=1.0, help="Of the events that contenders run.")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        made = measure(options.one, options.programs[0], options.keys, options.events, checks=options.check)
        print(json.dumps(made))
        return
    print(machine())
    print(f"{options.keys} keys; load {os.getloadavg()[0]:.1f}")
    print("program  contender                  events  transactions/s  penstock = 1     MiB  results")
    for program in options.programs:
        counts = {name: max(int(EVENTS[name] * options.share), 1) for name in options.contenders}
        ours = contend("penstock", program, options.keys, max(counts.values()), checks=False)
        own_rate = max(counts.values()) / ours["seconds"]
        known: dict[int, str] = {}
        for name, events in counts.items():
            checks = name not in UNORDERED and name != "penstock"
            made = contend(name, program, options.keys, events, checks=checks) if name != "penstock" else ours
            if checks and events not in known:
                known[events] = contend("penstock", program, options.keys, events, checks=True)["digest"]
            same = "" if not checks else "equal" if made["digest"] == known[events] else "DIFFERENT"
            rate = events / made["seconds"]
            print(
                f"{program:7}  {name:24}  {events:7}  {rate:14,.0f}  {rate / own_rate:12.6f}"
                f"  {made['MiB']:6.0f}  {same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
