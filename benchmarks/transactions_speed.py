"""Transactions a second of one core: GS, SL, OB and TP (TStream §VI-A), beside plain Python and SQLite.

``python -m benchmarks.transactions_speed [--events N] [--keys N ...]`` prints a table. Kernels run over the
tables that queries have, with look-ups by key and undo logs. Times are CPU time of the thread, the best of
`ROUNDS`: with events in NumPy as a micro-batch has them, and with Arrow in and out.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock import abort
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet, event_schema

ROUNDS = 5
GS_LENGTH, OB_LENGTH = 10, 20
TP_SEGMENTS = 100
SKEW = {"GS": 0.6, "SL": 0.6, "OB": 0.6, "TP": 0.2}


@dataclass(frozen=True)
class Workload:
    """One of the paper's applications.

    Attributes
    ----------
    name : str
        Its name.
    database : Database
        Its tables and procedure.
    rows : dict
        What its tables begin with.
    events : pyarrow.RecordBatch
        What runs.
    plain : callable
        The same in Python, over dicts.
    """

    name: str
    database: Database
    rows: dict[str, dict[str, Any]]
    events: pa.RecordBatch
    plain: Callable[..., Any]

    @property
    def procedure(self) -> Any:
        """The only procedure."""
        return next(iter(self.database.procedures.values()))


def zipf(rng: np.random.Generator, keys: int, skew: float, shape: tuple[int, ...]) -> Any:
    """Draw keys of a Zipf distribution, the frequent ones anywhere."""
    weights = np.arange(1, keys + 1) ** -skew
    bounds = np.cumsum(weights / weights.sum())
    return rng.permutation(keys)[np.minimum(np.searchsorted(bounds, rng.random(shape)), keys - 1)]


def lists(values: Any) -> pa.Array[Any]:
    """Return a matrix as lists."""
    offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))


def grep_and_sum(count: int, keys: int) -> Workload:
    """GS: half of the events read ten records and sum them, half write ten."""
    database = penstock.database("GS")
    filler = ", ".join(f"f{i} bigint NOT NULL" for i in range(14))
    database.table("records", f"id bigint, value bigint NOT NULL, {filler}", key="id")

    @database.procedure(
        event="reads boolean NOT NULL, keys array<bigint> NOT NULL, value bigint NOT NULL",
        returns="total bigint",
    )
    def grep(e: Any, records: Any) -> Any:
        total = 0
        if e.reads:
            for key in e.keys:
                total += records[key].value
        else:
            for key in e.keys:
                records[key].value = e.value
        return total

    def plain(e: Any, records: Any) -> Any:
        reads, keys, value = e
        if reads:
            return sum(records[key][0] for key in keys)
        for key in keys:
            records[key][0] = value
        return 0

    rng = np.random.default_rng(1)
    rows = {"id": np.arange(keys), "value": np.arange(keys)} | {
        f"f{i}": np.zeros(keys, int) for i in range(14)
    }
    columns = [
        pa.array(rng.random(count) < 0.5),
        lists(zipf(rng, keys, SKEW["GS"], (count, GS_LENGTH))),
        pa.array(rng.integers(0, 1000, count)),
    ]
    return Workload("GS", database, {"records": rows}, batch(database, columns), plain)


def streaming_ledger(count: int, keys: int) -> Workload:
    """SL: half of the events deposit into an account and an asset, half transfer between two pairs."""
    database = penstock.database("SL")
    database.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    database.table("assets", "id bigint, amount bigint NOT NULL", key="id")

    @database.procedure(
        event="transfers boolean NOT NULL, source bigint NOT NULL, target bigint NOT NULL, "
        "money bigint NOT NULL, goods bigint NOT NULL"
    )
    def ledger(e: Any, accounts: Any, assets: Any) -> Any:
        if e.transfers:
            account = accounts[e.source]
            asset = assets[e.source]
            if account.balance < e.money or asset.amount < e.goods:
                abort("short")
            account.balance -= e.money
            asset.amount -= e.goods
        accounts[e.target].balance += e.money
        assets[e.target].amount += e.goods

    def plain(e: Any, accounts: Any, assets: Any) -> Any:
        transfers, source, target, money, goods = e
        if transfers:
            if accounts[source] < money or assets[source] < goods:
                return "short"
            accounts[source] -= money
            assets[source] -= goods
        accounts[target] += money
        assets[target] += goods
        return None

    rng = np.random.default_rng(2)
    columns = [
        pa.array(rng.random(count) < 0.5),
        *(pa.array(zipf(rng, keys, SKEW["SL"], (count,))) for _ in range(2)),
        *(pa.array(rng.integers(0, 100, count)) for _ in range(2)),
    ]
    ids = np.arange(keys)
    rows = {
        "accounts": {"id": ids, "balance": np.full(keys, 10_000)},
        "assets": {"id": ids, "amount": np.full(keys, 10_000)},
    }
    return Workload("SL", database, rows, batch(database, columns), plain)


def online_bidding(count: int, keys: int) -> Workload:
    """OB: bids, alterations of twenty prices and top-ups of twenty items, 6 : 1 : 1."""
    database = penstock.database("OB")
    database.table("items", "id bigint, price bigint NOT NULL, quantity bigint NOT NULL", key="id")

    @database.procedure(event="kind bigint NOT NULL, keys array<bigint> NOT NULL, price bigint NOT NULL")
    def trade(e: Any, items: Any) -> Any:
        if e.kind == 0:
            item = items[e.keys[0]]
            if e.price < item.price:
                abort("too little")
            if item.quantity < 1:
                abort("sold out")
            item.quantity -= 1
        elif e.kind == 1:
            for key in e.keys:
                items[key].price = e.price
        else:
            for key in e.keys:
                items[key].quantity += 1

    def plain(e: Any, items: Any) -> Any:
        kind, keys, price = e
        if kind == 0:
            item = items[keys[0]]
            if price < item[0]:
                return "too little"
            if item[1] < 1:
                return "sold out"
            item[1] -= 1
        elif kind == 1:
            for key in keys:
                items[key][0] = price
        else:
            for key in keys:
                items[key][1] += 1
        return None

    rng = np.random.default_rng(3)
    kinds = np.maximum(rng.integers(-5, 3, count), 0)
    sizes = np.where(kinds == 0, 1, OB_LENGTH)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    chosen = pa.array(zipf(rng, keys, SKEW["OB"], (int(offsets[-1]),)))
    columns = [
        pa.array(kinds),
        pa.ListArray.from_arrays(pa.array(offsets), chosen),
        pa.array(rng.integers(0, 100, count)),
    ]
    rows = {"items": {"id": np.arange(keys), "price": np.full(keys, 30), "quantity": np.full(keys, 100)}}
    return Workload("OB", database, rows, batch(database, columns), plain)


def toll_processing(count: int, keys: int) -> Workload:
    """TP: a report changes a segment's speed and its count of vehicles, and pays a toll for both."""
    database = penstock.database("TP")
    database.table("segments", "id bigint, speed double NOT NULL, vehicles bigint NOT NULL", key="id")
    database.table("seen", "segment bigint, vehicle bigint", key=("segment", "vehicle"))

    @database.procedure(
        event="segment bigint NOT NULL, vehicle bigint NOT NULL, speed double NOT NULL", returns="toll double"
    )
    def report(e: Any, segments: Any, seen: Any) -> Any:
        segment = segments[e.segment]
        segment.speed = (segment.speed + e.speed) / 2.0
        if (e.segment, e.vehicle) not in seen:
            seen.insert(segment=e.segment, vehicle=e.vehicle)
            segment.vehicles += 1
        if segment.speed >= 40.0 or segment.vehicles <= 50:
            return 0.0
        return 2.0 * (segment.vehicles - 50) * (segment.vehicles - 50)

    def plain(e: Any, segments: Any, seen: Any) -> Any:
        number, vehicle, speed = e
        segment = segments[number]
        segment[0] = (segment[0] + speed) / 2.0
        if (number, vehicle) not in seen:
            seen[number, vehicle] = True
            segment[1] += 1
        if segment[0] >= 40.0 or segment[1] <= 50:
            return 0.0
        return 2.0 * (segment[1] - 50) * (segment[1] - 50)

    rng = np.random.default_rng(4)
    columns = [
        pa.array(zipf(rng, TP_SEGMENTS, SKEW["TP"], (count,))),
        pa.array(rng.integers(0, max(keys // TP_SEGMENTS, 1), count)),
        pa.array(rng.random(count) * 80),
    ]
    ids = np.arange(TP_SEGMENTS)
    rows = {"segments": {"id": ids, "speed": np.full(len(ids), 60.0), "vehicles": np.zeros(len(ids), int)}}
    return Workload("TP", database, rows, batch(database, columns), plain)


WORKLOADS = (grep_and_sum, streaming_ledger, online_bidding, toll_processing)


def batch(database: Database, columns: list[Any]) -> pa.RecordBatch:
    """Return events of the only procedure."""
    schema = event_schema(next(iter(database.procedures.values())).program().event)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def loaded(workload: Workload) -> TableSet:
    """Return tables with their first rows."""
    state = TableSet(workload.database.tables.values())
    for name, columns in workload.rows.items():
        spec = workload.database.tables[name]
        state[name].upsert(
            pa.record_batch([pa.array(c) for c in columns.values()], schema=spec.schema), dirty=False
        )
    return state


def best(rounds: int, run: Callable[[], Any]) -> float:
    """Return the least CPU time of this thread that a run takes, in seconds."""
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        run()
        times.append(time.thread_time() - begin)
    return min(times)


def compiled_rate(workload: Workload, *, kernel_only: bool) -> float:
    """Return transactions a second of compiled code, all of whose rows change again and again."""
    state, program, events = loaded(workload), workload.procedure.program(), workload.events
    if not kernel_only:
        return events.num_rows / best(ROUNDS, lambda: state.run(program, events))
    spent: list[float] = []
    kernel = program.kernel

    def timed(*arguments: Any) -> int:
        begin = time.thread_time()
        done = kernel(*arguments)
        spent[-1] += time.thread_time() - begin
        return done

    program.__dict__["kernel"] = timed
    for _ in range(ROUNDS):
        spent.append(0.0)
        state.run(program, events)
    program.__dict__["kernel"] = kernel
    return events.num_rows / min(spent)


def plain_events(workload: Workload, count: int) -> list[tuple[Any, ...]]:
    """Return the first events as Python has them."""
    columns = workload.events.slice(0, count).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def plain_tables(workload: Workload) -> list[dict[Any, Any]]:
    """Return the first rows of the tables: values by key, lists where there are several."""
    tables: list[dict[Any, Any]] = []
    for name, spec in workload.database.tables.items():
        rows = zip(*(np.asarray(one).tolist() for one in workload.rows.get(name, {}).values()), strict=True)
        one_value = len(spec.columns) == 2
        tables.append({row[0]: row[1] if one_value else list(row[1:]) for row in rows})
    return tables


def plain_rate(workload: Workload, count: int) -> float:
    """Return transactions a second of plain Python over dicts, without checks, undo or versions."""
    events, tables = plain_events(workload, count), plain_tables(workload)

    def run() -> None:
        for event in events:
            workload.plain(event, *tables)

    return len(events) / best(2, run)


def sqlite_rate(workload: Workload, count: int) -> float:
    """Return transactions a second of SL as statements of SQLite, in memory, each a savepoint."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for name, value in (("accounts", "balance"), ("assets", "amount")):
        connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, {value} INTEGER NOT NULL)")
        rows = zip(*(np.asarray(c).tolist() for c in workload.rows[name].values()), strict=True)
        connection.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows)
    events = plain_events(workload, count)

    def run() -> None:
        connection.execute("BEGIN")
        for transfers, source, target, money, goods in events:
            if transfers:
                short = connection.execute(
                    "SELECT 1 FROM accounts, assets WHERE accounts.id = ? AND assets.id = ? "
                    "AND (balance < ? OR amount < ?)",
                    (source, source, money, goods),
                ).fetchone()
                if short:
                    continue
                connection.execute("UPDATE accounts SET balance = balance - ? WHERE id = ?", (money, source))
                connection.execute("UPDATE assets SET amount = amount - ? WHERE id = ?", (goods, source))
            connection.execute("UPDATE accounts SET balance = balance + ? WHERE id = ?", (money, target))
            connection.execute("UPDATE assets SET amount = amount + ? WHERE id = ?", (goods, target))
        connection.execute("COMMIT")

    return len(events) / best(2, run)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--plain-events", type=int, default=100_000)
    options = parser.parse_args()
    print(f"{options.events} transactions, CPU time of one thread, best of {ROUNDS}; M transactions/s")
    print("workload       keys   kernel  Arrow in, out  dicts   SQLite  first run s")
    for make in WORKLOADS:
        for keys in options.keys:
            workload = make(options.events, keys)
            begin = time.monotonic()
            loaded(workload).run(workload.procedure.program(), workload.events.slice(0, 1))
            first = time.monotonic() - begin
            kernel = compiled_rate(workload, kernel_only=True)
            whole = compiled_rate(workload, kernel_only=False)
            dicts = plain_rate(workload, min(options.plain_events, options.events))
            few = min(options.plain_events, options.events)
            sqlite = sqlite_rate(workload, few) / 1e6 if workload.name == "SL" else float("nan")
            print(
                f"{workload.name:8} {keys:10}  {kernel / 1e6:7.1f}  {whole / 1e6:13.1f}  {dicts / 1e6:5.2f}"
                f"  {sqlite:7.3f}  {first:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
