"""A driver on a cluster, which is not killed: runs the query of `workload`, whose tasks are slow at times.

Usage: ``python cluster_job.py DIRECTORY``, with the master's URL in ``PENSTOCK_MASTER``. Prints ``started``
when the query runs. Ends with 0 when there is a file ``finished``, all is read, and nothing waits.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from tests.crash.cluster.slow_daemon import DOUBLE_COMMITS
from tests.crash.harness import ROOT
from tests.crash.workload import query
from tests.spark.conftest import lean_session
from tests.spark.queries import Place, wait_until_drained

FAILED = 3

SETTINGS = {
    # A second attempt is started as soon as a task takes longer than others.
    "spark__speculation": "true",
    "spark__speculation__interval": "20ms",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__quantile": "0.25",
    "spark__speculation__minTaskRuntime": "10ms",
    "spark__speculation__efficiency__enabled": "false",
    # On the other host it need not wait for the executor that has Spark's state in memory.
    "spark__locality__wait": "0",
    "spark__python__daemon__module": "tests.crash.cluster.slow_daemon",
    # However often executors are lost, the query goes on.
    "spark__task__maxFailures": "100",
    "spark__stage__maxConsecutiveAttempts": "100",
    "spark__executor__cores": "2",
    "spark__executor__memory": "512m",
    "spark__executor__extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark__driver__host": "127.0.0.1",
    "spark__sql__shuffle__partitions": "4",
    "spark__executorEnv__PYTHONPATH": str(ROOT),
    # Compiling plans takes longer than a few rows do.
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
}


def main() -> int:
    """Run the job and return its exit code."""
    place = Place(Path(sys.argv[1]))
    doubles = {f"spark__executorEnv__{DOUBLE_COMMITS}": os.environ[DOUBLE_COMMITS]}
    spark = lean_session(
        place.directory / "spark", master=os.environ["PENSTOCK_MASTER"], as_users=True, **SETTINGS, **doubles
    )
    running = place.start(query(spark, place))
    print("started", flush=True)
    try:
        # The file is made by another process, which tells nobody: it is looked for as often.
        while not (place.directory / "finished").exists():
            running.awaitTermination(0.05)  # type: ignore[arg-type]  # seconds, of whatever kind
        wait_until_drained(running, place)
    except StreamingQueryException as error:
        print(f"failed: {error}", flush=True)
        return FAILED
    finally:
        running.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
