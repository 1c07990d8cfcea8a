"""The peers of transactions: PostgreSQL, DuckDB and plain Python, which run the same events one by one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import descendants
from benchmarks.transactions.transaction_dicts import DICTS, Dicts, Locked
from benchmarks.transactions.transaction_sql import SQL
from penstock.procedures.engine import TableSet
from penstock.procedures.programs import PROGRAMS

Outcome = tuple[Any, str | None]
Rows = dict[str, list[tuple[Any, ...]]]

_SERVERS = Path("/usr/lib/postgresql")
POSTGRES_ACCOUNT = "postgres"


class Peer(ABC):
    """Runs a program; `name` is the program's."""

    def __init__(self, name: str, keys: int) -> None:
        self.name = name
        self.keys = keys
        self.stack = ExitStack()

    @abstractmethod
    def prepare(self, events: pa.RecordBatch) -> None:
        """Take the events, in the form that is the peer's own. Not timed."""

    @abstractmethod
    def run(self) -> None:
        """Run them. Timed."""

    @abstractmethod
    def outcomes(self) -> list[Outcome]:
        """Return the result of each transaction, and the reason of its rejection."""

    @abstractmethod
    def tables(self) -> Rows:
        """Return the rows of all tables."""

    @property
    def processes(self) -> list[int]:
        """The processes whose memory counts."""
        return [os.getpid()]

    def close(self) -> None:
        """End what runs."""
        self.stack.close()


class Penstock(Peer):
    """Compiled procedures over tables in this process."""

    def prepare(self, events: pa.RecordBatch) -> None:
        program = PROGRAMS[self.name]
        self._events = events
        self._program = program.procedure.program()
        self._state = TableSet(program.database.tables.values())
        self._state.run(self._program, program.opening(self.keys))
        self._made: pa.RecordBatch | None = None

    def run(self) -> None:
        self._made = self._state.run(self._program, self._events)

    def outcomes(self) -> list[Outcome]:
        assert self._made is not None
        rows = zip(*(column.to_pylist() for column in self._made.columns), strict=True)
        return [row if len(row) == 2 else (None, *row) for row in rows]

    def tables(self) -> Rows:
        names = PROGRAMS[self.name].database.tables
        return {
            name: list(zip(*(c.to_pylist() for c in self._state[name].table().columns), strict=True))
            for name in names
        }


class PlainPython(Peer):
    """Dicts in this process, with `threads` above 0 also with locks."""

    threads = 0

    def prepare(self, events: pa.RecordBatch) -> None:
        dicts: Dicts = DICTS[self.name]()
        if self.threads:
            dicts = Locked(dicts, self.threads)
        dicts.run(PROGRAMS[self.name].opening(self.keys))
        self._dicts, self._events = dicts, dicts.events(events)

    def run(self) -> None:
        self._made = self._dicts.each(self._events)

    def outcomes(self) -> list[Outcome]:
        return self._made

    def tables(self) -> Rows:
        return self._dicts.tables()


class LockedPython(PlainPython):
    """One thread with locks."""

    threads = 1


class ThreadedPython(PlainPython):
    """Two threads with locks: serializable, but not in the order of the events."""

    threads = 2


class DuckDb(Peer):
    """Statements of DuckDB in this process, a transaction for each event."""

    def prepare(self, events: pa.RecordBatch) -> None:
        import duckdb

        self._events = Dicts.events(events)
        self._db = duckdb.connect()
        self._program = SQL[self.name]
        for text in (*self._program.schema, *self._program.opening(self.keys)):
            self._db.execute(text)

    def row(self, text: str, *values: Any) -> Any:
        return self._db.execute(text.replace("%s", "?"), values).fetchone()

    def do(self, text: str, *values: Any) -> None:
        self._db.execute(text.replace("%s", "?"), values)

    def run(self) -> None:
        made = []
        for event in self._events:
            self._db.begin()
            made.append(self._program.one(self, *event))
            self._db.commit()
        self._made = made

    def outcomes(self) -> list[Outcome]:
        return self._made

    def tables(self) -> Rows:
        return {name: self._db.execute(f"SELECT * FROM {name}").fetchall() for name in self._program.tables}


def start_postgres(stack: ExitStack, **settings: str) -> tuple[int, Path]:
    """Start a PostgreSQL server that `stack` stops; return its process, and where its socket is."""
    programs = max(_SERVERS.glob("*/bin"), default=None)
    if programs is None:
        raise SystemExit("there is no PostgreSQL below /usr/lib/postgresql: apt-get install postgresql")
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-postgres-")))
    # Its programs refuse to run as root.
    own = (
        ["setpriv", f"--reuid={POSTGRES_ACCOUNT}", f"--regid={POSTGRES_ACCOUNT}", "--clear-groups"]
        if not os.getuid()
        else []
    )
    if own:
        shutil.chown(place, POSTGRES_ACCOUNT, POSTGRES_ACCOUNT)
    data = place / "data"
    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL, cwd=place)
    run([*own, programs / "initdb", "-D", data, "-U", POSTGRES_ACCOUNT, "-A", "trust", "--no-sync"])
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(place),
        "shared_buffers": "512MB",
        "synchronous_commit": "off",
        "max_wal_size": "4GB",
        **settings,
    }
    options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
    control = [*own, programs / "pg_ctl", "-D", data, "-w", "-l", place / "log"]
    run([*control, "-o", options, "start"])
    stack.callback(run, [*control, "-m", "immediate", "stop"])
    return int((data / "postmaster.pid").read_text().split()[0]), place


class PostgreSql(Peer):
    """Statements of a client of PostgreSQL, a transaction for each event.

    The server is started in a temporary directory. Commits are not waited for on disk
    (``synchronous_commit=off``), as transactions of a micro-batch are not one by one.
    """

    def prepare(self, events: pa.RecordBatch) -> None:
        import psycopg

        self._events = Dicts.events(events)
        self._program = SQL[self.name]
        self._server, socket = start_postgres(self.stack)
        self._connection = psycopg.connect(
            host=str(socket), user=POSTGRES_ACCOUNT, dbname="postgres", autocommit=True, prepare_threshold=1
        )
        self.stack.callback(self._connection.close)
        self._cursor = self._connection.cursor()
        for text in (*self._program.schema, *self._program.opening(self.keys), self._program.stored.text):
            self._cursor.execute(text.encode())
        for name in self._program.tables:
            self._cursor.execute(f"ANALYZE {name}".encode())
        self._made: list[Outcome] = []

    def row(self, text: str, *values: Any) -> Any:
        found = self._cursor.execute(text.encode(), values)
        return found.fetchone()

    def do(self, text: str, *values: Any) -> None:
        self._cursor.execute(text.encode(), values)

    def run(self) -> None:
        for event in self._events:
            with self._connection.transaction():
                self._made.append(self._program.one(self, *event))

    def outcomes(self) -> list[Outcome]:
        return self._made

    def tables(self) -> Rows:
        return {
            name: self._cursor.execute(f"SELECT * FROM {name}".encode()).fetchall()
            for name in self._program.tables
        }

    @property
    def processes(self) -> list[int]:
        return [os.getpid(), *descendants(self._server)]


class StoredPostgreSql(PostgreSql):
    """A call of a stored procedure of PostgreSQL for each event, each a transaction."""

    def run(self) -> None:
        # Typed, or the server would not know which function is meant.
        marks = ", ".join(
            f"%s::{one.split(' ', 1)[1]}" for one in self._program.stored.parameters.split(", ")
        )
        text = f"SELECT * FROM run({marks})".encode()
        for event in self._events:
            found = self._cursor.execute(text, event).fetchone()
            assert found is not None
            self._made.append((found[0], found[1]))


class PostgreSqlInside(PostgreSql):
    """The stored procedure over a table of events inside of PostgreSQL, all in one transaction."""

    def prepare(self, events: pa.RecordBatch) -> None:
        super().prepare(events)
        parameters = self._program.stored.parameters
        self._cursor.execute(f"CREATE TABLE events (n bigint PRIMARY KEY, {parameters})".encode())
        with self._cursor.copy(b"COPY events FROM STDIN") as copy:
            for number, event in enumerate(self._events):
                copy.write_row((number, *event))
        self._cursor.execute(b"ANALYZE events")

    def run(self) -> None:
        names = ", ".join(one.split(" ", 1)[0] for one in self._program.stored.parameters.split(", "))
        # An ordered subquery: a function with effects is called in its order.
        self._cursor.execute(
            f"SELECT (made).result, (made).rejected FROM (SELECT n, run({names}) AS made FROM "
            f"(SELECT * FROM events ORDER BY n) AS o OFFSET 0) AS m ORDER BY n".encode()
        )
        self._made = [(row[0], row[1]) for row in self._cursor.fetchall()]


PEERS: dict[str, type[Peer]] = {
    "penstock": Penstock,
    "dicts": PlainPython,
    "dicts, locks": LockedPython,
    "dicts, locks, 2 threads": ThreadedPython,
    "duckdb": DuckDb,
    "postgres, statements": PostgreSql,
    "postgres, procedures": StoredPostgreSql,
    "postgres, inside": PostgreSqlInside,
}
"""The contenders by name."""

UNORDERED: Sequence[str] = ("dicts, locks, 2 threads",)
"""Contenders whose results depend on the order in which their threads run."""
