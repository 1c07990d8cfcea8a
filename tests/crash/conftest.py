"""The Spark session of the crash tests that kill Python workers only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.crash.harness import ROOT
from tests.spark.conftest import Sessions


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    """Give a session in which the first failure of a task fails the query."""
    with sessions.session(spark__python__daemon__module="tests.crash.known_bad") as session:
        session.sparkContext.environment["PYTHONPATH"] = str(ROOT)
        yield session
