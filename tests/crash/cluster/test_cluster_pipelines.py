"""Pipelines on a cluster of which parts and drivers are killed, in a shared folder and in S3."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.crash.cluster.cluster import Cluster
from tests.crash.cluster.cluster_pipelines import PLACES, Places, run_pipelines_with_kills
from tests.servers.s3 import KEY, SECRET, S3Server

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SEED = int(os.environ.get("PENSTOCK_CRASH_SEED") or time.time_ns() % 10**6)


@contextmanager
def _shared_folder(directory: Path) -> Iterator[Places]:
    def location(name: str) -> str:
        return str(directory / "shared" / name)

    yield Places(location, location)


@contextmanager
def _s3(directory: Path, way: str) -> Iterator[Places]:
    """Yield locations in S3; keys and endpoint are in Spark's settings, the environment or the URI."""
    with S3Server() as server:
        endpoint = f"http://127.0.0.1:{server.port}"
        if way == "uri":
            in_uri = f"endpoint={endpoint}&region=us-east-1"
            yield Places(lambda name: f"s3://{KEY}:{SECRET}@bucket/{name}?{in_uri}", server.uri)
        elif way == "settings":
            given = {
                "endpoint": endpoint,
                "access.key": KEY,
                "secret.key": SECRET,
                "path.style.access": "true",
            }
            settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in given.items()}
            yield Places(lambda name: f"s3a://bucket/{name}", server.uri, settings)
        else:
            given = {
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": endpoint,
            }  # fmt: skip
            settings = {f"spark.executorEnv.{name}": value for name, value in given.items()}
            yield Places(lambda name: f"s3://bucket/{name}", server.uri, settings, given)
        for place in PLACES:
            assert any(request.path.startswith(f"/bucket/{place}/") for request in server.requests), place


@pytest.mark.long
@pytest.mark.parametrize("way", ["shared folder", "uri", "settings", "environment"])
def test_pipelines_lose_and_double_nothing_when_workers_and_drivers_are_killed(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {_SEED}")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    draw = random.Random(_SEED)
    kinds = draw.sample(["executor", "machine"], 2)
    with (
        _shared_folder(tmp_path) if way == "shared folder" else _s3(tmp_path, way) as places,
        Cluster(tmp_path) as cluster,
    ):
        kills = {
            name: partial(cluster.kill, kind, draw)
            for name, kind in zip(("every", "newest"), kinds, strict=True)
        }
        run_pipelines_with_kills(cluster.url, kills, tmp_path / "pipelines", places)
