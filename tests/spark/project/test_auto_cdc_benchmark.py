"""The comparison with Auto CDC still runs: tiny inputs, times of no interest."""

from __future__ import annotations

import pyspark
import pytest

from benchmarks.queues.auto_cdc import CONTENDERS, report
from tests.spark.connect_server import lacks_client

pytestmark = [
    pytest.mark.bench,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(lacks_client(), reason='needs pip install "penstock[connect]"'),
    pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Auto CDC came with Spark 4.3"),
]


def test_all_have_the_right_table() -> None:
    assert [line[:18].strip() for line in list(report(2, 2_000, 100))[-3:]] == list(CONTENDERS)
