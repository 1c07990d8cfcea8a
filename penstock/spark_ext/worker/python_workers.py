"""Make Spark's workers run a Python that has Penstock, or raise an error that says how."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from typing import Final
from weakref import WeakSet

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.failure import root_cause

__all__ = ["prepare_workers"]

_LOGGER = logging.getLogger(__name__)

_NEEDED: Final = ("penstock", "numpy", "pandas", "pyarrow", "numba", "xxhash", "zstandard")

_prepared: WeakSet[SparkContext] = WeakSet()


def prepare_workers(spark: SparkSession) -> None:
    """Ensure that a session's Python workers can run Penstock; called on the driver, before any function.

    Without ``PYSPARK_PYTHON``, workers run the ``python3`` in PATH, whatever Python the driver runs. On one
    machine they get the driver's Python, unless ``PYSPARK_PYTHON`` names one with Penstock's dependencies. On
    a cluster, where paths may differ, a small job checks one worker, once.

    Raises
    ------
    InvalidUsageError
        If workers on a cluster cannot run Penstock.
    """
    context = spark.sparkContext
    if context in _prepared:
        return
    if context.pythonExec != sys.executable:
        if str(context.master).startswith("local"):
            _use_drivers_python(context)
        elif (lack := _lack_of_workers(context)) is not None:
            raise _refusal(context, lack)
    _prepared.add(context)


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


def _lack_of_workers(context: SparkContext) -> str | None:
    """Return what workers lack, by a job of one task; None if they lack nothing."""
    # Functions of Penstock cannot be sent to workers without it; the standard library's can.
    specs = context.parallelize(_NEEDED, 1).map(importlib.util.find_spec)
    try:
        found = specs.map(bool).collect()
    except (Py4JError, PySparkException) as error:
        return root_cause(error)
    missing = [name for name, there in zip(_NEEDED, found, strict=True) if not there]
    return f"no module {', '.join(missing)}" if missing else None


def _refusal(context: SparkContext, lack: str) -> InvalidUsageError:
    version = "{}.{}".format(*sys.version_info)
    return InvalidUsageError(
        "the Python of Spark's workers cannot run Penstock",
        workers=context.pythonExec,
        lack=lack,
        hint="set PYSPARK_PYTHON before the session starts, or spark-submit --conf spark.pyspark.python=, to "
        f"the path of a Python {version} with Penstock, the same on all machines",
    )
