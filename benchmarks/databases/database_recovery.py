"""Measure how long a database takes to open when its whole log is run again.

python -m benchmarks.databases.database_recovery

Each transaction moves an amount between two of the accounts. The log has no version of the tables, so all
transactions are run again. They were called in tables of so many rows each, as `run` and groups of `submit`
make them. The log is in memory (/dev/shm) if possible, so that it waits for no disk. CPU seconds are those of
the process with all its threads.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.harness import REPOSITORY, print_and_save, report_foot, report_head
from penstock.procedures.databases import Database
from penstock.procedures.in_process.command_log import CommandLog

__all__ = ["recovery_s", "report"]

RESULT = REPOSITORY / "benchmarks" / "results" / "database_recovery.txt"
GROUPS = (1_000, 10_000)
_MEMORY = Path("/dev/shm")
ACCOUNTS = 100_000
_BALANCE = 1_000


def bank() -> Database:
    """Return the database."""
    made = penstock.database("bank")
    made.table("accounts", "id bigint, balance bigint NOT NULL", key="id")

    @made.procedure(event="source bigint, target bigint, amount bigint")
    def transfer(e, accounts):  # type: ignore[no-untyped-def]
        source = accounts[e.source]
        if source.balance < e.amount:
            abort("short")  # type: ignore[name-defined]  # noqa: F821 - the language's own
        source.balance -= e.amount
        accounts[e.target].balance += e.amount

    return made


def recovery_s(transactions: int, group: int, accounts: int = ACCOUNTS) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of an `open` that runs so many transactions again."""
    draw = np.random.default_rng(1)
    checkpoint = CommandLog.calls_for_checkpoint, CommandLog.bytes_for_checkpoint
    CommandLog.calls_for_checkpoint = CommandLog.bytes_for_checkpoint = 1 << 62
    inside = str(_MEMORY) if _MEMORY.is_dir() else None
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-recovery-", dir=inside) as place:
            db = bank().open(place)
            ids = np.arange(accounts)
            db.load("accounts", {"id": ids, "balance": np.full(accounts, _BALANCE)})
            for begin in range(0, transactions, group):
                count = min(group, transactions - begin)
                source, target = draw.integers(0, accounts, (2, count))
                db.run("transfer", pa.table({"source": source, "target": target, "amount": source % 7}))
            expected = db.table("accounts")
            assert db._log is not None
            db._log.close()  # as a crash does: nothing but the log is there
            cpu, begin_s = time.process_time(), time.perf_counter()
            with bank().open(place) as again:
                took = time.perf_counter() - begin_s, time.process_time() - cpu
                if not again.table("accounts").equals(expected):
                    raise AssertionError("the tables differ")
    finally:
        CommandLog.calls_for_checkpoint, CommandLog.bytes_for_checkpoint = checkpoint
    return took


def report(transactions: int, groups: Sequence[int], accounts: int = ACCOUNTS) -> Iterator[str]:
    """Return the lines of the result."""
    command = f"python -m benchmarks.databases.database_recovery --transactions {transactions}"
    yield from report_head(command + (f" --accounts {accounts}" if accounts != ACCOUNTS else ""))
    yield f"{transactions:,} transactions are run again"
    yield f"{'rows a call':>12}{'s':>10}{'CPU s':>10}{'M/s':>10}"
    recovery_s(1_000, 100, accounts)  # compiles
    for group in groups:
        took_s, cpu_s = recovery_s(transactions, group, accounts)
        yield f"{group:>12,}{took_s:>10.1f}{cpu_s:>10.1f}{transactions / took_s / 1e6:>10.2f}"
    yield from report_foot()


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=10_000_000)
    parser.add_argument("--accounts", type=int, default=ACCOUNTS)
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    print_and_save(report(options.transactions, options.groups, options.accounts), options.out)


if __name__ == "__main__":
    main()
