"""Set the trigger intervals of running queries as their freshness contracts choose them.

The controller of each bucket chooses an interval, and the bucket's task adds this interval to an accumulator.
When a task has ended, Spark sends the driver the intervals that this task added. So the driver knows the
intervals of a micro-batch before the micro-batch ends. The least interval of all buckets becomes the trigger
interval of the query. A query whose trigger the user has set is left alone.

All queries of a Spark context share one accumulator, because PySpark never forgets an accumulator.

With Spark Connect there are no accumulators, and the process has no access to the query's trigger.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from penstock.spark_ext.border.connection import is_connect, set_trigger_interval

if TYPE_CHECKING:
    from pyspark import SparkContext  # the package pyspark-client lacks it

__all__ = ["Interval", "Intervals", "Pace", "follow", "pace_of"]

_LOGGER = logging.getLogger(__name__)


class Interval(NamedTuple):
    """The least trigger interval that buckets chose in a micro-batch."""

    batch: int
    interval_ms: int


Intervals: TypeAlias = dict[str, Interval]
"""The interval of the newest micro-batch of each query, by the query's id."""


class Pace(AccumulatorParam[Intervals]):
    """Merges the intervals of micro-batches and, on the driver, sets them.

    Parameters
    ----------
    on_driver : bool
        Whether this object is in the driver. The driver's object keeps and sets the intervals of the queries
        that it follows. The copies in workers only merge intervals.
    """

    def __init__(self, *, on_driver: bool = False) -> None:
        self._on_driver = on_driver
        self._queries: dict[str, Any] = {}
        self._set_ms: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        """The newest micro-batch in which the interval of a query could not be set."""

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        return Pace, ()

    def follow(self, query: Any) -> None:
        """Set the interval of a started query from now on."""
        self._drop(str(query.id))
        self._queries[str(query.id)] = query

    def drop_ended(self) -> None:
        """Forget queries that have ended."""
        for name, query in list(self._queries.items()):
            if not _is_active(query):
                self._drop(name)

    def _drop(self, name: str) -> None:
        for known in (self._queries, self._set_ms, self._failed):
            known.pop(name, None)

    def zero(self, value: Intervals) -> Intervals:
        """Return the empty value, with which each task begins."""
        return {}

    def addInPlace(self, value1: Intervals, value2: Intervals) -> Intervals:
        """Set the newest intervals, and return them. Spark calls this in a separate thread."""
        newest = {name: one for name, one in value1.items() if self._keeps(name)}
        for name, one in value2.items():
            if not self._keeps(name):
                continue
            known = newest.get(name)
            if known is not None and one.batch < known.batch:
                continue
            newest[name] = min(known, one) if known is not None and known.batch == one.batch else one
            self._set(name, *newest[name])
        return newest

    def _keeps(self, name: str) -> bool:
        return name in self._queries or not self._on_driver

    def _set(self, name: str, batch: int, interval_ms: int) -> None:
        """Set the interval of a query, unless it has this interval, or a try in this micro-batch failed."""
        query = self._queries.get(name)
        if query is None or self._set_ms.get(name) == interval_ms or self._failed.get(name) == batch:
            return
        try:
            if set_trigger_interval(query, interval_ms):
                self._set_ms[name] = interval_ms
        except Exception as error:  # any error would end Spark's thread of all accumulators
            if name not in self._failed:
                _LOGGER.warning(
                    "the trigger interval cannot be set; each micro-batch tries again [query=%s reason=%s]",
                    name, error,
                )  # fmt: skip
            self._failed[name] = batch


def _is_active(query: Any) -> bool:
    try:
        return bool(query.isActive)
    except Exception:  # its JVM has ended, which Py4J reports by errors of several types
        return False


_paces: WeakKeyDictionary[SparkContext, Accumulator[Intervals]] = WeakKeyDictionary()


def pace_of(spark: SparkSession) -> Accumulator[Intervals] | None:
    """Return the accumulator of all operators with a contract; None with Spark Connect."""
    if is_connect(spark):
        return None
    context = spark.sparkContext
    if context not in _paces:
        _paces[context] = context.accumulator({}, Pace(on_driver=True))
    return _paces[context]


def follow(query: Any, spark: SparkSession) -> None:
    """Let the freshness contracts of a started query set its trigger interval from now on."""
    accumulator = pace_of(spark)
    if accumulator is not None and isinstance(pace := accumulator.accum_param, Pace):
        pace.drop_ended()
        pace.follow(query)
