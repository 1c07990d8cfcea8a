"""A daemon that imports the dependencies of Python workers before it forks them.

Spark starts one daemon for all Python workers that an application has on a machine. The daemon forks the
workers. Spark's own daemon imports nothing before it forks, so every worker imports PySpark, pandas, Arrow,
Numba and Penstock itself. These imports cost each worker more than a second of CPU time before the first
micro-batch. This daemon's workers share the loaded modules in memory. One setting at the start of a session
enables it::

    spark.python.daemon.module=penstock.spark_ext.daemon

Spark runs it with ``python -m`` on each machine, when the first task needs a worker. So Penstock must be
installed on each machine, or be on ``PYTHONPATH``. ``spark-submit --py-files`` is not enough, because its
files arrive later, in running workers.

This module must not start a thread, because a forked process lacks the thread but inherits its locks. It must
not pass a fail point, because fail points are for workers.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import os
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.spark_ext.memory import give_back, keep_freed

__all__ = ["DAEMON", "DAEMON_SETTING", "main", "warm_up"]

DAEMON_SETTING: Final = "spark.python.daemon.module"
"""The Spark setting that names a daemon."""

DAEMON: Final = "penstock.spark_ext.daemon"
"""The daemon of warm workers."""

_MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.streaming.state",
    "pyspark.testing.utils",  # `GroupState.update` loads it
    "pandas",
    "penstock.spark_ext.sources.market",
    "penstock.spark_ext.api.update_queue",
)


def prefer_installed_pyspark() -> None:
    """Import PySpark from its installation instead of Spark's zip file, if both have the same version.

    Spark puts the zip file first on the path, and Python recompiles modules from a zip file in each process.
    Spark also adds a jar to the path. This function removes the jar, which contains no Python and is slow to
    search.
    """
    sys.path[:] = [path for path in sys.path if not path.endswith(".jar")]
    for archive in [path for path in sys.path if Path(path).name == "pyspark.zip" and Path(path).exists()]:
        others = [path for path in sys.path if path != archive]
        installed = importlib.machinery.PathFinder.find_spec("pyspark", others)
        if installed is None or installed.origin is None:
            continue
        with zipfile.ZipFile(archive) as file:
            version = file.read("pyspark/version.py")
        if Path(installed.origin).with_name("version.py").read_bytes() == version:
            sys.path[:] = others
    sys.path_importer_cache.clear()


def warm_up() -> None:
    """Import the workers' dependencies, and exempt them from the garbage collection after each task."""
    prefer_installed_pyspark()
    for name in _MODULES:
        importlib.import_module(name)
    _use_queues()
    gc.collect()
    gc.freeze()


def _use_queues() -> None:
    """Run a few tuples through queues in memory, which loads Numba and the kernels."""
    import pyarrow as pa

    from penstock.checkpointing import decode, encode
    from penstock.operators.queues.update_queue import UpdateQueue
    from penstock.operators.scheduling.policy import Policy
    from penstock.operators.update_stream.arrivals import Arrivals
    from penstock.operators.update_stream.stream import UpdateStream
    from penstock.spark_ext.border.packing import Packer
    from penstock.spark_ext.border.parcels import from_parcel

    for kind, keys in ((pa.int64(), [1, 1, 2]), (pa.string(), ["a", "a", "b"])):
        schema = pa.schema({"key": kind, "time": pa.int64(), "value": pa.float64()})
        stream = UpdateStream(schema, ("key",), "time")
        rows = pa.record_batch([keys, [1, 2, 3], [1.0, 2.0, 3.0]], schema=schema)
        queue = UpdateQueue(stream, Policy.IN_PLACE)
        for parcel in Packer(stream, 1, "error", combine=True)([rows]):
            arrivals = Arrivals.from_batch(from_parcel(parcel.column("payload")[0].as_py()), schema)
            queue.enqueue(arrivals, now_us=1)
        queue.deliver(queue.dequeue(1, now_us=2), now_us=3)
        queue.account_staleness(now_us=4)
        units = [decode(encode(unit), "memory") for unit in queue.snapshot()]
        UpdateQueue(stream, Policy.IN_PLACE).restore(units)


def main() -> None:
    """Run Spark's daemon. If an import fails, report it and start workers cold."""
    # Arrow's jemalloc would start a thread to purge memory that Arrow does not allocate from it.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    keep_freed()
    try:
        # Spark reads standard output, which has to begin with a port.
        with contextlib.redirect_stdout(sys.stderr):
            warm_up()
    except Exception:
        traceback.print_exc()
        print("penstock: Python workers start cold because of the error above", file=sys.stderr)
    from pyspark import daemon

    daemon.worker = _task(daemon.worker)
    daemon.manager()


def _task(work: Callable[..., int]) -> Callable[..., int]:
    """Wrap Spark's function for a task, so that it ends quietly if Spark has closed the connection.

    Spark closes the connection if a query stops during a task; then nobody would receive an error report.
    After each task, once Spark has the task's rows, the process returns its free memory to the system, except
    `KEPT_BYTES`.
    """

    def worker(*connection: Any) -> int:
        try:
            code = work(*connection)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 1
        give_back()
        return code

    return worker


if __name__ == "__main__":
    main()
