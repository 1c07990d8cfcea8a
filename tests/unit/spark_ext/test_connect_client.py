"""The package pyspark-client has no JVM, no Py4J and no SparkContext; everything public is there with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.spark.connect_server import lacks_client

pytestmark = pytest.mark.skipif(lacks_client(), reason='needs pip install "penstock[connect]"')

_PROGRAM = """
import sys

GONE = ("py4j", "pyspark.core", "pyspark.java_gateway")

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in GONE):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import penstock

for name in penstock.__all__:
    getattr(penstock, name)
try:
    with penstock.session():
        pass
except penstock.errors.InvalidUsageError as error:
    print(error)
"""


def test_everything_public_is_there_and_a_session_needs_a_server() -> None:
    # PySpark itself takes this variable for a sign that it is only the client.
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    environment["SPARK_SKIP_CONNECT_COMPAT_TESTS"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the package pyspark-client has no Spark of its own" in done.stdout
    assert "Hint: set SPARK_REMOTE" in done.stdout
