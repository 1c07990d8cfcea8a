"""The Spark session of tests in which a task fails, and is tried again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Sessions


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    """Give a session in which a task is tried up to four times."""
    with sessions.session(master="local[2,4]") as session:
        yield session
