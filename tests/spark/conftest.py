"""The Spark session of the tests."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.spark_ext.border.spark_versions import HAS_ADMISSION_CONTROL
from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING
from tests.spark.connect_server import ConnectServer
from tests.spark.hadoop import lighten

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


_STREAMING = "org.apache.spark.sql.execution.streaming" + (
    ".checkpointing" if pyspark.__version__ >= "4.1" else ""
)
_FEW_PROCESSES = {
    # By default each file of a checkpoint takes some ten processes more (readlink), and a second file.
    "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
_INTERPRETED = {
    # Compiling a plan takes longer than a few rows do.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LEAN = {
    "spark.driver.memory": "1g",
    # Most of what a query makes is gone when it ends: the larger its part of the heap, the less is moved.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -Xmn400m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.fileSink.log.compactInterval": "1000",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    DAEMON_SETTING: DAEMON,
}


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the sockets of Python sources that older PySparks leave to the garbage collector."""
    if not HAS_ADMISSION_CONTROL:
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def lean_session(
    directory: Path, master: str = "local[2]", *, as_users: bool = False, **options: str
) -> SparkSession:
    """Return a small session that keeps its files in `directory`; `options` have ``__`` for dots.

    With `as_users` checkpoints are written and plans are compiled as Spark does it by default.
    """
    settings: dict[str, Any] = _LEAN if as_users else _LEAN | _FEW_PROCESSES | _INTERPRETED
    settings = settings | {"spark.sql.warehouse.dir": str(directory / "warehouse")}
    settings = settings | {name.replace("__", "."): value for name, value in options.items()}
    session = SparkSession.builder.master(master).appName("penstock-tests").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    if not as_users:
        lighten(session)
    return session


def lean_server(directory: Path, master: str = "local[2]", **options: str) -> ConnectServer:
    """Return a small server of Spark Connect; `options` are those of `lean_session`."""
    settings = _LEAN | _FEW_PROCESSES | _INTERPRETED | {"spark.connect.session.planCache.enabled": "false"}
    settings |= {"spark.sql.warehouse.dir": str(directory / "warehouse")}
    settings |= {name.replace("__", "."): value for name, value in options.items()}
    return ConnectServer(directory / "connect", settings, master)


class Sessions:
    """Sessions one after the other, which share a Spark application as long as they want the same one.

    Each has settings, views, data sources and queries of its own. The JVM and what it has loaded, and the
    Python workers with their imports, stay from one module of tests to the next. With ``PENSTOCK_CONNECT=1``
    they are sessions of a server of Spark Connect.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._context: SparkContext | None = None
        self._server: ConnectServer | None = None
        self._options: tuple[str, dict[str, str]] = ("", {})

    @contextlib.contextmanager
    def session(
        self, master: str = "local[2]", *, connect: bool | None = None, **options: str
    ) -> Iterator[SparkSession]:
        """Give a new session; `options` are those of `lean_session`."""
        if self._options != (master, options):
            self.stop()
        if connect if connect is not None else os.environ.get("PENSTOCK_CONNECT") == "1":
            if self._server is None:
                self._server = lean_server(self._directory, master, **options).__enter__()
                self._options = (master, options)
            with self._server.session() as session:
                vars(session)["server"] = self._server
                yield session
            return
        session = lean_session(self._directory, master, as_users=False, **options)
        self._context, self._options = session.sparkContext, (master, options)
        environment = dict(self._context.environment)
        yield session
        for query in session.streams.active:
            query.stop()
        self._context.environment.clear()
        self._context.environment.update(environment)
        _forget(session)

    def stop(self) -> None:
        """Stop the application."""
        if self._context is not None:
            self._context.stop()
            self._context = None
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None


def _forget(session: SparkSession) -> None:
    """Let the next session be a new one, as `SparkSession.stop` does, but not stop the application."""
    jvm_sessions = SparkSession._get_j_spark_session_class(session._jvm)
    jvm_sessions.clearDefaultSession()
    jvm_sessions.clearActiveSession()
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    """Give a Spark session with two cores, for one module of tests."""
    with sessions.session() as session:
        yield session
