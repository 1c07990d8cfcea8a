"""A pipeline whose store stands still and is slow: ``python -m benchmarks.upserts.store_outage``.

Updates of random keys go into a p-stream; ``penstock run`` conflates them and upserts them into PostgreSQL or
Redis. The server is stopped by SIGSTOP and continued after `--outage` seconds; later it is slow for as long:
it stands still for nine tenths of each second. *Lag* is the age of the newest row of the table; the
*staleness* of a key is the time since the first update that its row lacks (UpStream §3.3), zero if it lacks
none. In the end the table is compared with the newest update of each key.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from adbc_driver_postgresql import dbapi

from benchmarks.harness import descendants, machine, scratch
from penstock.checkpointing.p_stream import PStreamWriter
from tests.servers.servers import PostgreSql, Redis, Server

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "v": pa.float64()})
PIPELINE = """
source: {type: pstream, path: updates}
queue:
  key: k
  time: t
  budget: ${BUDGET}
  policy: in_place
sink: {type: upsert, to: "${DATABASE}", table: newest, create: true}
query:
  checkpoint: checkpoint
  trigger: 500 ms
  metrics: metrics.jsonl
  spark: {spark.sql.shuffle.partitions: 2}
"""
PATIENCE_S = 300.0


class Updates:
    """Updates of random keys, written to a p-stream at a steady rate until `end`; `t` is the time in µs."""

    def __init__(self, place: Path, keys: int, rate: int) -> None:
        self._place, self._keys, self._rate = place, keys, rate
        self._parts: list[pa.Table] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        with PStreamWriter(place, SCHEMA):
            pass

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop sending; a second call does nothing."""
        self._stop.set()
        self._thread.join()

    def sent(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the keys and times that were sent."""
        table = pa.concat_tables(list(self._parts))
        return table["k"].to_numpy(), table["t"].to_numpy()

    def newest(self) -> dict[int, int]:
        """Return the time of the newest update of each key."""
        keys, times = self.sent()
        return dict(zip(keys.tolist(), times.tolist(), strict=True))

    def _run(self) -> None:
        rng = np.random.default_rng(7)
        with PStreamWriter(self._place, SCHEMA) as writer:
            begin, rows = time.time(), 0
            while not self._stop.wait(0.1):
                count = int((time.time() - begin) * self._rate) - rows
                rows += count
                times = int(time.time() * 1e6) + np.arange(count)
                part = pa.table([rng.integers(0, self._keys, count), times, rng.random(count)], SCHEMA)
                self._parts.append(part)
                writer.append(part)


def staleness_s(
    sent: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], rows: dict[int, int], now_us: int
) -> Any:
    """Return the staleness of each key that was sent before a moment."""
    known = sent[1] <= now_us
    keys, times = sent[0][known], sent[1][known]
    stored = np.array([rows.get(key, -1) for key in range(int(keys.max()) + 1)])
    lacking = times > stored[keys]
    first = np.full(stored.size, now_us)
    np.minimum.at(first, keys[lacking], times[lacking])
    return (now_us - first[np.unique(keys)]) / 1e6


def rows_of_postgresql(uri: str) -> dict[int, int]:
    """Return the times of the keys."""
    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('newest') IS NOT NULL")
        if cursor.fetchone() != (True,):
            return {}
        cursor.execute("SELECT k, t FROM newest")
        return dict(cursor.fetchall())


def rows_of_redis(uri: str) -> dict[int, int]:
    """Return the times of the keys."""
    from redis import Redis as Client

    with Client.from_url(uri) as client, client.pipeline(transaction=False) as pipeline:
        for name in client.scan_iter("newest:*", count=1_000):
            pipeline.hmget(name, "k", "t")
        return {int(key): int(time_us) for key, time_us in pipeline.execute()}


STORES: dict[str, tuple[type[PostgreSql] | type[Redis], Callable[[str], dict[int, int]]]] = {
    "postgresql": (PostgreSql, rows_of_postgresql),
    "redis": (Redis, rows_of_redis),
}


class Table:
    """The table of the store."""

    def __init__(self, read: Callable[[], dict[int, int]]) -> None:
        self._read = read
        self.looks: list[tuple[int, dict[int, int]]] = []

    @property
    def rows(self) -> dict[int, int]:
        """The times of the keys at the last look."""
        return self.looks[-1][1] if self.looks else {}

    def look(self) -> None:
        """Read the table."""
        now_us = int(time.time() * 1e6)
        self.looks.append((now_us, self._read()))

    def look_until(self, condition: Callable[[], bool], query: subprocess.Popen[bytes]) -> None:
        """Look five times a second until a condition holds, while the query runs."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end or query.poll() is not None:
                raise SystemExit(f"the table did not get there; the query's code is {query.poll()}")
            self.look()
            time.sleep(0.2)  # polls: a table tells nobody of new rows


@contextmanager
def standing_still(server: Server) -> Iterator[None]:
    """Stop the server and its backends while entered."""
    processes = [server.process.pid, *descendants(server.process.pid)]
    for process in processes:
        with suppress(ProcessLookupError):  # the backend of a connection that ends just now
            os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def slow_down(server: Server, seconds: float) -> None:
    """Let the server run for a tenth of each second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with standing_still(server):
            time.sleep(0.9)  # the slow store itself; nothing is waited for
        time.sleep(0.1)  # its turn to run; nothing is waited for


def measure(place: Path, server: PostgreSql | Redis, settings: argparse.Namespace) -> None:
    """Run the pipeline through all phases, and print them."""
    updates = Updates(place / "updates", settings.keys, settings.rate)
    table = Table(partial(STORES[settings.store][1], server.uri))
    (place / "pipeline.yaml").write_text(PIPELINE)
    environment = os.environ | {"DATABASE": server.uri, "BUDGET": str(settings.budget)}
    phases: list[tuple[str, float]] = []

    def begin(name: str) -> Callable[[], bool]:
        """Begin a phase; return whether it is over."""
        phases.append((name, time.time()))
        return lambda: time.time() > phases[-1][1] + settings.seconds

    with (place / "log").open("wb") as log:
        command = [sys.executable, "-c", "from penstock.cli import main; main()", "run", "pipeline.yaml"]
        query = subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log)
    updates.start()
    try:
        table.look_until(lambda: len(table.rows) == settings.keys, query)
        table.look_until(begin("steady"), query)
        begin("down")
        with standing_still(server):
            time.sleep(settings.outage)  # the outage itself; nothing is waited for
        table.look_until(begin("back"), query)
        begin("slow")
        slow = threading.Thread(target=slow_down, args=(server, settings.outage))
        slow.start()
        table.look_until(lambda: not slow.is_alive(), query)
        table.look_until(begin("fast again"), query)
        updates.end()
        newest = updates.newest()
        table.look_until(lambda: table.rows == newest, query)
        phases.append(("end", time.time()))
    finally:
        updates.end()
        query.send_signal(signal.SIGINT)
        query.wait()
    report(place, table, updates, phases)


def report(place: Path, table: Table, updates: Updates, phases: list[tuple[str, float]]) -> None:
    """Print a line for each phase."""
    keys, times = updates.sent()
    batches = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    print(f"{'phase':<12}{'updates':>9}{'batches':>9}{'emitted':>9}{'lag s':>14}{'staleness s':>15}")
    print(f"{'':<12}{'':>9}{'':>9}{'':>9}{'median':>8}{'max':>6}{'mean':>9}{'max':>6}")
    for (name, begin), (_, end) in itertools.pairwise(phases):
        within = [batch for batch in batches if begin <= _seconds(batch["timestamp"]) < end]
        looks = [(now, rows) for now, rows in table.looks if begin <= now / 1e6 < end]
        line = f"{name:<12}{((times >= begin * 1e6) & (times < end * 1e6)).sum():>9}{len(within):>9}"
        line += f"{sum(batch['emitted'] for batch in within):>9}"
        if looks:
            lags = [(now - max(rows.values())) / 1e6 for now, rows in looks]
            stale = np.array([staleness_s((keys, times), rows, now) for now, rows in looks])
            line += f"{statistics.median(lags):>8.1f}{max(lags):>6.1f}{stale.mean():>9.1f}{stale.max():>6.1f}"
        print(line)
    back = dict(phases)["back"]
    after = [(now / 1e6 - back, rows) for now, rows in table.looks if now / 1e6 > back]
    for text, time_of in (
        ("a row sent after the server was back", max),
        ("no row from before the server was back", min),
    ):
        reached = next(
            (f"{seconds:.1f} s" for seconds, rows in after if time_of(rows.values()) > back * 1e6),
            "not reached",
        )
        print(f"the table had {text}, after: {reached}")
    print(f"waiting keys at most: {max(batch['waiting_keys'] for batch in batches)}")
    print(f"keys of state at most: {max(batch['keys'] for batch in batches)}")
    print(f"bytes of state at most: {max(batch['state_bytes'] for batch in batches)}")
    print(f"in the end the table has the newest update of each key: {table.rows == updates.newest()}")


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--rate", type=int, default=5_000, help="updates a second")
    parser.add_argument("--budget", type=int, default=2_000, help="keys a micro-batch")
    parser.add_argument("--store", choices=STORES, default="postgresql")
    parser.add_argument("--outage", type=float, default=30.0, help="seconds that the store is down, and slow")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each other phase")
    settings = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    print(f"{settings.store}; the store is down, and slow, for {settings.outage:.0f} s each")
    print(f"{settings.keys} keys, {settings.rate} updates/s, budget {settings.budget} keys a micro-batch")
    server = STORES[settings.store][0]()
    try:
        with scratch("outage") as directory:
            measure(Path(directory), server, settings)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
