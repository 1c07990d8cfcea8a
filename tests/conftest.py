"""Settings for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.class_archive import JVM_OPTIONS, jvm_options

# Also for the processes that tests start. The launcher's JVM only finds out the command of Spark's.
os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())
os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)

# The first call of a kernel may compile it, which no deadline should count.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.register_profile("quick", settings.get_profile("default"), max_examples=15)
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let syncs be forgotten: for tests of many files that do not ask what is durable."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
