"""Set the trigger intervals of running queries as their freshness contracts choose them.

Each bucket's task adds the interval that its controller chose to an accumulator. Spark passes the sum of a
task to the driver's process when the task has ended, so the interval of a micro-batch is known before the
micro-batch ends. There the least interval of all buckets becomes the trigger interval of the query. A query
whose trigger the user has set is left alone.

With Spark Connect there are no accumulators, and the process has no access to the query's trigger.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from penstock.spark_ext.border.connection import Py4JError, is_connect, set_trigger_interval

__all__ = ["Interval", "Pace", "follow", "new_pace"]

_LOGGER = logging.getLogger(__name__)

_paces: dict[str, Pace] = {}
"""The paces that this driver has planned, by the name of their operator in Spark's plans."""


class Interval(NamedTuple):
    """The least trigger interval that buckets chose in a micro-batch of a query."""

    query: str
    batch: int
    interval_ms: int


class Pace(AccumulatorParam[Interval | None]):
    """Merges the intervals of a micro-batch and, on the driver, sets them.

    Made on the driver. Workers have copies, which follow no query.
    """

    def __init__(self) -> None:
        self._queries: dict[str, Any] = {}

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        return Pace, ()

    def follow(self, query: Any) -> None:
        """From now on, set the interval of a query that has started."""
        self._queries[str(query.id)] = query

    def zero(self, value: Interval | None) -> None:
        """Return the sum of a task that served no bucket."""

    def addInPlace(self, value1: Interval | None, value2: Interval | None) -> Interval | None:
        """Return the newest interval, after setting it. Spark calls this in a thread of its own."""
        if value2 is None:
            return value1
        newest = value2
        if value1 is not None and value1[:2] == value2[:2]:
            newest = min(value1, value2)
        query = self._queries.get(newest.query)
        if query is not None and newest != value1:
            try:
                set_trigger_interval(query, newest.interval_ms)
            except (Py4JError, OSError) as error:  # an error would end Spark's thread
                del self._queries[newest.query]
                _LOGGER.warning("the trigger interval stays [query=%s reason=%s]", newest.query, error)
        return newest


def new_pace(spark: SparkSession, operator: str) -> Accumulator[Interval | None] | None:
    """Return the accumulator of an operator with a contract, by its name in Spark's plans.

    None with Spark Connect.
    """
    if is_connect(spark):
        return None
    _paces[operator] = Pace()
    return spark.sparkContext.accumulator(None, _paces[operator])


def follow(query: Any, operators: Iterable[str]) -> None:
    """From now on, let the contracts of a query that has started set its trigger interval."""
    for operator in operators:
        if operator in _paces:
            _paces[operator].follow(query)
