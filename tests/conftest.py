"""Settings for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from penstock import errors
from penstock.jobs.class_archive import class_archive, option
from tests import combinations
from tests.long_tests import examples

if TYPE_CHECKING:
    from tests.spark.conftest import Sessions

# Also for the processes that tests start, which live too short for the JVM's second compiler to pay. The
# archive is made by script/test.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ARCHIVE = class_archive(Path(sys.prefix, "cache", "penstock"))
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS", f"{_JVM} {option(_ARCHIVE)}" if _ARCHIVE and _ARCHIVE.exists() else _JVM
)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", _JVM)

# The first call of a kernel may compile it, which no deadline should count. Each run draws other examples,
# and script/fuzz draws many more.
settings.register_profile(
    "default",
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.register_profile("quick", settings.get_profile("default"), max_examples=15)
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS_PROFILE", "default"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip long tests, and forget the values that earlier tests made messages hide."""
    if item.get_closest_marker("long") and not os.environ.get("PENSTOCK_LONG"):
        pytest.skip("takes long; PENSTOCK_LONG=1 runs it")
    errors._hidden.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome, if asked."""
    combinations.record(report)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncs, for tests with many files that do not check durability."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Return the factory of Spark sessions for all test modules."""
    from tests.spark.conftest import Sessions

    made = Sessions(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()
