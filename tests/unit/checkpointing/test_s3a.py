"""Spark's settings of S3 (``spark.hadoop.fs.s3a.*``) reach Penstock's client."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.checkpointing.files import open_files, stores
from penstock.checkpointing.files.s3a import S3A_SETTINGS, keep_s3a, s3a_settings
from penstock.checkpointing.p_stream import PStreamWriter
from penstock.cli import app
from penstock.errors import InvalidUsageError
from tests.servers.s3 import KEY, SECRET, S3Server

_KEYS = {"access.key": KEY, "secret.key": SECRET}
_TAKEN = {"access_key_id": KEY, "secret_access_key": SECRET}


@pytest.fixture(autouse=True)
def nothing_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def packed(settings: dict[str, str]) -> str:
    environment: dict[str, str] = {}
    keep_s3a([(f"spark.hadoop.fs.s3a.{name}", value) for name, value in settings.items()], environment)
    return environment[S3A_SETTINGS]


def found(settings: dict[str, str], own: dict[str, str] | None = None, **environment: str) -> dict[str, str]:
    return s3a_settings("lake", own or {}, environment | {S3A_SETTINGS: packed(settings)})


def address(endpoint: str, *, in_path: bool) -> dict[str, str]:
    return {"endpoint": endpoint, "virtual_hosted_style_request": str(not in_path).lower()}


_MINIO = {"endpoint": "minio:9000", "path.style.access": "true"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (_KEYS, _TAKEN),
        (_KEYS | {"session.token": "t"}, _TAKEN | {"session_token": "t"}),
        (_KEYS | {"aws.credentials.provider": "a.b.TemporaryAWSCredentialsProvider"}, _TAKEN),
        (_KEYS | {"aws.credentials.provider": "a.b.IAMInstanceCredentialsProvider"}, {}),
        (
            _KEYS | {"aws.credentials.provider": "a.b.AnonymousAWSCredentialsProvider"},
            {"skip_signature": "true"},
        ),
        (_KEYS | {"bucket.lake.access.key": "own", "bucket.lake.secret.key": "s"},
         {"access_key_id": "own", "secret_access_key": "s"}),
        (_KEYS | {"bucket.pond.access.key": "other", "bucket.pond.secret.key": "s"}, _TAKEN),
        ({"endpoint.region": "eu-1"}, {"region": "eu-1"}),
        (_MINIO, address("https://minio:9000", in_path=True)),
        (_MINIO | {"connection.ssl.enabled": "false"}, address("http://minio:9000", in_path=True)),
        (_MINIO | {"bucket.lake.endpoint": "http://own:1"}, address("http://own:1", in_path=True)),
        ({"endpoint": "http://minio.example:9000"}, address("http://lake.minio.example:9000", in_path=False)),
        ({"endpoint": "http://127.0.0.1:9000"}, address("http://127.0.0.1:9000", in_path=True)),
        ({"endpoint": "s3.amazonaws.com", "path.style.access": "true"}, {}),
        ({"endpoint": "https://s3.eu-west-1.amazonaws.com"}, {"region": "eu-west-1"}),
    ],
)  # fmt: skip
def test_a_setting_of_spark_becomes_one_of_obstore(
    settings: dict[str, str], expected: dict[str, str]
) -> None:
    assert found(settings) == expected


def test_a_bucket_that_no_host_can_be_named_after_is_in_the_path() -> None:
    environment = {S3A_SETTINGS: packed({"endpoint": "http://minio:9"})}
    assert s3a_settings("a.b", {}, environment) == address("http://minio:9", in_path=True)


def test_own_settings_precede_those_of_spark() -> None:
    all_of_them = _KEYS | _MINIO | {"endpoint.region": "eu-1", "session.token": "t"}
    minio = address("https://minio:9000", in_path=True)
    keys = _TAKEN | {"session_token": "t"}
    assert found(all_of_them) == keys | minio | {"region": "eu-1"}
    assert found(all_of_them, {"aws_access_key_id": "own"}) == minio | {"region": "eu-1"}
    assert found(all_of_them, AWS_ACCESS_KEY_ID="own", AWS_DEFAULT_REGION="r") == minio
    assert found(all_of_them, {"endpoint": "e", "region": "r"}) == keys
    assert found(all_of_them, AWS_ENDPOINT_URL="e") == keys | {"region": "eu-1"}
    assert found(all_of_them, {"skip_signature": "true"}, AWS_REGION="r") == minio


def test_other_settings_of_spark_are_left_alone() -> None:
    environment = {S3A_SETTINGS: "of the session before"}
    keep_s3a([("spark.hadoop.fs.s3a.threads.max", "9"), ("spark.master", "local")], environment)
    assert not environment
    settings = {"bucket.a.threads.max": "9", "access.key": "k", "bucket.a.b.endpoint": "e"}
    assert packed(settings) == '{"access.key": "k", "bucket.a.b.endpoint": "e"}'


def test_files_are_written_and_read_with_settings_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as server:
        settings = _KEYS | {"endpoint": f"127.0.0.1:{server.port}", "connection.ssl.enabled": "false"}
        monkeypatch.setenv(S3A_SETTINGS, packed(settings))
        files = open_files("s3a://bucket/of-spark")
        files.publish("f", b"content")
        assert bytes(files.read("f")) == b"content"
        # The same location at another endpoint is another store.
        monkeypatch.setenv(S3A_SETTINGS, packed(settings | {"bucket.bucket.endpoint": "127.0.0.1:9"}))
        assert stores.open_store("s3a://bucket/of-spark")[0].config["endpoint"] == "http://127.0.0.1:9"


def test_a_wrong_setting_of_spark_is_refused_without_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(S3A_SETTINGS, packed(_KEYS | {"endpoint": f"http://user:{SECRET}@[::"}))
    with pytest.raises(InvalidUsageError) as caught:
        open_files("s3a://bucket/refused").list()
    assert SECRET not in repr(caught.value)


def test_the_checks_of_a_pipeline_see_its_settings_of_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(S3A_SETTINGS, "{}")
    schema = pa.schema({"k": pa.int64(), "n": pa.int64()})
    with S3Server() as server:
        address = f"http://127.0.0.1:{server.port}"
        with PStreamWriter(server.uri("updates"), schema):
            pass
        file = tmp_path / "pipeline.yaml"
        file.write_text(
            "source: {type: pstream, path: 's3a://bucket/updates'}\nqueue: {key: k, time: n}\n"
            f"sink: {{type: noop}}\nquery: {{spark: {{spark.hadoop.fs.s3a.endpoint: '{address}', "
            f"spark.hadoop.fs.s3a.access.key: '{KEY}', spark.hadoop.fs.s3a.secret.key: '{SECRET}'}}}}\n"
        )
        done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output
