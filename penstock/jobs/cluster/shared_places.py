"""Checks that the workers of a cluster see the directories of a pipeline, before its queries start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from pyspark.sql import SparkSession

from penstock.conf.document import Document, FieldPath, PipelineError, describe
from penstock.conf.pipeline import Pipeline
from penstock.jobs.pipelines.places import nearest_directory, read_places, written_places
from penstock.spark_ext.border.connection import default_parallelism, is_local, uses_local_files

__all__ = ["check_shared_places", "hosts_without"]

_HINT: Final = (
    "use a directory that all machines mount at the same path, or a location in an object store or HDFS"
)


def check_shared_places(spark: SparkSession, pipeline: Pipeline, document: Document | None = None) -> None:
    """Check that the workers of a cluster see the local files and directories of a pipeline.

    This function runs on the driver. It does nothing in local mode, or if a path that names no file system is
    not a local path for Spark. The driver puts an empty file into each output directory, and a job with one
    task per core looks for these files. So the check also finds a directory that exists on a worker's machine
    under the same path but is not shared. Workers that start later are not checked.

    Raises
    ------
    PipelineError
        If workers do not see a file or directory, with a line for each.
    """
    if is_local(spark) or not uses_local_files(spark):
        return
    with ExitStack() as markers:
        looked_for: dict[str, tuple[FieldPath, str]] = {}
        for path, location, directory in written_places(pipeline):
            if location is not None and directory and "://" not in location:
                nearest = nearest_directory(Path(location))
                try:
                    marker = markers.enter_context(NamedTemporaryFile(dir=nearest, prefix=".penstock-"))
                except OSError as error:
                    fact = f"{location} cannot be written: {nearest}: {error.strerror}"
                    raise PipelineError([_problem(document, path, fact)]) from None
                looked_for[marker.name] = path, location
        for path, location in read_places(pipeline):
            looked_for[str(Path(location).absolute())] = path, location
        hosts = hosts_without(spark, list(looked_for))
    problems = [
        _problem(
            document, path, f"workers on {', '.join(hosts[name])} do not see the driver's {location}", _HINT
        )
        for name, (path, location) in looked_for.items()
        if name in hosts
    ]
    if problems:
        raise PipelineError(problems)


def _problem(document: Document | None, path: FieldPath, fact: str, hint: str | None = None) -> str:
    return describe("pipeline" if document is None else document.place(path), path, fact, hint)


def hosts_without(spark: SparkSession, files: list[str]) -> dict[str, list[str]]:
    """Return, for each file that some workers do not see, the hosts of these workers."""
    if not files:
        return {}

    # Spark pickles a nested function by value, so workers import nothing for it.
    def look(_: Iterable[int]) -> Iterator[tuple[str, str]]:
        import os
        import socket

        host = socket.gethostname()
        return ((file, host) for file in files if not os.path.exists(file))  # noqa: PTH110

    tasks = default_parallelism(spark)
    answers = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(look).collect()
    hosts: dict[str, list[str]] = {}
    for file, host in sorted(set(answers)):
        hosts.setdefault(file, []).append(host)
    return hosts
