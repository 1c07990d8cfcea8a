"""A source without rows that makes Spark plan one micro-batch whenever a query starts.

After a start, Spark plans a micro-batch for expired timeouts only once another micro-batch has run. So if
keys wait when a query stops, they would keep waiting after a restart until there is new input. A union with
this source prevents that: its offset is new at each start, and Spark treats a new offset as new input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from weakref import WeakSet

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock._clock import new_id
from penstock.errors import InvalidUsageError
from penstock.spark_ext.border.spark_versions import ReadLimit, SupportsTriggerAvailableNow

__all__ = ["WakeSource", "add_wake", "hide_lost_driver", "register_wake"]

_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program in which Spark plans the micro-batches of a source in Python."""

_registered: WeakSet[SparkSession] = WeakSet()


def add_wake(df: DataFrame) -> DataFrame:
    """Return `df` with a source that makes its query run one micro-batch at each start, even without input.

    Raises
    ------
    InvalidUsageError
        In a flow of a declarative pipeline, because Spark never ends a run whose keys may wait.
    """
    if _defines_flows():
        raise InvalidUsageError(
            "a flow's run would never end: Spark continues as long as keys may wait",
            hint="leave out budget and freshness, or start a query yourself and follow it with penstock.run",
        )
    spark = df.sparkSession
    register_wake(spark)
    return df.union(spark.readStream.format(WakeSource.name()).schema(df.schema).load())


def _defines_flows() -> bool:
    """Return whether the program runs in ``spark-pipelines``, by whether its module of flows is imported."""
    flows = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if flows is None:
        return False
    try:
        flows.get_active_graph_element_registry()
    except PySparkRuntimeError:
        return False
    return True


def register_wake(spark: SparkSession) -> None:
    """Register the source with a session, once, because a flow of a declarative pipeline cannot do so."""
    if spark not in _registered:
        spark.dataSource.register(WakeSource)
        _registered.add(spark)


class WakeSource(DataSource):
    """The data source ``penstock_wake``: no rows, with any given schema."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format()``."""
        return "penstock_wake"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader, which is made once at each start of a query."""
        return _WakeReader()


class _WakeReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Has a unique id as its offset."""

    def __init__(self) -> None:
        hide_lost_driver()
        self._offset = {"start": new_id()}

    def initialOffset(self) -> dict[str, str]:
        return {"start": ""}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing, because the offset does not change while the query runs."""

    def latestOffset(self, start: dict[str, str] | None, limit: ReadLimit) -> dict[str, str]:
        return self._offset

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


def hide_lost_driver() -> None:
    """Keep the process that plans a source's micro-batches from printing a traceback when its driver is gone.

    A driver that stops may reset the connection before the process has read the end of its input. Call this
    function when a reader is made; it has no effect in other processes.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", None) == _PLANNER:
        sys.excepthook = _print_unless_lost


def _print_unless_lost(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
