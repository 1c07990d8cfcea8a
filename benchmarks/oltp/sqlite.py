"""The packaged OLTP benchmarks as statements of SQLite in this process (WAL, synchronous=FULL)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.oltp.peers import EmbeddedPeer, Rows, plain_rows, schema_texts
from penstock.procedures.programs.oltp import OltpBenchmark
from penstock.procedures.programs.oltp.tatp import (
    GET_ACCESS,
    GET_DESTINATION,
    GET_SUBSCRIBER,
    INSERT_FORWARDING,
    UPDATE_LOCATION,
    UPDATE_SUBSCRIBER,
)
from penstock.procedures.programs.oltp.tpcc import DISTRICTS, RECENT_ORDERS
from penstock.procedures.programs.oltp.voter import MOST_VOTES, PHONES_OF_AREA
from penstock.procedures.programs.oltp.ycsb import FIELDS, INSERT, READ, SCAN, UPDATE

__all__ = ["SQLITE", "Rejected", "Sqlite"]

One = Callable[..., Any]
"""Executes a statement with its values; returns the first row, or None."""


class Rejected(Exception):  # noqa: N818
    """Ends a transaction; its argument is the reason."""


def _small_bank(one: One, kind: int, source: int, target: int, amount: int) -> tuple[Any, ...]:
    checking = "SELECT balance FROM checking WHERE id = ?"
    savings = "SELECT balance FROM savings WHERE id = ?"
    change = "UPDATE checking SET balance = balance + ? WHERE id = ? RETURNING balance"
    if one("SELECT id FROM accounts WHERE id = ?", source) is None:
        raise Rejected("unknown customer")
    (mine,) = one(checking, source)
    if kind == 1:
        return (mine + one(savings, source)[0],)
    if kind == 2:
        return tuple(one(change, amount, source))
    if kind == 4:
        if one(savings, source)[0] < amount:
            raise Rejected("short")
        return tuple(
            one("UPDATE savings SET balance = balance - ? WHERE id = ? RETURNING balance", amount, source)
        )
    if kind == 5:
        return tuple(one(change, -amount - 100 * (mine + one(savings, source)[0] < amount), source))
    if one("SELECT id FROM accounts WHERE id = ?", target) is None:
        raise Rejected("unknown customer")
    if source == target:
        raise Rejected("one customer")
    if kind == 3:
        if mine < amount:
            raise Rejected("short")
        one(change, amount, target)
        return tuple(one(change, -amount, source))
    (saved,) = one(savings, source)
    one("UPDATE savings SET balance = 0 WHERE id = ?", source)
    one("UPDATE checking SET balance = 0 WHERE id = ?", source)
    one(change, saved + mine, target)
    return (0,)


def _new_order(one: One, w: int, d: int, c: int, date: int, lines: Sequence[tuple[int, int, int]]) -> int:
    (tax_w,) = one("SELECT tax FROM warehouses WHERE w_id = ?", w)
    o_id, tax_d = one(
        "UPDATE districts SET next_o_id = next_o_id + 1 WHERE w_id = ? AND d_id = ? "
        "RETURNING next_o_id - 1, tax", w, d,
    )  # fmt: skip
    (discount,) = one("SELECT discount FROM customers WHERE w_id = ? AND d_id = ? AND c_id = ?", w, d, c)
    local = int(all(supply == w for _, supply, _ in lines))
    one("INSERT INTO orders VALUES (?, ?, ?, ?, ?, NULL, ?, ?)", w, d, o_id, c, date, len(lines), local)
    one("INSERT INTO new_orders VALUES (?, ?, ?)", w, d, o_id)
    total = 0
    for place, (i_id, supply, quantity) in enumerate(lines):
        item = one("SELECT price FROM items WHERE i_id = ?", i_id)
        if item is None:
            raise Rejected("item number is not valid")
        (info,) = one(
            "UPDATE stock SET quantity = quantity - ? + CASE WHEN quantity >= ? + 10 THEN 0 ELSE 91 END, "
            f"ytd = ytd + ?, order_cnt = order_cnt + 1, remote_cnt = remote_cnt + ? "
            f"WHERE w_id = ? AND i_id = ? RETURNING dist_{d:02}",
            quantity, quantity, quantity, int(supply != w), supply, i_id,
        )  # fmt: skip
        amount = item[0] * quantity
        total += amount
        one(
            "INSERT INTO order_lines VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)",
            w, d, o_id, place + 1, i_id, supply, quantity, amount, info,
        )  # fmt: skip
    return int(total * (10_000 - discount) * (10_000 + tax_w + tax_d))


def _customer(one: One, w: int, d: int, c: int | None, last: str | None) -> int:
    if c is not None:
        return c
    (count,) = one("SELECT count(*) FROM customers WHERE w_id = ? AND d_id = ? AND last = ?", w, d, last)
    found = one(
        "SELECT c_id FROM customers WHERE w_id = ? AND d_id = ? AND last = ? ORDER BY first, c_id "
        "LIMIT 1 OFFSET ?", w, d, last, (count + 1) // 2 - 1,
    )  # fmt: skip
    return int(found[0])


def _payment(one: One, w: int, d: int, cw: int, cd: int, c: int, amount: int, date: int) -> int:
    (w_name,) = one("UPDATE warehouses SET ytd = ytd + ? WHERE w_id = ? RETURNING name", amount, w)
    (d_name,) = one(
        "UPDATE districts SET ytd = ytd + ? WHERE w_id = ? AND d_id = ? RETURNING name", amount, w, d
    )
    balance, number = one(
        "UPDATE customers SET balance = balance - ?, ytd_payment = ytd_payment + ?, "
        "payment_cnt = payment_cnt + 1 WHERE w_id = ? AND d_id = ? AND c_id = ? "
        "RETURNING balance, payment_cnt", amount, amount, cw, cd, c,
    )  # fmt: skip
    one(
        "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        cw, cd, c, number, d, w, date, amount, w_name, d_name,
    )  # fmt: skip
    return int(balance)


def _order_status(one: One, w: int, d: int, c: int) -> int:
    (balance,) = one("SELECT balance FROM customers WHERE w_id = ? AND d_id = ? AND c_id = ?", w, d, c)
    order = one(
        "SELECT o_id FROM orders WHERE w_id = ? AND d_id = ? AND c_id = ? ORDER BY o_id DESC LIMIT 1",
        w, d, c,
    )  # fmt: skip
    if order is not None:
        one("SELECT sum(quantity) FROM order_lines WHERE w_id = ? AND d_id = ? AND o_id = ?", w, d, order[0])
    return int(balance)


def _deliver(one: One, w: int, carrier: int, date: int) -> int:
    delivered = 0
    for d in range(1, DISTRICTS + 1):
        oldest = one("SELECT min(o_id) FROM new_orders WHERE w_id = ? AND d_id = ?", w, d)[0]
        if oldest is None:
            continue
        key = (w, d, oldest)
        one("DELETE FROM new_orders WHERE w_id = ? AND d_id = ? AND o_id = ?", *key)
        (c,) = one(
            "UPDATE orders SET carrier_id = ? WHERE w_id = ? AND d_id = ? AND o_id = ? RETURNING c_id",
            carrier, *key,
        )  # fmt: skip
        one("UPDATE order_lines SET delivery_d = ? WHERE w_id = ? AND d_id = ? AND o_id = ?", date, *key)
        (total,) = one("SELECT sum(amount) FROM order_lines WHERE w_id = ? AND d_id = ? AND o_id = ?", *key)
        one(
            "UPDATE customers SET balance = balance + ?, delivery_cnt = delivery_cnt + 1 "
            "WHERE w_id = ? AND d_id = ? AND c_id = ?", total, w, d, c,
        )  # fmt: skip
        delivered += 1
    return delivered


def _stock_level(one: One, w: int, d: int, threshold: int) -> int:
    (after,) = one("SELECT next_o_id FROM districts WHERE w_id = ? AND d_id = ?", w, d)
    found = one(
        "SELECT count(DISTINCT l.i_id) FROM order_lines AS l JOIN stock AS s ON s.w_id = ? AND "
        "s.i_id = l.i_id WHERE l.w_id = ? AND l.d_id = ? AND l.o_id >= ? AND l.o_id < ? AND s.quantity < ?",
        w, w, d, after - RECENT_ORDERS, after, threshold,
    )  # fmt: skip
    return int(found[0])


def _tpcc(
    one: One, kind: int, w: int, d: int, cw: int, cd: int, c: int | None, last: str | None, amount: int,
    number: int, date: int, items: Sequence[int], supplies: Sequence[int], quantities: Sequence[int],
) -> tuple[Any, ...]:  # fmt: skip
    if kind == 0:
        assert c is not None
        lines = list(zip(items, supplies, quantities, strict=True))
        return _new_order(one, w, d, c, date, lines), None, None
    if kind == 1:
        return None, _payment(one, w, d, cw, cd, _customer(one, cw, cd, c, last), amount, date), None
    if kind == 2:
        return None, _order_status(one, cw, cd, _customer(one, cw, cd, c, last)), None
    return None, None, _deliver(one, w, number, date) if kind == 3 else _stock_level(one, w, d, number)


def _voter(one: One, phone: int, contestant: int) -> tuple[Any, ...]:
    if one("SELECT 1 FROM contestants WHERE contestant = ?", contestant) is None:
        raise Rejected("unknown contestant")
    caller = one("SELECT votes FROM callers WHERE phone = ?", phone)
    if caller == (MOST_VOTES,):
        raise Rejected("too many votes")
    if caller is None:
        number = 1
        one("INSERT INTO callers VALUES (?, 1)", phone)
    else:
        (number,) = one("UPDATE callers SET votes = votes + 1 WHERE phone = ? RETURNING votes", phone)
    (state,) = one("SELECT state FROM areas WHERE area = ?", phone // PHONES_OF_AREA) or (0,)
    one("INSERT INTO votes VALUES (?, ?, ?, ?)", phone, number, contestant, state)
    total: tuple[int] | None = one(
        "UPDATE totals SET votes = votes + 1 WHERE contestant = ? AND state = ? RETURNING votes",
        contestant, state,
    )  # fmt: skip
    if total is None:
        one("INSERT INTO totals VALUES (?, ?, 1)", contestant, state)
        return (1,)
    return total


def _tatp(
    one: One, kind: int, s: int, number: str, sort: int, start: int, until: int, value: int, numberx: str
) -> tuple[Any, ...]:
    def need(row: Any, reason: str) -> Any:
        if row is None:
            raise Rejected(reason)
        return row

    is_facility = "SELECT is_active FROM facilities WHERE s_id = ? AND sf_type = ?"
    if kind == GET_SUBSCRIBER:
        row = one("SELECT vlr_location, sub_nbr, byte2_10 FROM subscribers WHERE s_id = ?", s)
        return tuple(need(row, "unknown key: subscribers"))
    if kind == GET_ACCESS:
        row = one("SELECT NULL, data3, data1 FROM access_info WHERE s_id = ? AND ai_type = ?", s, sort)
        return tuple(need(row, "unknown key: access_info"))
    if kind == GET_DESTINATION:
        if not need(one(is_facility, s, sort), "unknown key: facilities")[0]:
            raise Rejected("not active")
        last, count = one(
            "SELECT max(start_time), count(*) FROM forwarding "
            "WHERE s_id = ? AND sf_type = ? AND start_time <= ? AND end_time > ?", s, sort, start, until,
        )  # fmt: skip
        need(last, "not forwarded")
        (found,) = one(
            "SELECT numberx FROM forwarding WHERE s_id = ? AND sf_type = ? AND start_time = ?", s, sort, last
        )
        return None, found, count
    if kind == UPDATE_SUBSCRIBER:
        changed = one("UPDATE subscribers SET bit_1 = ? WHERE s_id = ? RETURNING 1", value % 2, s)
        need(changed, "unknown key: subscribers")
        data = "UPDATE facilities SET data_a = ? WHERE s_id = ? AND sf_type = ? RETURNING 1"
        need(one(data, value % 256, s, sort), "unknown key: facilities")
        return None, None, None
    (s,) = need(one("SELECT s_id FROM subscribers WHERE sub_nbr = ?", number), "unknown number")
    if kind == UPDATE_LOCATION:
        one("UPDATE subscribers SET vlr_location = ? WHERE s_id = ?", value, s)
        return value, None, None
    key = (s, sort, start)
    if kind == INSERT_FORWARDING:
        need(one(is_facility, s, sort), "no facility")
        made = "INSERT INTO forwarding VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1"
        need(one(made, *key, until, numberx), "duplicate key: forwarding")
        return None, None, None
    gone = "DELETE FROM forwarding WHERE s_id = ? AND sf_type = ? AND start_time = ? RETURNING 1"
    need(one(gone, *key), "unknown key: forwarding")
    return None, None, None


def _ycsb(one: One, kind: int, key: int, count: int, value: str) -> tuple[Any, ...]:
    if kind == INSERT:
        one(f"INSERT INTO records VALUES (?{', ?' * FIELDS})", key, *[value] * FIELDS)
        return value, 1
    if kind == SCAN:
        last, found = one(
            "SELECT field9, found FROM (SELECT id, field9, count(*) OVER () AS found FROM "
            "(SELECT id, field9 FROM records WHERE id >= ? ORDER BY id LIMIT ?) AS some) AS counted "
            "ORDER BY id DESC LIMIT 1", key, count,
        ) or (None, 0)  # fmt: skip
        return last, found
    before = one("SELECT field0 FROM records WHERE id = ?", key)
    if before is None:
        raise Rejected("unknown key: records")
    if kind != READ:
        one("UPDATE records SET field0 = ? WHERE id = ?", value, key)
    return (None if kind == UPDATE else before[0]), 1


SQLITE: Mapping[str, tuple[Callable[..., tuple[Any, ...]], int]] = {
    "small_bank": (_small_bank, 1),
    "tatp": (_tatp, 3),
    "tpcc": (_tpcc, 3),
    "voter": (_voter, 1),
    "ycsb": (_ycsb, 2),
}
"""The transactions by the benchmark's name, and how many values each returns."""


class Sqlite(EmbeddedPeer):
    """SQLite in a directory."""

    def __init__(self, benchmark: OltpBenchmark, scale: Any, place: str | Path) -> None:
        self._benchmark = benchmark
        self._transact, self._width = SQLITE[benchmark.name]
        self._db = sqlite3.connect(f"{place}/{benchmark.name}.sqlite", isolation_level=None)
        tables, indexes = schema_texts(benchmark)
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
        self._db.execute("BEGIN")
        for text in tables:
            self._db.execute(text + " WITHOUT ROWID")
        for name, rows in benchmark.tables(scale).items():
            marks = ", ".join("?" * rows.num_columns)
            self._db.executemany(f"INSERT INTO {name} VALUES ({marks})", plain_rows(rows))
        for text in indexes:
            self._db.execute(text)
        self._db.execute("COMMIT")

    def run(self, events: Rows, group: int) -> Rows:
        def one(text: str, *values: Any) -> Any:
            return self._db.execute(text, values).fetchone()

        results: Rows = []
        for begin in range(0, len(events), group):
            self._db.execute("BEGIN IMMEDIATE")
            for event in events[begin : begin + group]:
                self._db.execute("SAVEPOINT transact")
                try:
                    results.append((*self._transact(one, *event), None))
                except Rejected as rejection:
                    self._db.execute("ROLLBACK TO transact")
                    results.append((*[None] * self._width, rejection.args[0]))
                self._db.execute("RELEASE transact")
            self._db.execute("COMMIT")
        return results
