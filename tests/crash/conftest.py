"""The Spark session of the crash tests that kill Python workers only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.crash.harness import ROOT
from tests.spark.conftest import lean_session


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a session in which the first failure of a task fails the query."""
    directory = tmp_path_factory.mktemp("spark")
    session = lean_session(directory, spark__python__daemon__module="tests.crash.known_bad")
    session.sparkContext.environment["PYTHONPATH"] = str(ROOT)
    yield session
    session.stop()
