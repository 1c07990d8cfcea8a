"""The archive of Spark's classes, from which Spark's JVM starts faster.

Until its first micro-batches, a JVM spends two fifths of its work on loading Spark's classes from jars. At
exit it can dump the loaded classes to a file (class data sharing, JEP 350), which the next JVM maps. A JVM
checks that the file fits its version and its class path. If the file does not fit, the JVM warns and loads
classes as usual.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from penstock._durable import replace
from penstock.errors import InvalidUsageError, UnavailableError
from penstock.jobs.spark_home import cache_directory, file_facts, home_without_zip

__all__ = [
    "JAVA_HINT",
    "JAVA_OPTIONS",
    "archive_options",
    "class_archive",
    "find_java",
    "make_class_archive",
    "option",
    "require_java",
]

JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
"""The Spark setting for default options of the driver's JVM, which come before the user's options."""

JAVA_HINT: Final = (
    "install Java 17 or newer, such as with sudo apt-get install openjdk-17-jre-headless, "
    "or let JAVA_HOME name it"
)
_ELSEWHERE: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "JDK_JAVA_OPTIONS")
_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"


def find_java() -> str | None:
    """Return the Java that Spark runs: from ``JAVA_HOME``, else from the path; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None)


def require_java() -> None:
    """Check that there is a Java for Spark.

    Raises
    ------
    InvalidUsageError
        If ``JAVA_HOME`` names no Java, or there is no Java on the path.
    """
    if find_java() is None:
        if home := os.environ.get("JAVA_HOME"):
            raise InvalidUsageError(
                "JAVA_HOME names no Java", JAVA_HOME=home, hint=f"unset it, or {JAVA_HINT}"
            )
        raise InvalidUsageError("there is no Java", hint=JAVA_HINT)


def class_archive(directory: Path | None = None) -> Path | None:
    """Return the path of the archive for this Python's Spark and Java, whether the file exists or not.

    Parameters
    ----------
    directory : Path, optional
        The folder; by default ``penstock`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    Returns
    -------
    Path or None
        None if the folder, Java or PySpark is missing.
    """
    directory = directory or cache_directory()
    java = find_java()
    spark = importlib.util.find_spec("pyspark")
    if directory is None or java is None or spark is None or spark.origin is None:
        return None
    # The JVM accepts only an archive that was made with the same class path, so each Spark home has its own
    # archive.
    kind = "classes" if home_without_zip() is None else "linked-classes"
    return directory / f"{kind}-{file_facts(java, spark.origin)}.jsa"


def option(archive: Path) -> str:
    """Return options that make the JVM use an archive, or warn on standard error if it cannot."""
    return f"-XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=warning:stderr"


def archive_options() -> dict[str, str]:
    """Return the Spark setting that makes the JVM use the class archive; empty if there is no archive."""
    archive = class_archive()
    return {JAVA_OPTIONS: option(archive)} if archive is not None and archive.exists() else {}


def make_class_archive() -> Path:
    """Run small queries in a separate JVM, and archive the classes that it loads; also compile kernels.

    This takes about half a minute. The new archive replaces an existing archive. The function returns the
    path of the archive.

    Raises
    ------
    InvalidUsageError
        If there is no Java.
    UnavailableError
        If there is no directory for the archive, Spark does not run, or its JVM cannot archive classes.
    """
    require_java()
    archive = class_archive()
    if archive is None:
        raise UnavailableError(
            "there is no cache directory for the class archive", hint="set XDG_CACHE_HOME or HOME"
        )
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent.resolve()) as directory:
        target = Path(directory) / archive.name
        environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
        environment[_OPTIONS] = f"-XX:ArchiveClassesAtExit={target} {_SHORT_LIVED}"
        # The JVM ends after its driver, and holds the driver's standard error open until then.
        result = subprocess.run(
            [sys.executable, "-m", "penstock.jobs.warm_up"],
            cwd=directory, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if result.returncode or not target.exists():
            raise UnavailableError(
                "Spark's classes could not be archived", code=result.returncode, said=result.stderr[-2000:]
            )
        target.chmod(0o600)
        replace(archive, target)
    return archive
