"""A served database answers its clients, and nobody else."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import penstock
from penstock.errors import FencedError, InvalidUsageError, UnavailableError
from penstock.jobs.pipelines.databases import database_in
from penstock.procedures.databases import Database
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.snapshot import Snapshot
from penstock.procedures.replicas.lag import Lag
from penstock.procedures.requests.messages import ANSWERS
from penstock.procedures.served.client import _decode_answer
from penstock.procedures.served.messages import CALL, to_stream
from penstock.procedures.served.server import DatabaseServer
from tests.servers.processes import until
from tests.transactions.procedures import define

BANK = """
import penstock

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance decimal(10,2) NOT NULL", key="id", partition_by="id")


@bank.procedure(event="id bigint, amount decimal(10,2)", returns="left decimal(10,2)", plain=True)
def pay(e, accounts):
    account = accounts[e.id]
    if account.balance < e.amount:
        abort("short")
    account.balance = account.balance - e.amount
    return account.balance
"""
PAY = """
def pay(e, accounts):
    account = accounts[e.id]
    if account.balance < e.amount:
        abort("short")
    account.balance = account.balance - e.amount
    return account.balance
"""
UNKNOWN = "unknown key: accounts"
FIRST = {"id": [1, 2, 3], "balance": [Decimal("100.00")] * 3}


def bank() -> Database:
    database = penstock.database("bank")
    database.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    database.procedure(event="id bigint, amount bigint", returns="left bigint", plain=True)(define(PAY))
    return database


@pytest.fixture
def db(tmp_path: Path) -> Iterator[OpenDatabase]:
    with bank().open(tmp_path / "bank") as opened:
        opened.load("accounts", {"id": [1, 2, 3], "balance": [100, 100, 100]})
        yield opened


@pytest.fixture
def server(db: OpenDatabase) -> Iterator[DatabaseServer]:
    with DatabaseServer(db, token="secret of the test") as served:
        yield served


@pytest.fixture
def client(server: DatabaseServer) -> Iterator[penstock.DatabaseClient]:
    with penstock.DatabaseClient(server.uri, token="secret of the test") as connected:
        yield connected


def test_a_client_calls_runs_and_reads(client: penstock.DatabaseClient, db: OpenDatabase) -> None:
    assert client.call("pay", id=1, amount=30) == {"left": 70, "rejected": None}
    assert client.call("pay", id=1, amount=80) == {"left": None, "rejected": "short"}
    assert client.call("pay", id=9, amount=80)["rejected"] == "unknown key: accounts"
    events = pa.table({"id": [1, 2] * 200, "amount": [0, 0] * 199 + [10, 20]})
    results = client.run("pay", events)
    assert results["left"].to_pylist()[-2:] == [60, 80]
    assert client.table("accounts").sort_by("id").to_pylist() == [
        {"id": 1, "balance": 60}, {"id": 2, "balance": 80}, {"id": 3, "balance": 100}
    ]  # fmt: skip
    assert client.sql("SELECT sum(balance)::bigint AS s FROM accounts").to_pylist() == [{"s": 240}]


def test_large_tables_are_sent_in_parts(client: penstock.DatabaseClient) -> None:
    client.part_bytes = 100
    results = client.run("pay", {"id": [1] * 50, "amount": [1] * 50})
    assert results["left"].to_pylist() == list(range(99, 49, -1))


def test_the_servers_errors_are_those_of_the_database(client: penstock.DatabaseClient) -> None:
    with pytest.raises(InvalidUsageError, match="there is no such procedure") as refused:
        client.call("pya", id=1, amount=2)
    assert "Flight" not in "".join(traceback.format_exception(refused.value)), "the texts of gRPC"
    with pytest.raises(InvalidUsageError):
        client.call("pay", id="one", amount=2)
    with pytest.raises(InvalidUsageError, match="there is no such table"):
        client.table("acounts")
    with pytest.raises(InvalidUsageError, match="DuckDB refuses the query"):
        client.sql("SELECT * FROM read_csv('/etc/passwd')")
    with pytest.raises(InvalidUsageError, match=r"the columns differ in length: .*'id': 1, 'amount': 2"):
        client.run("pay", {"id": [1], "amount": [2, 3]})
    client.close()
    with pytest.raises(InvalidUsageError, match="the client is closed"):
        client.call("pay", id=1, amount=2)


def test_a_request_runs_once_however_often_it_is_sent(
    client: penstock.DatabaseClient, db: OpenDatabase
) -> None:
    first = client.call_once("a", "pay", id=1, amount=30)
    assert first == {"left": 70, "rejected": None}
    assert client.call_once("a", "pay", id=1, amount=30) == first
    assert client.call_once("a", "pay", id=1, amount=31)["rejected"] == "the id of another request"
    assert client.call_once("b", "pay", id=1, amount=30) == {"left": 40, "rejected": None}
    assert client.call_once("c", "pey", id=1, amount=30)["rejected"] == "no such procedure"


def test_results_of_a_procedure_that_has_changed_since_are_json_values() -> None:
    schema = pa.schema({"left": pa.int64()}).serialize().to_pybytes()
    row = {"id": "a", "procedure": "pay", "results": '{"rest":"0.25"}', "rejected": None, "bucket": 0}
    answers = pa.Table.from_pylist([row | {"transaction": 1}], ANSWERS)
    for metadata in (None, {b"pay": schema}):
        decoded = _decode_answer(answers.replace_schema_metadata(metadata), "pay")
        assert decoded == {"rest": "0.25", "rejected": None}


@pytest.mark.parametrize("ends", ["close", "none"])
def test_requests_are_remembered_by_the_next_process(tmp_path: Path, ends: str) -> None:
    request = pa.table({"id": ["a"], "procedure": ["pay"], "arguments": ['{"id":1,"amount":30}']})
    opened = bank().open(tmp_path / "bank")
    opened.load("accounts", {"id": [1], "balance": [100]})
    answers = opened.answer(request)
    if ends == "close":
        opened.close()
    with bank().open(tmp_path / "bank") as again:
        assert again.answer(request) == answers
        assert again.table("accounts").to_pylist() == [{"id": 1, "balance": 70}]


@pytest.mark.parametrize("token", [None, "", "secret of the tesT", "secret of the test "])
def test_nobody_calls_without_the_token(server: DatabaseServer, token: str | None) -> None:
    with penstock.DatabaseClient(server.uri, token=token) as stranger:
        for attempt in (
            lambda: stranger.call("pay", id=1, amount=1),
            lambda: stranger.table("accounts"),
            lambda: stranger.sql("SELECT 1"),
            stranger._client.list_actions,
            lambda: list(stranger._client.list_flights()),
        ):
            with pytest.raises((InvalidUsageError, flight.FlightUnauthenticatedError)):
                attempt()


def test_other_machines_need_a_token(db: OpenDatabase) -> None:
    with pytest.raises(InvalidUsageError, match="without a token"):
        DatabaseServer(db, "0.0.0.0")


def test_a_taken_port_is_refused_without_lines_of_grpc(
    db: OpenDatabase, server: DatabaseServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnavailableError, match="cannot listen at this address"):
        DatabaseServer(db, port=server.port)
    assert "Failed to add port" not in capfd.readouterr().err


def test_too_many_calls_are_refused_and_then_taken(db: OpenDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go = threading.Event(), threading.Event()
    real = OpenDatabase.snapshot

    def slow(self: OpenDatabase, *tables: str) -> Snapshot:
        entered.set()
        assert go.wait(60)
        return real(self, *tables)

    monkeypatch.setattr(OpenDatabase, "snapshot", slow)
    with (
        DatabaseServer(db, most_waiting=1) as served,
        ThreadPoolExecutor(1) as threads,
        penstock.DatabaseClient(served.uri, timeout="60s") as client,
    ):
        first = threads.submit(client.table, "accounts")
        assert entered.wait(60)
        with pytest.raises(UnavailableError, match="too many calls wait"):
            client.call("pay", id=1, amount=1)
        go.set()
        assert len(first.result()) == 3
        assert client.call("pay", id=1, amount=1)["left"] == 99


def test_anything_may_come_to_the_port(server: DatabaseServer, client: penstock.DatabaseClient) -> None:
    draw = random.Random(11)
    valid = to_stream(pa.table({"id": [1], "amount": [0]}).replace_schema_metadata({b"procedure": b"pay"}))
    header = [(b"authorization", b"Bearer secret of the test")]
    options = flight.FlightCallOptions(timeout=30, headers=header)
    raw = client._client
    for number in range(150):
        body = bytearray(valid.to_pybytes())
        for _ in range(draw.randint(1, 8)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        if number % 3 == 0:
            body = body[: draw.randrange(len(body))]
        if number % 10 == 0:
            body = bytearray(draw.randbytes(draw.randrange(300)))
        action = draw.choice([CALL, "answer", "drop", ""])
        try:
            list(raw.do_action(flight.Action(action, bytes(body)), options))
        except flight.FlightError as error:
            assert "Traceback" not in str(error)
    for ticket in (b"", b"{", b"[]", b'{"table": 5}', b'{"x": "y"}', draw.randbytes(50)):
        with pytest.raises(flight.FlightError):
            raw.do_get(flight.Ticket(ticket), options).read_all()
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.sendall(draw.randbytes(5_000))
    assert client.call("pay", id=3, amount=1)["left"] is not None


def started(place: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    (place / "bank.py").write_text(BANK)
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "serve",
        str(place / "bank.py"),
        "--location",
        str(place / "bank"),
    ]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PENSTOCK_TOKEN": ""},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving bank at "), line + (process.stderr.read() if process.stderr else "")
    return process, line.split()[3].rstrip(";")


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_ctrl_c_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    process, uri = started(tmp_path, "--partitions", "2", "--ranges", "accounts=2", "--speculate", "rows")
    with penstock.DatabaseClient(uri) as client:
        for id_ in (1, 2):
            assert client.call("pay", id=id_, amount=Decimal(1))["rejected"] == "unknown key: accounts"
        assert "speculated (rows): 0 later requests" in client.explain()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "stopped by SIGINT" in said
    assert "Traceback" not in said


UNREAD = {"id": range(400_000), "balance": [Decimal("100.00")] * 400_000}
"""More rows than a server can send to a client that does not read them and has little room for them."""
LITTLE_ROOM = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 << 10)]


@contextmanager
def unread_accounts(uri: str) -> Iterator[None]:
    """Ask for the table, and read no row of what the server sends."""
    with flight.FlightClient(uri, generic_options=LITTLE_ROOM) as client:
        stream = client.do_get(flight.Ticket(b'{"table": "accounts"}'))
        assert stream.schema.names == ["id", "balance"]
        yield
        stream.cancel()


def test_a_client_that_reads_nothing_holds_no_server() -> None:
    with bank().open() as db:
        db.load("accounts", {"id": range(400_000), "balance": range(400_000)})
        server = DatabaseServer(db)
        with penstock.DatabaseClient(server.uri) as client, unread_accounts(server.uri):
            assert not server.stop(grace="50ms")
            with pytest.raises(UnavailableError):
                client.lag()
        server.wait()
        assert len(db.table("accounts")) == 400_000


def test_a_server_that_stops_answers_calls_that_run_longer_than_the_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, stopping, ended = threading.Event(), threading.Event(), threading.Event()
    run = OpenDatabase.run

    def run_slowly(db: OpenDatabase, *given: Any) -> pa.Table:
        started.set()
        assert until(stopping.is_set, 300)
        results = run(db, *given)
        ended.set()
        return results

    monkeypatch.setattr(OpenDatabase, "run", run_slowly)
    with bank().open() as db, ThreadPoolExecutor() as threads:
        db.load("accounts", {"id": [1, 2], "balance": [5, 5]})
        server = DatabaseServer(db)

        def shutdown() -> None:
            threads.submit(stopping.set)
            flight.FlightServerBase.shutdown(server)

        monkeypatch.setattr(server, "shutdown", shutdown)
        with penstock.DatabaseClient(server.uri) as client:
            rows = pa.table({"id": [1, 2], "amount": [1, 1]})
            answer = threads.submit(client.run, "pay", rows)
            assert started.wait(300)
            server.stop(grace="1us")
            assert ended.is_set()
            assert len(answer.result()) == 2
        server.wait()


@pytest.mark.long
def test_ctrl_c_ends_a_server_although_a_client_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK)
    with database_in(tmp_path / "bank.py").open(tmp_path / "bank") as opened:
        opened.load("accounts", UNREAD)
    process, uri = started(tmp_path)
    with penstock.DatabaseClient(uri, timeout="300s") as client, unread_accounts(uri):
        assert client.call("pay", id=1, amount=Decimal(1))["left"] == Decimal(99)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "a client did not read its rows" in said
    with database_in(tmp_path / "bank.py").open(tmp_path / "bank") as opened:
        assert sum(row["balance"] == 99 for row in opened.table("accounts").to_pylist()) == 1


def test_a_client_goes_on_with_the_server_that_is_started_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK)
    with database_in(tmp_path / "bank.py").open(tmp_path / "bank") as opened:
        opened.load("accounts", FIRST)
    acknowledged = 0
    for _ in range(3):
        process, uri = started(tmp_path)
        with penstock.DatabaseClient(uri, timeout="1s") as client:
            for number in range(acknowledged, acknowledged + 5):
                answer = client.call_once(f"request {number}", "pay", id=1, amount="1.00")
                acknowledged += 1
                assert answer == {"left": Decimal(f"{100 - acknowledged}.00"), "rejected": None}
            end(process)
            with pytest.raises(UnavailableError):
                client.call_once("late", "pay", id=2, amount="1.00")
    with database_in(tmp_path / "bank.py").open(tmp_path / "bank") as opened:
        rows = {row["id"]: row["balance"] for row in opened.table("accounts").to_pylist()}
    assert rows == {1: Decimal(100 - acknowledged), 2: Decimal(100), 3: Decimal(100)}


def test_the_server_of_a_replica_takes_over_when_told(tmp_path: Path) -> None:
    primary = bank().open(tmp_path)
    primary.load("accounts", {"id": [1], "balance": [100]})
    with DatabaseServer(bank().follow(tmp_path)) as server, penstock.DatabaseClient(server.uri) as client:
        with pytest.raises(UnavailableError, match="this server is a replica"):
            client.call("pay", id=1, amount=1)
        client.take_over()
        client.take_over()
        assert client.call("pay", id=1, amount=1) == {"left": 99, "rejected": None}
        assert client.lag() == Lag(0, 0.0)
        server.database.close()
    with pytest.raises(FencedError):
        primary.call("pay", id=1, amount=1)
    with (
        DatabaseServer(primary) as fenced,
        penstock.DatabaseClient(fenced.uri) as client,
        pytest.raises(FencedError, match=r"another process has opened this database.* call that process"),
    ):
        client.table("accounts")


def test_a_fenced_server_refuses_reads_as_soon_as_a_call_has_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with bank().open(tmp_path) as primary:
        primary.load("accounts", {"id": [1], "balance": [100]})
        with (
            DatabaseServer(primary) as fenced,
            penstock.DatabaseClient(fenced.uri) as client,
            bank().follow(tmp_path).take_over() as other,
        ):
            assert other.call("pay", id=1, amount=1)["left"] == 99
            for ask in (
                lambda: client.call("pay", id=1, amount=7),
                lambda: client.table("accounts"),
                lambda: client.call("pay", id=1, amount=7),
                lambda: client.call_once("a", "pay", id=1, amount=7),
            ):
                with pytest.raises(FencedError, match="another process has opened this database"):
                    ask()
            assert other.table("accounts")["balance"].to_pylist() == [99]
    (told,) = [record.getMessage() for record in caplog.records if record.name.endswith("served.server")]
    assert told.startswith(
        "this server answers no more calls; end it: another process has opened this database"
    )


@pytest.mark.long
def test_a_served_replica_reads_and_takes_over_when_told(tmp_path: Path) -> None:
    primary, uri = started(tmp_path)
    replica, second = started(tmp_path, "--follow", "--partitions", "2")
    try:
        with penstock.DatabaseClient(uri) as first, penstock.DatabaseClient(second, timeout="60s") as client:
            assert first.call("pay", id=1, amount=Decimal(1))["rejected"] == UNKNOWN
            assert client.table("accounts").num_rows == 0
            assert client.lag().calls >= 0
            with pytest.raises(UnavailableError, match="this server is a replica"):
                client.call("pay", id=1, amount=Decimal(1))
            end(primary)
            for _ in range(2):
                client.take_over()
            assert client.call_once("a", "pay", id=1, amount="1.00")["rejected"] == UNKNOWN
            assert client.lag() == Lag(0, 0.0)
        replica.send_signal(signal.SIGINT)
        _, said = replica.communicate(timeout=120)
        assert replica.returncode == 130, said
        assert "Traceback" not in said
    finally:
        end(primary)
        end(replica)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--follow"], "follows a database in a directory"),
     (["--partitions", "2", "--ranges", "accounts=2,3"], "ranges of a table do not fit its partitions"),
     (["--partitions", "2", "--speculate", "row"], "no such mode of speculation"),
     (["--host", "0.0.0.0"], "without a token"), (["--tls-key", "nothing"], "TLS needs both"),
     (["--token-file", "nothing"], "cannot read a file")],
)  # fmt: skip
def test_mistakes_of_the_command_are_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "bank.py").write_text(BANK)
    command = [sys.executable, "-m", "penstock.cli", "serve", "bank.py", "--port", "0", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") <= 2
