"""Latency of transactions in one process, from the request to the durable answer, at fixed rates.

    python -m benchmarks.databases.database_latency [--seconds 10] [--rates 10000 100000]
        [--intervals 0ms 1ms 10ms]

Requests transfer money between 10,000 accounts. They arrive on time, even if earlier ones are not answered
yet. The log is a write-ahead log and a p-stream, or a p-stream alone. SQLite (WAL, synchronous=FULL) commits
groups of transactions one after the other, as fast as it can.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head, scratch
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase

__all__ = ["report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "database_latency.txt"
ACCOUNTS = 10_000

Submit = Callable[[int, int, int], Future[Any]]


def bank() -> Database:
    """Return a database with one procedure."""
    made = penstock.database("bank")
    made.table("accounts", "id bigint, balance bigint NOT NULL", key="id")

    @made.procedure(event="source bigint, target bigint, amount bigint", returns="left bigint")
    def transfer(e: Any, accounts: Any) -> Any:
        source = accounts[e.source]
        source.balance -= e.amount
        accounts[e.target].balance += e.amount
        return source.balance

    return made


def _requests(count: int) -> list[tuple[int, int, int]]:
    draw = random.Random(1)
    return [(draw.randrange(ACCOUNTS), draw.randrange(ACCOUNTS), 1) for _ in range(count)]


def latencies(submit: Submit, rate: int, seconds: float) -> tuple[np.ndarray[Any, Any], float]:
    """Send requests at a rate; return their latencies in milliseconds, and the rate of answers."""
    count = max(int(rate * seconds), 1)
    requests = _requests(min(count, 50_000))
    ended = np.zeros(count)
    futures = []
    begin = time.perf_counter()

    def note(number: int, future: Future[Any]) -> None:
        ended[number] = time.perf_counter()

    sent = 0
    while sent < count:
        due = min(int((time.perf_counter() - begin) * rate) + 1, count)
        for number in range(sent, due):
            future = submit(*requests[number % len(requests)])
            future.add_done_callback(lambda done, number=number: note(number, done))  # type: ignore[misc]
            futures.append(future)
        sent = max(sent, due)
        rest = begin + sent / rate - time.perf_counter()
        time.sleep(max(rest, 0))  # the pace of clients; nothing is waited for
    for future in futures:
        future.result()
    due_at = begin + np.arange(count) / rate
    return 1_000 * (ended - due_at), count / (ended.max() - begin)


def _penstock(
    made: Database, place: str, interval: str, log: str, rate: int, seconds: float
) -> Sequence[float]:
    with made.open(place, commit_interval=interval) as db:
        if log == "p-stream":
            _without_write_ahead_log(db)
        db.load("accounts", {"id": range(ACCOUNTS), "balance": [1_000] * ACCOUNTS})
        db.submit("transfer", source=0, target=1, amount=0).result()

        def submit(source: int, target: int, amount: int) -> Future[Any]:
            return db.submit("transfer", source=source, target=target, amount=amount)

        taken, answered = latencies(submit, rate, seconds)
        total = sum(db.table("accounts")["balance"].to_pylist())
    if total != 1_000 * ACCOUNTS:
        raise AssertionError(f"{total} in all accounts")
    return [*np.percentile(taken, [50, 95, 99]), answered]


def _without_write_ahead_log(db: OpenDatabase) -> None:
    log = db._log
    if log is None or log._ahead is None:
        raise AssertionError("the database has no write-ahead log")
    log._ahead.close()
    log._ahead = None


def _sqlite(place: str, seconds: float, group: int) -> Sequence[float]:
    """Commit groups of transfers one after the other; return percentiles of a commit's time, and the rate."""
    connection = sqlite3.connect(f"{place}/bank.sqlite", isolation_level=None)
    try:
        connection.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)"
        )
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO accounts VALUES (?, 1000)", [(n,) for n in range(ACCOUNTS)])
        connection.execute("COMMIT")
        requests = _requests(50_000)
        taken: list[float] = []
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds or not taken:
            at = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            for number in range(group):
                source, target, amount = requests[(len(taken) * group + number) % len(requests)]
                connection.execute("UPDATE accounts SET balance = balance - ? WHERE id = ?", (amount, source))
                connection.execute("UPDATE accounts SET balance = balance + ? WHERE id = ?", (amount, target))
            connection.execute("COMMIT")
            taken.append(1_000 * (time.perf_counter() - at))
        return [*np.percentile(taken, [50, 95, 99]), len(taken) * group / (time.perf_counter() - begin)]
    finally:
        connection.close()


def report(seconds: float, rates: Sequence[int], intervals: Sequence[str]) -> Iterator[str]:
    """Return the lines of the result."""
    rates_text, intervals_text = " ".join(map(str, rates)), " ".join(intervals)
    yield from report_head(
        f"python -m benchmarks.databases.database_latency --seconds {seconds:g} --rates {rates_text} "
        f"--intervals {intervals_text}"
    )
    names = ("p50, ms", "p95, ms", "p99, ms", "answers/s")
    yield f"{'contender':<28}{'requests/s':>12}" + "".join(f"{name:>12}" for name in names)
    made = bank()
    for rate in rates:
        for log in ("write-ahead log", "p-stream"):
            for interval in intervals:
                with scratch("latency") as place:
                    row = _penstock(made, place, interval, log, rate, seconds)
                yield f"{f'{log}, {interval}':<28}{rate:>12,}" + "".join(f"{value:>12,.1f}" for value in row)
    for group in (1, 100):
        with scratch("latency") as place:
            row = _sqlite(place, seconds, group)
        yield f"{f'SQLite, {group} a commit':<28}{'':>12}" + "".join(f"{value:>12,.1f}" for value in row)
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rates", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--intervals", nargs="+", default=["0ms", "1ms", "10ms"])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.seconds, options.rates, options.intervals), options.out)


if __name__ == "__main__":
    main()
