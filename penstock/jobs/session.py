"""The Spark session of a job."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.errors import AnalysisException, PySparkException, PySparkRuntimeError, StreamingQueryException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

from penstock._clock import monotonic_s
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.jobs.class_archive import JAVA_HINT, JAVA_OPTIONS, archive_options, require_java
from penstock.jobs.signals import StopSignals
from penstock.jobs.spark_home import make_home, use_spark_home
from penstock.spark_ext.api.failure import failure_of, is_late_worker, is_ours, is_without_answer
from penstock.spark_ext.api.register import register, remove_metrics
from penstock.spark_ext.border.connection import Py4JError, is_connect
from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["open_session", "session"]

_T = TypeVar("_T")

CLOSING_S: Final = 1.0
"""The longest time between the first and the last socket that an ending JVM closes."""

_DEFAULTS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default INT96 is deprecated, and all readers except Spark take it for a time without a zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_LAPTOP_DEFAULTS: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL_DEFAULTS: Final = _DEFAULTS | {
    # Spark's default of 200 would make 200 buckets, and a task for each in every micro-batch. The number of
    # cores is no good default, because a checkpoint keeps its buckets when it moves to a different machine.
    "spark.sql.shuffle.partitions": "8",
}
_LATE_OPTIMISATION: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Raise the thresholds of the JVM's second compiler tenfold: it mostly compiles start-up code."""
_MAX_CORES_FOR_SERIAL_GC: Final = 4
"""With at most this many cores, the threads of a parallel collector would take time from the work."""
_LOG_FILE: Final = Path(__file__).parents[1] / "conf" / "log4j2.properties"
_BANNERS: Final = (b"WARNING: Using incubator modules: jdk.incubator.vector\n",)
"""Lines of the JVM that no option suppresses."""
_UNRESOLVED: Final = re.compile(r"\b(?:unresolved dependency|download failed): ([^\s:!\]]+)")
"""A line in which the JVM names a package that it could not fetch: ``group#name;version``."""
_PACKAGE_HINT: Final = (
    "no repository that can be reached has it: correct its version in query.spark.spark.jars.packages, name "
    "jar files in spark.jars instead, or more repositories in spark.jars.repositories; "
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 also runs on Spark 4.3, and --engine local needs none"
)
_POLL_S: Final = 0.1
_DRAIN_S: Final = 2.0
"""The wait for the last output of a JVM that has ended."""


def _configured_elsewhere() -> bool:
    """Return whether ``spark-submit`` or the user's Spark installation provides Spark's configuration."""
    return any(name in os.environ for name in ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR"))


def _change(spark: SparkSession, name: str, value: str) -> None:
    if not is_connect(spark) and spark.sparkContext.getConf().get(name) == value:
        return
    try:
        spark.conf.set(name, value)
    except AnalysisException:
        raise InvalidUsageError(
            "a setting of Spark cannot change while its session runs",
            hint="set it before the session starts, or leave it out of query.spark",
            field=name,
        ) from None


def _launch_jvm(options: Mapping[str, str], home: Path | None) -> None:
    """Start Spark's JVM, and forward its standard error without its banners.

    Parameters
    ----------
    options : mapping of str to str
        Settings of Spark.
    home : Path, optional
        The Spark home of the JVM; by default PySpark's own.

    Raises
    ------
    UnavailableError
        If the JVM does not start.
    """
    # Import here, because the package pyspark-client (for Spark Connect only) does not have these names.
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    reading, writing = os.pipe()
    unresolved: list[str] = []

    def forward() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if line not in _BANNERS:
                    os.write(2, line)
                unresolved.extend(_UNRESOLVED.findall(line.decode(errors="replace")))

    thread = threading.Thread(target=forward, name="penstock-jvm-stderr", daemon=True)
    thread.start()
    conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
    try:
        with use_spark_home(home):
            gateway = _run_in_thread(lambda: launch_gateway(conf, {"stderr": writing}))
    except PySparkRuntimeError as error:
        os.close(writing)
        thread.join(_DRAIN_S)
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        if unresolved:
            raise UnavailableError(
                "Spark cannot fetch a package of spark.jars.packages",
                package=unresolved[0].replace("#", ":").replace(";", ":"),
                hint=_PACKAGE_HINT,
            ) from None
        raise UnavailableError(
            "Spark's JVM did not start", hint=f"its output above shows why; {JAVA_HINT}"
        ) from None
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _run_in_thread(call: Callable[[], _T]) -> _T:
    """Run `call` in a new thread and return its result; a signal ends the wait at once, without a traceback.

    PySpark starts a JVM and waits for the JVM to write a file. If this wait is interrupted, PySpark deletes
    the file's directory; the JVM then cannot write its file, and runs for ever. Signals interrupt only the
    main thread. So in a new thread, PySpark's wait goes on: the JVM writes its file, notices that this
    process has ended, and ends.

    There is a second reason. A Spark context that is created in the main thread installs its own handler of
    SIGINT. This handler may call the JVM in the middle of a running call, and then prints a stack trace.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="penstock-start", daemon=True).start()
    while not future.done():
        # A signal that arrives right before a wait does not end the wait.
        wait([future], timeout=_POLL_S)
    return future.result()


def _runs_this_python(options: Mapping[str, str]) -> bool:
    """Return whether all of Spark's Python processes run on this machine with this interpreter."""
    python = options.get("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON"))
    return options.get("spark.master", "local").startswith("local") and python == sys.executable


def _laptop_options(settings: Mapping[str, str], log_level: str) -> dict[str, str]:
    """Return the default settings of Spark on one machine.

    Raises
    ------
    InvalidUsageError
        If there is no Java; see `require_java`.
    """
    require_java()
    if log_level in ("FATAL", "OFF"):
        # PySpark would also log the errors that it raises, with the JVM's stack.
        for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    options = dict(_LAPTOP_DEFAULTS)
    java = [
        f"-Dlog4j2.configurationFile={_LOG_FILE.as_uri()} -Dpenstock.log.level={log_level.lower()}",
        _LATE_OPTIMISATION,
    ]
    if not _chooses_collector(settings) and (os.cpu_count() or 1) <= _MAX_CORES_FOR_SERIAL_GC:
        java.append("-XX:+UseSerialGC")
    if settings.get("spark.master", "local").startswith("local"):
        java.insert(0, archive_options().get(JAVA_OPTIONS, ""))
        if "spark.pyspark.python" not in settings:
            # Workers would otherwise run the `python3` in PATH, which may lack the dependencies.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            options[DAEMON_SETTING] = DAEMON
    options[JAVA_OPTIONS] = " ".join(java).strip()
    return options


_JVM_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")


def _chooses_collector(settings: Mapping[str, str]) -> bool:
    """Return whether the settings choose a garbage collector; a JVM accepts only one choice."""
    said = [settings.get(f"spark.driver.{kind}JavaOptions", "") for kind in ("extra", "default")]
    said += [os.environ.get(name, "") for name in _JVM_OPTION_VARIABLES]
    return any("GC" in options for options in said)


def open_session(
    name: str,
    settings: Mapping[str, str],
    spark: SparkSession | None = None,
    *,
    log_level: str = "FATAL",
) -> tuple[SparkSession, bool]:
    """Return the session in which a job runs, and whether this call created it.

    The driver calls this function once. A given or active session is used; only `settings` are added to it.
    Otherwise a session is created. If ``SPARK_REMOTE`` names a Spark Connect server, the session is on this
    server. Under ``spark-submit``, the session has the configuration of ``spark-submit``. If ``SPARK_HOME``
    or ``SPARK_CONF_DIR`` is set, it has the configuration of that Spark installation. In all other cases the
    session is on this machine, with all its cores, and without a web interface. Its workers use this Python
    interpreter and start warm, and its JVM uses the class archive that ``penstock warm-up`` makes. Every
    session in local mode has few shuffle partitions by default.

    Parameters
    ----------
    name : str
        The application's name, if a session is created.
    settings : mapping of str to str
        Settings of Spark, which take precedence over all other settings.
    spark : pyspark.sql.SparkSession, optional
        The session to use; by default the active session, if there is one.
    log_level : str
        Spark's log level, unless another setting determines it.

    Raises
    ------
    InvalidUsageError
        If a setting cannot change in the running session, or if only a Spark Connect client is installed and
        no server is named.
    UnavailableError
        If Spark's JVM does not start.
    """
    active = spark or SparkSession.getActiveSession()
    if active is not None:
        for setting, value in settings.items():
            _change(active, setting, value)
        return active, False
    if "SPARK_REMOTE" in os.environ:
        spark = SparkSession.builder.appName(name).getOrCreate()
        for setting, value in settings.items():
            _change(spark, setting, value)
        return spark, True
    if is_remote_only():
        raise InvalidUsageError(
            "the package pyspark-client has no Spark of its own",
            hint="set SPARK_REMOTE to the address of a server of Spark Connect, or install pyspark",
        )
    from pyspark import SparkConf, SparkContext

    if _configured_elsewhere():
        options: dict[str, str] = {**settings}
    else:
        options = {**_laptop_options(settings, log_level), **settings}
        if SparkContext._gateway is None:
            _launch_jvm(options, make_home() if _runs_this_python(options) else None)
    conf = SparkConf().setAppName(name).setAll(list(options.items()))
    _run_in_thread(lambda: SparkContext.getOrCreate(conf))
    spark = SparkSession.builder.appName(name).config(map=dict(options)).getOrCreate()
    _quiet_accumulators(spark.sparkContext)
    _set_defaults(spark, options)
    return spark, True


def _set_defaults(spark: SparkSession, given: Mapping[str, str]) -> None:
    context = spark.sparkContext
    for setting, value in (_LOCAL_DEFAULTS if str(context.master).startswith("local") else _DEFAULTS).items():
        if setting not in given and not context.getConf().contains(setting):
            spark.conf.set(setting, value)


def _stop(spark: SparkSession, signals: StopSignals) -> None:
    """Stop a session, unless a signal to all processes has already ended its JVM."""
    if sys.is_finalizing():
        return  # the JVM ends with this process

    def stop() -> None:
        try:
            # A query that runs while its context ends would print a stack trace of Java.
            for query in spark.streams.active:
                query.stop()
        finally:
            spark.stop()

    if signals.received is None:
        stop()
        return
    try:
        # Each thread has its own connection to the JVM. SIGTERM may have interrupted a call of the main
        # thread. The next call on the main thread's connection would wait for the answer to the interrupted
        # call, or take that answer for its own.
        _run_in_thread(stop)
    except (Py4JError, ConnectionError) as error:
        if not is_without_answer(error):
            raise


def _is_only_for_streams(spark: SparkSession) -> bool:
    """Return whether a streaming query runs, or Spark has not run any job yet."""
    try:
        if spark.streams.active:
            return True
        # The scheduler counts a job at once, whatever the job's group; status trackers learn of jobs later.
        return not is_connect(spark) and spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs() == 0
    except (Py4JError, ConnectionError):  # the signal also ended the JVM
        return False


def _quiet_accumulators(context: SparkContext, closing_s: float = CLOSING_S) -> None:
    """Keep Spark's server of accumulators from printing a traceback when its client, the JVM, ends.

    Calls to the JVM report that it has ended. If the connection breaks while the JVM runs, the server still
    reports it.
    """
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is None:
        return  # another version of PySpark
    gateway: Any = context._gateway
    report = server.handle_error

    def handle_error(*request: object) -> None:
        is_expected = isinstance(sys.exception(), EOFError) and (
            server.server_shutdown or _is_closed(gateway, closing_s)
        )
        if not is_expected:
            report(*request)

    server.handle_error = handle_error


def _is_closed(gateway: Any, closing_s: float) -> bool:
    """Return whether the JVM no longer listens at its gateway, now or a moment later."""
    address = gateway.gateway_parameters.address, gateway.gateway_parameters.port
    deadline, pause = monotonic_s() + closing_s, threading.Event()
    while monotonic_s() < deadline:
        try:
            socket.create_connection(address, timeout=closing_s).close()
        except OSError:
            return True
        pause.wait(0.05)  # a process that ends closes its sockets one after the other
    return False


@contextmanager
@check_keywords
def session(
    settings: Mapping[str, str] | None = None,
    *,
    name: str = "penstock",
    log_level: str = "FATAL",
    spark: SparkSession | None = None,
) -> Iterator[SparkSession]:
    """Provide a Spark session that is ready for Penstock, and stop it at the end of the block.

    Call this function on the driver. If there is no active session, and neither ``spark-submit`` nor a Spark
    installation configures the run, Spark runs on this machine: with all its cores and warm Python workers,
    without Spark's web interface, with the time zone UTC, and it logs only fatal errors. In local mode, a new
    session has eight shuffle partitions by default. An active session is used unchanged and is not stopped.
    The formats ``market`` and ``pstream`` are registered.

    Inside `penstock.run`, Ctrl-C or SIGTERM ends the query between two batches. Elsewhere in the block, the
    signal ends the program without a traceback, after the ``finally`` blocks. The exit code after SIGTERM is
    143. The exit code after Ctrl-C is 0 if a streaming query runs or Spark has run no job yet. Otherwise it
    is 130, because Ctrl-C may have interrupted a batch job. A second signal ends the program at once. Even
    then, nothing that a checkpoint holds is lost.

    Parameters
    ----------
    settings : mapping of str to str, optional
        Settings of Spark, such as ``{"spark.driver.memory": "2g"}``, which take precedence over the defaults
        above.
    name : str
        The application's name.
    log_level : {"OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG"}
        Spark's log level on standard error.
    spark : pyspark.sql.SparkSession, optional
        The session to use instead of the active session.

    Raises
    ------
    InvalidUsageError
        If a setting cannot change in the active session, or there is no Java.
    UnavailableError
        If Spark's JVM does not start, or a Python worker of Spark does not start in time while the block
        runs.
    PenstockError
        If a Spark error leaves the block and wraps a Penstock error. The Penstock error replaces the Spark
        error.

    Examples
    --------
    >>> with penstock.session() as spark:  # doctest: +SKIP
    ...     trades = spark.readStream.format("market").load()
    ...     newest = penstock.update_queue(trades, key="symbol", time="time", state_location="state")
    ...     query = newest.writeStream.format("console").option("checkpointLocation", "checkpoint").start()
    ...     penstock.run(query)
    """
    with StopSignals(raises=True) as signals:
        try:
            opened, is_own = open_session(name, settings or {}, spark, log_level=log_level)
            try:
                signals.take()
                register(opened)
                try:
                    yield opened
                except (KeyboardInterrupt, Py4JError, ConnectionError):
                    if signals.received == signal.SIGINT and _is_only_for_streams(opened):
                        raise SystemExit from None
                    raise
            finally:
                if is_own:
                    if is_connect(opened):
                        remove_metrics(opened)
                    _stop(opened, signals)
                    remove_metrics(opened, stopped=True)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
        except (Py4JError, PySparkException, ConnectionError) as error:
            if signals.received is not None and is_without_answer(error):
                # A signal to all processes, such as systemd's, ends the JVM, too.
                raise SystemExit(128 + signals.received) from None
            if is_late_worker(error):
                raise failure_of(error, "Spark cannot run Python") from error
            if not is_ours(error):
                raise
            ended = isinstance(error, StreamingQueryException)
            raise failure_of(error, "a query failed" if ended else "Spark refuses a query") from None
