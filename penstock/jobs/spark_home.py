"""A Spark home without ``pyspark.zip``, so that Spark's Python processes load compiled modules.

Spark puts ``SPARK_HOME/python/lib/pyspark.zip`` first on the path of every Python process that it starts. A
zip file holds no byte code, so each process compiles what it imports: half a second of CPU time for each
process that plans, reads or commits for Python sources and sinks. On one machine all these processes can
import the installed PySpark instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import site
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["cache_directory", "file_facts", "home_without_zip", "make_home", "use_spark_home"]

_HOME: Final = "SPARK_HOME"
_PARTS: Final = ("bin", "jars", "conf")


def cache_directory() -> Path | None:
    """Return Penstock's folder in ``XDG_CACHE_HOME`` or ``~/.cache``; None if neither is known."""
    home = os.environ.get("HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or (home and f"{home}/.cache")
    return Path(cache) / "penstock" if cache else None


def file_facts(*paths: str | Path) -> str:
    """Return a digest of the paths and modification times of files; it changes with each new version."""
    facts = [(os.path.realpath(path), Path(path).stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def home_without_zip() -> Path | None:
    """Return the path for a Spark home without the zip file, whether this home exists or not.

    Returns
    -------
    Path or None
        None if there is no zip file or no cache directory, or if a new Python process would not find PySpark
        without the zip file.
    """
    spec, cache = importlib.util.find_spec("pyspark"), cache_directory()
    if spec is None or spec.origin is None or cache is None:
        return None
    package = Path(spec.origin).parent
    if not (package / "python" / "lib" / "pyspark.zip").exists() or not _is_found(package.parent):
        return None
    return cache / f"spark-{file_facts(spec.origin)}"


def make_home() -> Path | None:
    """Create the home from links to the installed Spark; return it, or None if it cannot be created."""
    home, spec = home_without_zip(), importlib.util.find_spec("pyspark")
    if home is None or spec is None or spec.origin is None:
        return None
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in _PARTS:
            installed = Path(spec.origin).with_name(part)
            if installed.exists():
                with suppress(FileExistsError):
                    (home / part).symlink_to(installed)
    except OSError:
        return None
    return home


def _is_found(directory: Path) -> bool:
    """Return whether a new process of this Python has a directory on its path."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    return os.path.realpath(directory) in {os.path.realpath(path) for path in paths}


@contextmanager
def use_spark_home(home: Path | None) -> Iterator[None]:
    """Let PySpark start its JVM with this Spark home; None leaves the choice to PySpark."""
    if home is None:
        yield
        return
    os.environ[_HOME] = str(home)
    try:
        yield
    finally:
        del os.environ[_HOME]
