"""Settings for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Also for the processes that tests start: they live too short for the JVM's second compiler to pay.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

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
