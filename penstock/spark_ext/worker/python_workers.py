"""Make Spark's workers run a Python that has Penstock, or raise an error with instructions."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from penstock._version import __version__
from penstock.checkpointing.files.s3a import keep_s3a
from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.failure import root_cause
from penstock.spark_ext.border.connection import Py4JError, is_connect
from penstock.spark_ext.package_files import package_files, write_zip

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["prepare_workers"]

_LOGGER = logging.getLogger(__name__)

_NEEDED: Final = ("penstock", "numpy", "pandas", "pyarrow", "numba", "xxhash", "zstandard", "pydantic")

_prepared: WeakSet[Any] = WeakSet()
"""The applications (with Spark Connect: the sessions) whose workers can run Penstock."""


def prepare_workers(spark: SparkSession) -> None:
    """Ensure that a session's Python workers can run Penstock; called on the driver, before any function.

    If ``PYSPARK_PYTHON`` is not set, Spark's workers run the ``python3`` in PATH, whatever Python the driver
    runs. In local mode, this function makes them run the driver's Python, unless ``PYSPARK_PYTHON`` names a
    Python with Penstock's dependencies. On a cluster, paths and packages may differ, so a small job checks
    one worker, once. If workers lack only Penstock itself, this function sends them the package, for this
    application (with Spark Connect: this session).

    Raises
    ------
    InvalidUsageError
        If workers on a cluster, or of a Spark Connect server, cannot run Penstock or have a different version
        of it. Or if `spark` is no session, or PySpark's functions belong to the other kind of session
        (classic or Connect).
    """
    _check_session(spark)
    context: Any = spark if is_connect(spark) else spark.sparkContext
    if not is_connect(spark):
        # The settings hold for this process, and for the workers of functions that are made later.
        keep_s3a(context.getConf().getAll(), os.environ, context.environment)
    if context in _prepared:
        return
    if is_connect(spark):
        _prepare_server(spark)
    elif not str(context.master).startswith("local"):
        _prepare_cluster(context)
    elif context.pythonExec != sys.executable:
        _use_drivers_python(context)
    _prepared.add(context)


def _check_session(spark: SparkSession) -> None:
    """Refuse what is no session, and a session of the kind for which PySpark's functions were not loaded.

    Raises
    ------
    InvalidUsageError
        If `spark` is no session, or ``pyspark.sql.functions`` would make columns for the other kind.
    """
    if not (is_connect(spark) or isinstance(spark, SparkSession)):
        raise InvalidUsageError(
            "this is no Spark session",
            got=type(spark).__name__,
            hint="pass the session of `with penstock.session() as spark`",
        )
    if is_connect(spark) != is_remote():
        kinds = ("classic sessions", "Spark Connect")
        functions, session = kinds if is_connect(spark) else reversed(kinds)
        raise InvalidUsageError(
            f"PySpark makes functions of {functions} in this process, and the session is one of {session}",
            hint="use one kind of session in a process; PySpark chooses by the environment variable "
            "SPARK_CONNECT_MODE_ENABLED",
        )


def _use_drivers_python(context: SparkContext) -> None:
    # Other functions of the session may need packages of the requested Python.
    if "PYSPARK_PYTHON" in os.environ:
        lack = _lack_of_workers(context)
        if lack is None:
            return
        _LOGGER.warning(
            "workers run the driver's Python instead of PYSPARK_PYTHON [was=%s now=%s lack=%s]",
            context.pythonExec, sys.executable, lack,
        )  # fmt: skip
    context.pythonExec = sys.executable


def _prepare_cluster(context: SparkContext) -> None:
    lack = _lack_of_workers(context)
    if lack == _no_module("penstock"):
        # Executors fetch the file when they start, at any time.
        directory = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
        atexit.register(directory.cleanup)
        context.addPyFile(str(_pack(directory.name)))
        _LOGGER.info("workers were sent this package [version=%s]", __version__)
        lack = _lack_of_workers(context)
    if lack is not None:
        raise _refusal(context.pythonExec, lack)


def _pack(directory: str) -> Path:
    """Write this package into a file that workers can import from."""
    path = Path(directory, "penstock.zip")
    write_zip(path, package_files())
    return path


def _prepare_server(spark: SparkSession) -> None:
    lack = _lack_of_server(spark)
    if lack == _no_module("penstock"):
        with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
            spark.addArtifacts(str(_pack(directory)), pyfile=True)
        _LOGGER.info("workers of Spark Connect were sent this package [version=%s]", __version__)
        lack = _lack_of_server(spark)
    if lack is not None:
        version = "{}.{}".format(*sys.version_info)
        raise InvalidUsageError(
            "the Python of Spark's workers cannot run Penstock",
            lack=lack,
            hint="set spark.pyspark.python where the server of Spark Connect starts, to the path of a Python "
            f"{version} with penstock {__version__} and its dependencies",
        )


def _probe() -> Callable[[Any], list[str]]:
    """Return a function that runs in a worker and returns the missing modules and the version of Penstock."""
    needed = _NEEDED

    # Workers without Penstock cannot load its functions. Spark sends a nested function by value.
    def probe(_: Any) -> list[str]:
        from importlib import import_module
        from importlib.util import find_spec

        missing = [name for name in needed if find_spec(name) is None]
        version = "" if "penstock" in missing else str(import_module("penstock._version").__version__)
        return [", ".join(missing), version]

    return probe


def _no_module(names: str) -> str:
    return f"no module {names}"


def _lack_in(facts: list[str]) -> str | None:
    missing, version = facts
    if missing:
        return _no_module(missing)
    return None if version == __version__ else f"penstock {version} where the driver has {__version__}"


def _lack_of_workers(context: SparkContext) -> str | None:
    """Run a job of one task; return what workers lack, or None if nothing is missing."""
    try:
        (facts,) = context.parallelize([0], 1).map(_probe()).collect()
    except (Py4JError, PySparkException) as error:
        return root_cause(error)
    return _lack_in(facts)


def _lack_of_server(spark: SparkSession) -> str | None:
    """Return what workers of Spark Connect lack, or None if nothing is missing."""
    probe = _probe()

    def probe_batches(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow

        for _ in batches:
            missing, version = probe(None)
            yield pyarrow.RecordBatch.from_pydict({"missing": [missing], "version": [version]})

    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(probe_batches, "missing string, version string").collect()
    except PySparkException as error:
        return root_cause(error)
    return _lack_in(list(row))


def _refusal(workers: str, lack: str) -> InvalidUsageError:
    version = "{}.{}".format(*sys.version_info)
    return InvalidUsageError(
        "the Python of Spark's workers cannot run Penstock",
        workers=workers,
        lack=lack,
        hint="set PYSPARK_PYTHON before the session starts, or spark-submit --conf spark.pyspark.python=, to "
        f"the path of a Python {version} with penstock {__version__}, the same on all machines",
    )
