"""The Spark session of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def lean_session(directory: Path, master: str = "local[2]", **options: str) -> SparkSession:
    """Return a small session that keeps its files in `directory`; `options` have ``__`` for dots."""
    builder = SparkSession.builder.master(master).config(DAEMON_SETTING, DAEMON)
    for name, value in options.items():
        builder = builder.config(name.replace("__", "."), value)
    session = (
        builder.appName("penstock-tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.streaming.fileSink.log.compactInterval", "1000")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a Spark session with two cores, for one module of tests."""
    session = lean_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
