"""Errors of a client are one error without the cause, whose traceback would say nothing more."""

from __future__ import annotations

import socket
import traceback
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.jobs.pipelines.databases import database_in


def count_tracebacks(error: BaseException) -> int:
    return "".join(traceback.format_exception(error)).count("Traceback (most recent call last)")


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def test_a_server_that_does_not_answer_is_one_error() -> None:
    with penstock.DatabaseClient(f"grpc://127.0.0.1:{free_port()}", timeout="5s") as client:
        with pytest.raises(UnavailableError, match="does not answer: reason=FlightUnavailableError") as call:
            client.call("pay", id=1)
        with pytest.raises(UnavailableError, match="does not answer") as read:
            client.table("accounts")
    assert [count_tracebacks(found.value) for found in (call, read)] == [1, 1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_that_cannot_listen_leaves_the_database_to_the_server_that_runs(
    tmp_path: Path, host: str
) -> None:
    (tmp_path / "bank.py").write_text(
        'import penstock\nbank = penstock.database("bank")\nbank.table("accounts", "id bigint", key="id")\n'
    )
    place = tmp_path / "data"
    with database_in(tmp_path / "bank.py", None).open(place) as db, socket.socket() as running:
        running.bind(("127.0.0.1", 0))
        running.listen()
        port = str(running.getsockname()[1])
        command = [
            "serve",
            str(tmp_path / "bank.py"),
            "--location",
            str(place),
            "--host",
            host,
            "--port",
            port,
        ]
        done = CliRunner().invoke(app, command)
        assert done.exit_code != 0
        assert "cannot listen" in done.stderr or "without a token" in done.stderr
        db.load("accounts", {"id": [1]})


def test_an_address_without_a_scheme_is_one_error() -> None:
    with pytest.raises(InvalidUsageError, match="write grpc://host:port") as found:
        penstock.DatabaseClient("127.0.0.1:8815")
    assert count_tracebacks(found.value) == 1


def test_an_attribute_that_cannot_be_sent_is_named() -> None:
    with penstock.DatabaseClient(f"grpc://127.0.0.1:{free_port()}") as client:
        wrong: Any = 2**70
        with pytest.raises(
            InvalidUsageError, match=r"procedure=pay column=amount type=int\. Hint: integers are"
        ):
            client.call("pay", id=1, amount=wrong)
        wrong = object()
        with pytest.raises(
            InvalidUsageError, match=r"procedure=pay attribute=amount reason=object has no form in JSON\.$"
        ):
            client.call_once("a", "pay", id=1, amount=wrong)
