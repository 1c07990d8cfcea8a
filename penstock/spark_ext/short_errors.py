"""Shorten errors: wrong options of ``market`` or ``pstream``, and a stop in a function.

Spark runs Python data sources in other processes, and copies the traceback of their errors into the text of
its own error. So `shorten_errors` wraps PySpark's methods that load and save, and the function that makes
its errors, once in each process. The errors of actions and streaming queries come from this function.
Behind Spark Connect any request may be the first that needs the columns, so there `shorten_errors` wraps the
method that makes errors. The error keeps its class.

If a query of a classic session is stopped while its function of ``foreachBatch`` calls the JVM, Spark
searches the text of the function's error with a regular expression that uses stack space for each character.
A text with a stack trace of Java overflows the stack of the query's thread. So the function's error is
replaced by an error with a short text that Spark recognizes as a stop. ``toPandas`` also prints such an error
as a warning, which is ignored.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, Final

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from penstock.errors import InvalidUsageError
from penstock.spark_ext.api.failure import is_ours, kind_of, root_cause
from penstock.spark_ext.border.connection import Py4JError, Py4JJavaError, is_connect

__all__ = ["shorten_errors"]

_METHODS: Final = ((DataFrameReader, "load"), (DataStreamReader, "load"), (DataFrameWriter, "save"))
_CONDITION: Final = "[PYTHON_DATA_SOURCE_ERROR]"
_ENDED: Final = "terminated with exception: "
_USERS_CODE: Final = " Caused by "
"""The text before the error of a user's function, whose traceback the user needs."""
_IS_SHORT: Final = "_penstock_is_short"
"""The attribute of a method that is wrapped."""

_STOPS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
    "[SPARK_JOB_CANCELLED]",
)
"""The causes of a call's error after the call's query was stopped."""
_WARNS_OF_STOP: Final = f"toPandas attempted Arrow(?s:.*)({'|'.join(map(re.escape, _STOPS))})"
"""Matches the warning of ``toPandas`` about a stop."""
_MAX_CHARACTERS: Final = 300
"""The length of a text for which a thread's stack always suffices."""


def shorten_errors(spark: SparkSession) -> None:
    """Shorten the errors of all sessions of this kind (classic or Connect) from now on."""
    if is_connect(spark):
        _wrap(type(spark.client), "_handle_error", _shorten)
        return
    from pyspark.errors.exceptions import captured  # needs Py4J

    for owner, name in _METHODS:
        _wrap(owner, name, _shorten)
    _wrap(captured, "convert_exception", _shorten_made)
    _wrap(DataStreamWriter, "foreachBatch", _shorten_stops)
    warnings.filterwarnings("ignore", _WARNS_OF_STOP, UserWarning)


def _wrap(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method or function, once in each process."""
    method = getattr(owner, name)
    if not hasattr(method, _IS_SHORT):
        wrapped = wrap(method)
        setattr(wrapped, _IS_SHORT, True)
        setattr(owner, name, wrapped)


def _shorten(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except AnalysisException as error:
            # The attributes of the text in a classic session and behind Spark Connect.
            text = next((name for name in ("_desc", "_message") if hasattr(error, name)), None)
            if not is_ours(error) or text is None:
                raise
            setattr(error, text, _short_text(error))
            vars(error)["_display_stacktrace"] = False  # Spark Connect appends the server's stack
            raise error.with_traceback(None) from None

    return call


def _short_text(error: Exception) -> str:
    """Return the text of an error without a traceback; for a query, with the query's ids."""
    text = str(error)
    kind = kind_of(Exception(text))
    start, ended, _ = text.partition(_ENDED)
    start = start + ended if ended and "\n" not in start else f"{_CONDITION} "
    return f"{start}{kind.__module__}.{kind.__name__}: {root_cause(error)}"


def _shorten_made(make: Callable[[Any], Exception]) -> Callable[[Any], Exception]:
    """Wrap the function that makes PySpark's errors. Errors that users cannot mend keep their tracebacks."""

    @functools.wraps(make)
    def call(error: Any) -> Exception:
        made = make(error)
        if isinstance(made, AnalysisException | StreamingQueryException) and is_ours(made):
            text = _short_text(made)
            if kind_of(Exception(str(made))) is InvalidUsageError and _USERS_CODE not in text:
                vars(made)["_desc"] = text
        return made

    return call


def _shorten_stops(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``foreachBatch``, so that a function that is stopped in a call of the JVM raises a short error."""

    @functools.wraps(method)
    def set_function(writer: Any, func: Callable[[Any, int], None]) -> Any:
        def call(batch: Any, number: int) -> None:
            try:
                func(batch, number)
            except Py4JJavaError as error:
                text = str(error)
                if not any(stop in text for stop in _STOPS):
                    raise
                cause = text.partition("\n\tat ")[0][:_MAX_CHARACTERS]
                # Spark looks for the names of both errors.
                raise Py4JError(f"py4j.protocol.Py4JJavaError: {cause} ({_STOPS[0]})") from None

        return method(writer, call)

    return set_function
