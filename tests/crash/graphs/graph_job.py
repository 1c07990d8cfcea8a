"""Runs a graph in a driver that is killed and restarted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.spark_ext.graph.handle import RunningGraph
from tests.spark.conftest import lean_session

__all__ = ["run"]


def run(start: Callable[[SparkSession, Path], RunningGraph]) -> int:
    """Start or restart a graph by `start`, over the directory that the command line names; return 0.

    Prints ``started`` when the graph runs for the first time. A graph that fails, because a worker was
    killed, is started again. Ends once there is a file ``finished`` and all is read.
    """
    directory = Path(sys.argv[1])
    spark = lean_session(directory / "spark", master="local[2,2]", as_users=True)
    running = start(spark, directory)
    print("started", flush=True)
    try:
        while True:
            finished = (directory / "finished").exists()
            try:
                if finished:
                    running.process_all_available()
                    return 0
                # The file is made by another process, which tells nobody: it is looked for as often.
                running.await_termination(0.05)
            except PenstockError as error:
                print(f"failed: {error}", file=sys.stderr, flush=True)
                running.stop()
                running = start(spark, directory)
    finally:
        running.stop()
