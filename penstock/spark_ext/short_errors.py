"""Show a wrong option of ``market`` or ``pstream`` in one line, in any classic session.

Spark runs Python data sources in other processes, and copies the traceback of their errors into the text of
its own error. So `shorten_errors` wraps PySpark's methods that load and save, once in each process. The error
keeps its class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock.spark_ext.api.failure import is_ours, kind_of, root_cause
from penstock.spark_ext.border.connection import is_connect

__all__ = ["shorten_errors"]

_METHODS: Final = ((DataFrameReader, "load"), (DataStreamReader, "load"), (DataFrameWriter, "save"))
_CONDITION: Final = "[PYTHON_DATA_SOURCE_ERROR]"
_IS_SHORT: Final = "_penstock_is_short"
"""The attribute of a method that is wrapped."""


def shorten_errors(spark: SparkSession) -> None:
    """Leave tracebacks out of Penstock's errors in loads and saves of all classic sessions, from now on.

    Sessions of Spark Connect load lazily, so this function does nothing for them.
    """
    if is_connect(spark):
        return
    for owner, name in _METHODS:
        method = getattr(owner, name)
        if not hasattr(method, _IS_SHORT):
            setattr(owner, name, _shorten(method))


def _shorten(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except AnalysisException as error:
            if not is_ours(error) or not hasattr(error, "_desc"):
                raise
            kind = kind_of(Exception(str(error)))
            error._desc = f"{_CONDITION} {kind.__module__}.{kind.__name__}: {root_cause(error)}"
            raise error.with_traceback(None) from None

    setattr(call, _IS_SHORT, True)
    return call
