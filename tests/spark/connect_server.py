"""A server of Spark Connect for tests, in a process of its own, and sessions of it beside classic ones."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tests.servers import processes

NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")
"""The modules that Spark's client imports; `pip install "penstock[connect]"` has it."""

_HOME = Path(pyspark.__file__).parent
_PATIENCE_S = 600.0  # a machine under load starts a server slowly
_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""The environment variable that makes PySpark's functions those of Spark Connect."""


@contextlib.contextmanager
def classic_functions() -> Iterator[None]:
    """Make PySpark's functions those of classic sessions, also beside a session of Spark Connect."""
    before = os.environ.pop(_MODE, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[_MODE] = before


def lacks_client() -> bool:
    """Return whether the packages of Spark's client are missing."""
    try:
        return any(importlib.util.find_spec(name) is None for name in NEEDED)
    except ModuleNotFoundError:
        return True


class ConnectServer:
    """A server that runs while its ``with`` block lasts.

    Parameters
    ----------
    directory : Path
        Where its log and working directory are.
    settings : mapping of str to str
        Settings of Spark.
    master : str
        Spark's master.
    environment : str
        Variables of its environment.
    """

    def __init__(
        self, directory: Path, settings: Mapping[str, str], master: str = "local[2]", **environment: str
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self._port = unused.getsockname()[1]
        options = {**settings, "spark.connect.grpc.binding.port": str(self._port)}
        command = [str(_HOME / "bin" / "spark-submit"), "--master", master]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in options.items():
            command += ["--conf", f"{name}={value}"]
        self._log = directory / "server.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"], cwd=directory, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", **environment},
                start_new_session=True,
            )  # fmt: skip

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"sc://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    def __enter__(self) -> ConnectServer:
        def answers() -> bool:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return True
            return False

        with contextlib.ExitStack() as stack:
            stack.push(self.__exit__)
            assert processes.until(answers, _PATIENCE_S), "the server does not answer"
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        ours = [one.id for one in processes.running() if one.session == self.pid]
        processes.kill(ours)
        self._process.wait()

    @contextlib.contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Give a new session of this process, which may have a classic one beside it."""
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        builder: Any = ConnectSession.builder
        before = os.environ.get(_MODE)
        os.environ[_MODE] = "1"
        made: Any = builder.remote(self.url).create()
        try:
            yield made
        finally:
            for query in made.streams.active:
                query.stop()
            made.stop()
            del os.environ[_MODE]
            if before is not None:
                os.environ[_MODE] = before
