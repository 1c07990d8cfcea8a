"""Spark's classes as a JVM keeps them when it has loaded them, for the JVMs that tests start.

A JVM that maps the archive starts Spark with half the processor time. `script/test` makes it once for an
environment: ``python -m tests.class_archive``. Where there is none, or another Java, tests only take longer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests live too short for the JVM's second compiler to pay."""


def archive() -> Path:
    """Return where the archive of this environment and its Java is."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.realpath(Path(home, "bin", "java") if home else shutil.which("java") or "java")
    key = hashlib.sha256(f"{java} {version('pyspark')}".encode()).hexdigest()[:12]
    return Path(sys.prefix) / f"penstock-classes-{key}.jsa"


def jvm_options() -> str:
    """Return the options of the tests' JVMs."""
    found = archive()
    return f"{JVM_OPTIONS} -XX:SharedArchiveFile={found}" if found.exists() else JVM_OPTIONS


def main() -> None:
    """Make the archive, unless it is there: run what tests run, and let the JVM keep what it loaded."""
    made = archive()
    if made.exists():
        return
    with tempfile.TemporaryDirectory(dir=sys.prefix) as directory:
        being_made = Path(directory) / made.name
        os.environ["SPARK_SUBMIT_OPTS"] = (
            f"{JVM_OPTIONS} -XX:ArchiveClassesAtExit={being_made} -Xlog:disable -Xlog:all=error:stderr"
        )
        from pyspark import SparkContext

        from tests.spark.conftest import lean_session
        from tests.spark.queries import Place, quotes

        place = Place(Path(directory) / "place")
        spark = lean_session(place.directory / "spark")
        for updates in ([("a", 1, 1.0)], [("a", 2, 1.0), ("b", 2, 2.0)]):
            place.input.add(quotes(updates))
        place.run(place.queue(spark, buckets=2))
        gateway = SparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        # The JVM ends, and keeps its classes, when its standard input does.
        gateway.proc.stdin.close()
        gateway.proc.wait()
        being_made.replace(made)


if __name__ == "__main__":
    main()
