"""A served database with TLS talks only to clients that trust its certificate and know the token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.procedures.served.server import DatabaseServer
from tests.servers.certificates import Certificate, make_certificate
from tests.unit.procedures.served.test_serve import bank, end, started

TOKEN = "secret of the test"
UNKNOWN = "unknown key: accounts"
TIMEOUT = "5s"


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return make_certificate()


@pytest.fixture(scope="module")
def uri(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("tls")
    for name, content in (("token", TOKEN.encode()), *certificate._asdict().items()):
        (place / name).write_bytes(content)
    files = (
        *("--token-file", str(place / "token")),
        *("--tls-certificate", str(place / "chain")),
        *("--tls-key", str(place / "key")),
    )
    process, address = started(place, *files)
    yield address
    end(process)


def test_a_client_that_trusts_the_certificate_and_has_the_token_calls(
    uri: str, certificate: Certificate
) -> None:
    assert uri.startswith("grpc+tls://")
    with penstock.DatabaseClient(uri, token=TOKEN, certificates=certificate.chain, timeout="30s") as client:
        assert client.call("pay", id=1, amount="1.00")["rejected"] == UNKNOWN
        assert client.table("accounts").num_rows == 0


@pytest.mark.parametrize("token", [None, "secret of the tesT"])
def test_the_certificate_does_not_replace_the_token(
    uri: str, certificate: Certificate, token: str | None
) -> None:
    with (
        penstock.DatabaseClient(uri, token=token, certificates=certificate.chain, timeout="30s") as client,
        pytest.raises(InvalidUsageError, match="the server refuses the token"),
    ):
        client.call("pay", id=1, amount="1.00")


@pytest.mark.parametrize("trusted", ["another", "the system's"])
def test_a_client_does_not_talk_to_a_server_that_it_does_not_trust(uri: str, trusted: str) -> None:
    others = make_certificate().chain if trusted == "another" else None
    with (
        penstock.DatabaseClient(uri, token=TOKEN, certificates=others, timeout=TIMEOUT) as client,
        pytest.raises(UnavailableError, match="the server does not answer"),
    ):
        client.call("pay", id=1, amount="1.00")


def test_a_client_refuses_the_certificate_of_another_host() -> None:
    other = make_certificate("other.example", "192.0.2.1")
    with (
        bank().open() as db,
        DatabaseServer(db, certificate=other) as server,
        penstock.DatabaseClient(server.uri, certificates=other.chain, timeout=TIMEOUT) as client,
        pytest.raises(UnavailableError),
    ):
        client.table("accounts")


def test_nobody_calls_in_clear_text(uri: str) -> None:
    plain = uri.replace("grpc+tls", "grpc")
    with (
        penstock.DatabaseClient(plain, token=TOKEN, timeout=TIMEOUT) as client,
        pytest.raises(UnavailableError, match="the server does not answer"),
    ):
        client.call("pay", id=1, amount="1.00")


@pytest.mark.parametrize("wrong", ["key", "chain"])
def test_a_server_refuses_what_is_no_certificate_and_key(certificate: Certificate, wrong: str) -> None:
    with bank().open() as db, pytest.raises(UnavailableError, match="certificate and key"):
        DatabaseServer(db, certificate=certificate._replace(**{wrong: b"no PEM"}))
