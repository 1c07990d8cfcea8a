"""Locations in object stores: the sources of their settings, and the locations that are refused at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from penstock.checkpointing.files import open_files, stores
from penstock.errors import InvalidUsageError

SECRET = "not-to-be-seen"


@pytest.fixture(autouse=True)
def nothing_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def settings(uri: str) -> tuple[dict[str, object], str]:
    store, path = stores._connect(uri)
    return dict(store.config), path


@pytest.mark.parametrize(
    ("uri", "expected", "path"),
    [
        ("s3://b/p%20q/r/?region=eu-1", {"bucket": "b", "region": "eu-1"}, "p q/r"),
        ("s3a://b", {"bucket": "b"}, ""),
        ("s3://key:sec%2Fret@b/p", {"access_key_id": "key", "secret_access_key": "sec/ret"}, "p"),
        ("s3://b/p?scheme=http&endpoint_override=h:9", {"endpoint": "http://h:9"}, "p"),
        ("s3://b/p?endpoint=http://h:9&virtual_hosted_style_request=true", {"endpoint": "http://h:9"}, "p"),
        ("gs://b/p?base_url=http://h:9&skip_signature=true", {"bucket": "b", "base_url": "http://h:9"}, "p"),
        ("gs://anonymous@b/p", {"bucket": "b", "skip_signature": True}, "p"),
        ("abfss://c@acc.dfs.core.windows.net/p", {"container_name": "c", "account_name": "acc"}, "p"),
        ("abfss://acc.dfs.core.windows.net/c/p/q", {"container_name": "c", "account_name": "acc"}, "p/q"),
        ("abfss://:a2V5@acc.dfs.core.windows.net/c/p", {"container_name": "c", "account_key": "a2V5"}, "p"),
        ("az://c/p?account_name=acc", {"container_name": "c", "account_name": "acc"}, "p"),
        ("abfss://w@onelake.dfs.fabric.microsoft.com/l/p", {"account_name": "onelake"}, "l/p"),
    ],
)  # fmt: skip
def test_a_uri_names_bucket_path_and_settings(uri: str, expected: dict[str, object], path: str) -> None:
    config, found = settings(uri)
    assert found == path
    assert {key: str(config[key]).lower() for key in expected} == {
        key: str(value).lower() for key, value in expected.items()
    }


def test_keys_of_s3_come_from_the_uri_then_the_environment_then_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / ".aws"
    files.mkdir()
    files.joinpath("credentials").write_text(
        "[default]\naws_access_key_id = of-default\naws_secret_access_key = s%1\n"
        "[work]\naws_access_key_id = of-work\naws_secret_access_key = s\naws_session_token = t\n"
    )
    files.joinpath("config").write_text("[default]\nregion = r-1\n[profile work]\nregion = r-2\n")
    config, _ = settings("s3://b/p")
    assert (config["access_key_id"], config["secret_access_key"], config["region"]) == (
        "of-default", "s%1", "r-1"
    )  # fmt: skip
    monkeypatch.setenv("AWS_PROFILE", "work")
    config, _ = settings("s3://b/p?region=r-3")
    assert (config["access_key_id"], config["session_token"], config["region"]) == ("of-work", "t", "r-3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert "access_key_id" not in settings("s3://b/p")[0], "obstore takes it"
    assert settings("s3://of-uri:s@b/p")[0]["access_key_id"] == "of-uri"


def test_keys_and_endpoint_of_the_environment_reach_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Service) as server, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.handle_request)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with pytest.raises(FileNotFoundError):
            open_files("s3://of-the-environment/p").read("f")
        serving.result()
    assert "Credential=of-environment/" in heard[0]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://b/p?regoin=x", "did you mean 'region'"),
        ("gs://b/p?region=x", "GCS does not have: region"),
        ("s3://b/p?skip_signature=perhaps", "boolean"),
        ("s3://b/p?retry_limit_seconds=soon", "not a number"),
        ("s3://b/p?timeout=soon", "Duration"),
        ("s3://b/a b", "percent-encode"),
        (f"s3://key:{SECRET}/x@b/p", "%2F"),
        (f"gs://key:{SECRET}@b/p", "gs://bucket/path"),
        ("abfss://acc.dfs.core.windows.net", "no container"),
        ("az://c/p", "Account must be specified"),
    ],
)
def test_a_mistake_in_a_uri_is_refused_at_the_first_use(uri: str, message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message) as caught:
        open_files(uri).list()
    assert SECRET not in str(caught.value)
