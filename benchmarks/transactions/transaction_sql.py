"""GS, SL, OB and TP in SQL: as statements that a client sends, and as stored procedures of PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["SQL", "Connection", "SqlProgram"]

Outcome = tuple[Any, str | None]


class Connection(Protocol):
    """A connection to a database; `%s` marks a parameter."""

    def row(self, text: str, *values: Any) -> Any:
        """Run a statement; return its first row, if it has any."""

    def do(self, text: str, *values: Any) -> None:
        """Run a statement."""


@dataclass(frozen=True)
class Stored:
    """A stored procedure of PostgreSQL: a function from an event to its result and its rejection.

    Attributes
    ----------
    parameters : str
        Its parameters.
    result : str
        The type of what it returns.
    body : str
        Its text in PL/pgSQL; it sets ``result`` and ``rejected``.
    """

    parameters: str
    result: str
    body: str

    @property
    def text(self) -> str:
        """The statement that creates it."""
        return (
            f"CREATE FUNCTION run({self.parameters}, OUT result {self.result}, OUT rejected text) "
            f"LANGUAGE plpgsql AS $$ BEGIN {self.body} END $$"
        )


class SqlProgram(ABC):
    """A program in SQL."""

    schema: tuple[str, ...]
    tables: tuple[str, ...]
    stored: Stored

    @abstractmethod
    def opening(self, keys: int) -> Iterable[str]:
        """Return statements that fill the tables."""

    @abstractmethod
    def one(self, db: Connection, *event: Any) -> Outcome:
        """Run an event as statements, in a transaction that is open; all checks come before writes."""


class GrepAndSum(SqlProgram):
    """GS."""

    _columns = ", ".join(f"f{n} bigint NOT NULL" for n in range(14))
    schema = (f"CREATE TABLE records (id bigint PRIMARY KEY, value bigint NOT NULL, {_columns})",)
    tables = ("records",)
    _sum = "SELECT sum(value)::bigint FROM unnest({0}) AS k(id) JOIN records USING (id)"
    stored = Stored(
        "kind bigint, keys bigint[], given bigint",
        "bigint",
        "IF kind = 1 THEN SELECT sum(value)::bigint INTO result FROM unnest(keys) AS k(id) JOIN records "
        "USING (id); ELSE UPDATE records SET value = given WHERE id = ANY(keys); result := 0; END IF;",
    )

    def opening(self, keys: int) -> Iterable[str]:
        zeros = ", ".join("0" for _ in range(14))
        yield f"INSERT INTO records SELECT g, g, {zeros} FROM generate_series(0, {keys - 1}) AS s(g)"

    def one(self, db: Connection, *event: Any) -> Outcome:
        kind, keys, value = event
        if kind == 1:
            return int(db.row(self._sum.format("%s::bigint[]"), keys)[0]), None
        db.do("UPDATE records SET value = %s WHERE id = ANY(%s::bigint[])", value, keys)
        return 0, None


class StreamingLedger(SqlProgram):
    """SL."""

    schema = (
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
        "CREATE TABLE assets (id bigint PRIMARY KEY, amount bigint NOT NULL)",
    )
    tables = ("accounts", "assets")
    _pay = "UPDATE accounts SET balance = balance + {0} WHERE id = {1}"
    _give = "UPDATE assets SET amount = amount + {0} WHERE id = {1}"
    stored = Stored(
        "kind bigint, source bigint, target bigint, money bigint, goods bigint",
        "bigint",
        "IF kind = 2 THEN "
        "IF (SELECT balance FROM accounts WHERE id = source) < money "
        "OR (SELECT amount FROM assets WHERE id = source) < goods THEN rejected := 'short'; RETURN; END IF; "
        f"{_pay.format('-money', 'source')}; {_give.format('-goods', 'source')}; END IF; "
        f"{_pay.format('money', 'target')}; {_give.format('goods', 'target')};",
    )

    def opening(self, keys: int) -> Iterable[str]:
        for table in self.tables:
            yield f"INSERT INTO {table} SELECT g, 10000 FROM generate_series(0, {keys - 1}) AS s(g)"

    def one(self, db: Connection, *event: Any) -> Outcome:
        kind, source, target, money, goods = event
        if kind == 2:
            balance, amount = db.row(
                "SELECT balance, amount FROM accounts JOIN assets USING (id) WHERE id = %s", source
            )
            if balance < money or amount < goods:
                return None, "short"
            db.do(self._pay.format("%s", "%s"), -money, source)
            db.do(self._give.format("%s", "%s"), -goods, source)
        db.do(self._pay.format("%s", "%s"), money, target)
        db.do(self._give.format("%s", "%s"), goods, target)
        return None, None


class OnlineBidding(SqlProgram):
    """OB."""

    schema = ("CREATE TABLE items (id bigint PRIMARY KEY, price bigint NOT NULL, quantity bigint NOT NULL)",)
    tables = ("items",)
    _top = (
        "UPDATE items SET quantity = quantity + n FROM (SELECT k, count(*) AS n FROM unnest({0}) AS u(k) "
        "GROUP BY k) AS more WHERE id = k"
    )
    stored = Stored(
        "kind bigint, keys bigint[], given bigint",
        "bigint",
        "IF kind = 1 THEN "
        "SELECT CASE WHEN given < price THEN 'too little' WHEN quantity < 1 THEN 'sold out' END "
        "INTO rejected FROM items WHERE id = keys[1]; "
        "IF rejected IS NULL THEN UPDATE items SET quantity = quantity - 1 WHERE id = keys[1]; END IF; "
        "ELSIF kind = 2 THEN UPDATE items SET price = given WHERE id = ANY(keys); "
        f"ELSE {_top.format('keys')}; END IF;",
    )

    def opening(self, keys: int) -> Iterable[str]:
        yield f"INSERT INTO items SELECT g, 30, 100 FROM generate_series(0, {keys - 1}) AS s(g)"

    def one(self, db: Connection, *event: Any) -> Outcome:
        kind, keys, given = event
        if kind == 1:
            price, quantity = db.row("SELECT price, quantity FROM items WHERE id = %s", keys[0])
            if given < price:
                return None, "too little"
            if quantity < 1:
                return None, "sold out"
            db.do("UPDATE items SET quantity = quantity - 1 WHERE id = %s", keys[0])
        elif kind == 2:
            db.do("UPDATE items SET price = %s WHERE id = ANY(%s::bigint[])", given, keys)
        else:
            db.do(self._top.format("%s::bigint[]"), keys)
        return None, None


class TollProcessing(SqlProgram):
    """TP."""

    schema = (
        "CREATE TABLE segments (id bigint PRIMARY KEY, speed double precision NOT NULL, "
        "vehicles bigint NOT NULL)",
        "CREATE TABLE seen (segment bigint, vehicle bigint, PRIMARY KEY (segment, vehicle))",
    )
    tables = ("segments", "seen")
    _new = "INSERT INTO seen VALUES ({0}, {1}) ON CONFLICT DO NOTHING"
    stored = Stored(
        "kind bigint, place bigint, given bigint, reported double precision",
        "double precision",
        f"{_new.format('place', 'given')}; "
        "UPDATE segments SET speed = (speed + reported) / 2, vehicles = vehicles + FOUND::int "
        "WHERE id = place RETURNING CASE WHEN speed >= 40 OR vehicles <= 50 THEN 0 "
        "ELSE 2.0::double precision * (vehicles - 50) * (vehicles - 50) END INTO result;",
    )

    def opening(self, keys: int) -> Iterable[str]:
        yield "INSERT INTO segments SELECT g, 60, 0 FROM generate_series(0, 99) AS s(g)"

    def one(self, db: Connection, *event: Any) -> Outcome:
        _, place, vehicle, reported = event
        new = db.row(f"{self._new.format('%s', '%s')} RETURNING 1", place, vehicle)
        speed, vehicles = db.row(
            "UPDATE segments SET speed = (speed + %s) / 2, vehicles = vehicles + %s WHERE id = %s "
            "RETURNING speed, vehicles",
            reported,
            int(new is not None),
            place,
        )
        return (0.0 if speed >= 40 or vehicles <= 50 else 2.0 * (vehicles - 50) * (vehicles - 50)), None


SQL: dict[str, SqlProgram] = {
    "GS": GrepAndSum(),
    "SL": StreamingLedger(),
    "OB": OnlineBidding(),
    "TP": TollProcessing(),
}
"""The programs by name."""
