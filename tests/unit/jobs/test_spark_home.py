"""The Spark home without a zip file, on which Spark's Python processes load compiled modules."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sysconfig
from pathlib import Path

import pytest

from penstock.jobs.class_archive import class_archive
from penstock.jobs.spark_home import home_without_zip, make_home, use_spark_home


@pytest.fixture(name="package")
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PySpark in a directory that each process of this Python searches."""
    package = tmp_path / "site" / "pyspark"
    for part in ("bin/spark-submit", "jars/one.jar", "python/lib/pyspark.zip", "__init__.py"):
        (package / part).parent.mkdir(parents=True, exist_ok=True)
        (package / part).write_text(part)
    spec = importlib.machinery.ModuleSpec("pyspark", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(package.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return package


def test_the_home_has_all_but_the_zip(package: Path) -> None:
    home = make_home()
    assert home is not None
    assert home == make_home() == home_without_zip()
    assert sorted(one.name for one in home.iterdir()) == ["bin", "jars"]
    assert (home / "jars" / "one.jar").read_text() == "jars/one.jar"
    assert not (home / "python").exists()
    with use_spark_home(home):
        assert os.environ["SPARK_HOME"] == str(home)
    assert "SPARK_HOME" not in os.environ


def test_classes_are_archived_for_the_home_before_it_is_made(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "bin").mkdir()
    (tmp_path / "java" / "bin" / "java").touch(mode=0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    linked = class_archive()
    assert linked is not None
    assert linked.name.startswith("linked-classes-")
    (package / "python" / "lib" / "pyspark.zip").unlink()
    own = class_archive()
    assert own is not None
    assert own.name.startswith("classes-"), "the archive of another class path would be refused by the JVM"


def test_another_version_has_another_home(package: Path) -> None:
    first = make_home()
    os.utime(package / "__init__.py", (1, 1))
    assert make_home() != first


def test_without_a_zip_pyspark_finds_its_own_home(package: Path) -> None:
    (package / "python" / "lib" / "pyspark.zip").unlink()
    assert make_home() is None
    with use_spark_home(None):
        assert "SPARK_HOME" not in os.environ


def test_a_pyspark_that_other_processes_would_not_find_keeps_its_zip(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/elsewhere")
    assert make_home() is None


def test_a_cache_that_cannot_be_written_is_no_hindrance(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert make_home() is None
