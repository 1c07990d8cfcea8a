"""The daemon of warm workers, without Spark."""

from __future__ import annotations

import importlib
import os
import socket
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock._failpoints import FAILPOINTS
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.jobs import session
from penstock.spark_ext import daemon

_INSTALLED = Path(str(importlib.import_module("pyspark").__file__)).parent
_BROKEN = """
from penstock.spark_ext import daemon
def warm_up():
    print("said by what is loaded")
    import nowhere
daemon.warm_up = warm_up
daemon.main()
"""

_HUNG_UP = """
from pyspark import daemon as of_spark
from penstock.spark_ext import daemon
def worker(connection, authenticated):
    raise {error}
of_spark.worker = worker
daemon.warm_up = lambda: None
daemon.main()
"""


def test_when_nothing_can_be_loaded_it_says_so_and_is_a_daemon_all_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BROKEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as worker:
            (pid,) = struct.unpack("!i", worker.recv(4, socket.MSG_WAITALL))
        assert pid not in (0, process.pid)
        process.stdin.close()
        said = process.stderr.read().decode()
    assert "No module named 'nowhere'" in said
    assert "penstock: Python workers start cold" in said
    assert said.startswith("said by what is loaded")


@pytest.mark.parametrize(
    ("error", "traces"), [("BrokenPipeError", 0), ("ConnectionResetError", 0), ("ValueError", 1)]
)
def test_a_worker_on_which_spark_hangs_up_ends_without_a_trace(error: str, traces: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HUNG_UP.format(error=error)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as worker:
            worker.recv(4, socket.MSG_WAITALL)
            worker.shutdown(socket.SHUT_WR)
            assert worker.recv(1) == b"", "it ends"
        process.stdin.close()
        said = process.stderr.read().decode()
    assert said.count("Traceback") == traces
    assert (error in said) == bool(traces)


def test_memory_is_given_back_after_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(daemon, "give_back", lambda: done.append("given back"))

    def work(connection: str) -> int:
        done.append(connection)
        if connection == "cut":
            raise BrokenPipeError
        return 3

    assert [daemon._task(work)(connection) for connection in ("whole", "cut")] == [3, 1]
    assert done == ["whole", "given back", "cut"]


def test_what_is_loaded_passes_no_fail_point_on_its_way() -> None:
    armed = ";".join(f"{name}=error" for name in FAILPOINTS)
    subprocess.run(
        [sys.executable, "-c", "from penstock.spark_ext import daemon; daemon.warm_up()"],
        env=os.environ | {"PENSTOCK_FAILPOINTS": armed}, check=True,
    )  # fmt: skip


def _archive(path: Path, version: bytes) -> str:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("pyspark/__init__.py", "")
        file.writestr("pyspark/version.py", version)
    return str(path)


def _path_after(monkeypatch: pytest.MonkeyPatch, *first: str) -> list[str]:
    """Return what `prefer_installed_pyspark` leaves of `first` on the path."""
    monkeypatch.setattr(sys, "path", [*first, *sys.path])
    daemon.prefer_installed_pyspark()
    return [path for path in sys.path if path in first]


def test_pyspark_comes_from_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    same = _archive(tmp_path / "pyspark.zip", (_INSTALLED / "version.py").read_bytes())
    jar = str(tmp_path / "spark-core.jar")
    other = str(tmp_path / "other.zip")
    assert _path_after(monkeypatch, same, jar, other) == [other]


def test_pyspark_of_another_version_is_not_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = _archive(tmp_path / "pyspark.zip", b'__version__ = "3.1"')
    assert _path_after(monkeypatch, other) == [other]


def test_pyspark_comes_from_the_zip_file_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only = _archive(tmp_path / "pyspark.zip", (_INSTALLED / "version.py").read_bytes())
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "pyspark").exists()])
    assert _path_after(monkeypatch, only) == [only]


def test_a_zip_file_that_is_not_there_does_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _path_after(monkeypatch, str(tmp_path / "pyspark.zip"))
    assert importlib.util.find_spec("pyspark") is not None


class _OpenedError(Exception):
    """No session is opened; the test knows the settings that a session would get."""


class _Builder:
    """Stands for Spark's builder of sessions; there is no session to get."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, _name: str) -> _Builder:  # noqa: N802 - the name is Spark's
        return self

    def config(self, *, map: dict[str, str]) -> _Builder:
        self.settings |= map
        return self

    def getOrCreate(self) -> None:  # noqa: N802 - the name is Spark's
        raise _OpenedError


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """Give a function that opens a session with some settings and returns one that it got: its daemon."""
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON", sys.executable))

    def daemon_of(got: str = daemon.DAEMON_SETTING, **settings: str) -> str | None:
        class Session:
            builder = _Builder()

            @staticmethod
            def getActiveSession() -> None:  # noqa: N802 - the name is Spark's
                return None

        monkeypatch.setattr(session, "SparkSession", Session)
        monkeypatch.setattr(session, "_launch_jvm", lambda options, home: None)
        context = SimpleNamespace(_gateway=None, getOrCreate=lambda conf: None)
        monkeypatch.setattr("pyspark.SparkContext", context)
        with pytest.raises(_OpenedError):
            session.open_session("test", {name.replace("__", "."): value for name, value in settings.items()})
        return Session.builder.settings.get(got)

    return daemon_of


def test_a_package_that_spark_cannot_fetch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch_gateway(conf: SparkConf, popen_kwargs: dict[str, int]) -> None:
        os.write(
            popen_kwargs["stderr"],
            b'Exception in thread "main" java.lang.RuntimeException: '
            b"[unresolved dependency: com.acme#wheels_2.13;9.9: not found]\n",
        )
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch_gateway)
    with pytest.raises(UnavailableError, match=r"package=com\.acme:wheels_2\.13:9\.9\. Hint: .*spark\.jars"):
        session._launch_jvm({}, None)


def test_a_session_on_this_machine_has_warm_workers(
    opened: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened() == opened(spark__master="local[4]") == daemon.DAEMON
    assert opened(spark__python__daemon__module="mine") == "mine"
    assert opened(spark__master="spark://elsewhere:7077") is None
    assert opened(spark__pyspark__python="/another/python") is None
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert opened() is None


@pytest.mark.parametrize(
    ("master", "given", "partitions"),
    [("local[2]", None, "8"), ("local[2]", "3", None), ("spark://elsewhere:7077", None, None)],
)
def test_a_session_in_local_mode_has_few_shuffle_partitions(
    master: str, given: str | None, partitions: str | None
) -> None:
    setting = "spark.sql.shuffle.partitions"
    conf = {} if given is None else {setting: given}
    changed: dict[str, str] = {}
    context = SimpleNamespace(master=master, getConf=lambda: SimpleNamespace(contains=conf.__contains__))
    spark = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=changed.__setitem__))
    session._set_defaults(cast(SparkSession, spark), {})
    assert changed.get(setting) == partitions
    assert changed.pop("spark.sql.session.timeZone") == "UTC"
    changed.clear()
    session._set_defaults(
        cast(SparkSession, spark), {setting: "5", "spark.sql.session.timeZone": "Asia/Tokyo"}
    )
    assert list(changed) == [name for name in session._DEFAULTS if name != "spark.sql.session.timeZone"]


def test_a_session_on_this_machine_logs_only_what_is_fatal(opened: Callable[..., str | None]) -> None:
    options = opened("spark.driver.defaultJavaOptions") or ""
    (file,) = [word for word in options.split() if word.startswith("-Dlog4j2.configurationFile=file:")]
    assert (
        "rootLogger.level = ${sys:penstock.log.level:-fatal}" in Path(file.partition("file:")[2]).read_text()
    )
    assert "-Dpenstock.log.level=fatal" in options
    assert opened("spark.log.level") is None


def test_a_session_on_a_small_machine_collects_serially_unless_told_otherwise(
    opened: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def options(**settings: str) -> str:
        return opened("spark.driver.defaultJavaOptions", **settings) or ""

    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert "-XX:+UseSerialGC" in options()
    assert "GC" not in options(spark__driver__extraJavaOptions="-XX:+UseParallelGC"), "a JVM takes only one"
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseG1GC")
    assert "GC" not in options()
    monkeypatch.delenv("JDK_JAVA_OPTIONS")
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert "GC" not in options()


def test_without_java_a_session_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(InvalidUsageError, match=r"there is no Java. Hint: install Java 17 .* apt-get"):
        session.open_session("test", {})
