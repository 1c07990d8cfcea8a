"""The Spark session of a job."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.errors import InvalidUsageError, UnavailableError
from penstock.jobs.warm_up import archive_options
from penstock.spark_ext.daemon import DAEMON, DAEMON_SETTING

__all__ = ["is_local", "open_session"]

_DEFAULTS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.session.timeZone": "UTC",
}
_LAPTOP_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_DEFAULTS: Final = {
    # Spark's 200 make as many buckets, each a task of every micro-batch. Not the number of cores: a
    # checkpoint keeps its buckets, and may be taken to another machine.
    "spark.sql.shuffle.partitions": "8",
}


def _configured_elsewhere() -> bool:
    """Whether spark-submit or a Spark installation of the user's own says how to run."""
    return any(name in os.environ for name in ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR"))


def is_local(spark: SparkSession) -> bool:
    """Whether the session's workers run on this machine, in its directory."""
    return str(spark.sparkContext.master).startswith("local")


def _quieten() -> None:
    """Keep PySpark from logging, with the stack of the JVM, what it also raises."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _change(spark: SparkSession, name: str, value: str) -> None:
    if spark.sparkContext.getConf().get(name) == value:
        return
    try:
        spark.conf.set(name, value)
    except AnalysisException:
        raise InvalidUsageError(
            "a setting of Spark cannot change while its session runs",
            hint="set it before the session starts, or leave it out of query.spark",
            field=name,
        ) from None


def open_session(
    name: str,
    settings: Mapping[str, str],
    spark: SparkSession | None = None,
    *,
    log_level: str = "ERROR",
) -> tuple[SparkSession, bool]:
    """Return the session that a job runs in, and whether it was made here.

    Called once, on the driver. A given or active session is used as it is, with `settings` added. Otherwise
    one is made: under ``spark-submit``, or with a Spark installation of the user's own (``SPARK_HOME`` or
    ``SPARK_CONF_DIR`` is set), as configured there; else on this machine, with all its cores, without the
    web interface, with few shuffle partitions, with this Python for the workers, with a daemon that
    starts them warm, and with the archive of classes that ``penstock warm-up`` makes.

    Parameters
    ----------
    name : str
        The application's name, where one is made.
    settings : mapping of str to str
        Settings of Spark. They win over all others.
    spark : pyspark.sql.SparkSession, optional
        The session to use; by default the active one, where there is one.
    log_level : str
        What Spark logs, where nothing else says so.

    Raises
    ------
    InvalidUsageError
        If a session runs and a setting cannot change any more.
    UnavailableError
        If Spark's JVM does not start.
    """
    active = spark or SparkSession.getActiveSession()
    if active is not None:
        for setting, value in settings.items():
            _change(active, setting, value)
        return active, False
    builder = SparkSession.builder.appName(name)
    if not _configured_elsewhere():
        builder = builder.config("spark.log.level", log_level)
        if log_level in ("FATAL", "OFF"):
            _quieten()
        for setting, value in _LAPTOP_DEFAULTS.items():
            builder = builder.config(setting, value)
        if settings.get("spark.master", "local").startswith("local"):
            for setting, value in _LOCAL_DEFAULTS.items():
                builder = builder.config(setting, value)
            if "spark.pyspark.python" not in settings:
                # Workers would otherwise run `python3` of the path, which need not have the dependencies.
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
                builder = builder.config(DAEMON_SETTING, DAEMON)
            for setting, value in archive_options().items():
                builder = builder.config(setting, value)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise UnavailableError(
            "Spark's JVM did not start",
            hint="its output above says why; it needs Java 17 or newer, and what spark.jars.packages names",
        ) from error
    given = spark.sparkContext.getConf()
    for setting, value in _DEFAULTS.items():
        if not given.contains(setting):
            spark.conf.set(setting, value)
    return spark, True
