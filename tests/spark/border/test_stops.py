"""Stops of queries whose functions of ``foreachBatch`` are in a call of the JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.spark_ext.api.register import register
from penstock.spark_ext.border.connection import has_running_tasks, is_connect
from tests.spark.queries import PATIENCE_S, Input, quotes, wait

pytestmark = pytest.mark.spark

_SLEEP = "java_method('java.lang.Thread', 'sleep', cast(60000 as bigint))"


class _Uncaught:
    """Keeps the errors that end threads of the JVM."""

    class Java:
        implements: ClassVar = ["java.lang.Thread$UncaughtExceptionHandler"]

    def __init__(self) -> None:
        self.errors: list[str] = []

    def uncaughtException(self, thread: Any, error: Any) -> None:  # noqa: N802 - the name in Java
        self.errors.append(str(error.toString()))


def _save(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


def _to_pandas(rows: DataFrame) -> None:
    rows.toPandas()


@pytest.mark.parametrize("act", [_save, _to_pandas])
def test_a_stop_during_a_call_of_the_jvm_leaves_no_error(
    spark: SparkSession, tmp_path: Path, recwarn: pytest.WarningsRecorder, act: Callable[[DataFrame], None]
) -> None:
    if is_connect(spark):
        pytest.skip("behind Spark Connect, the function runs in a process of the server")
    register(spark)
    source, begun = Input(tmp_path / "in"), threading.Event()
    source.add(quotes([("a", 1, 1.0)]))

    def sleep(batch: DataFrame, number: int) -> None:
        begun.set()
        act(batch.sparkSession.range(0, 2, 1, 2).selectExpr(_SLEEP))

    writer = source.frame(spark).writeStream.foreachBatch(sleep)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    uncaught, jvm = _Uncaught(), spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(uncaught)
    try:
        assert begun.wait(PATIENCE_S)
        wait(query, lambda: has_running_tasks(spark, str(query.runId)))
        query.stop()
    finally:
        jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(None)
    assert not uncaught.errors
    assert query.exception() is None
    assert [str(one.message) for one in recwarn if one.category is UserWarning] == []
