"""Turn Spark's errors into Penstock errors, with the cause in one line and without the JVM's stack."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from itertools import dropwhile, takewhile
from json import JSONDecodeError
from traceback import walk_tb
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException

from penstock import errors
from penstock.errors import InvalidUsageError, PenstockError, UnavailableError, did_you_mean, users_line
from penstock.spark_ext.border.connection import Py4JError, Py4JNetworkError, is_lost_server

__all__ = [
    "failure_of",
    "is_late_worker",
    "is_ours",
    "is_without_answer",
    "kind_of",
    "refusal_of",
    "root_cause",
    "spark_message",
]

_PENSTOCK = re.compile(
    r"penstock\.[\w.]*?\w+Error: (.+?)(?=\n\s*\n|\n\s+at |\nCaused by: |\s*SQLSTATE|\Z)", re.DOTALL
)
_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ', re.MULTILINE)
_PYTHON = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_MAX_CHARACTERS = 400
"""The length to which the text of a user's error is shortened."""
_NO_SOURCE = re.compile(
    r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: (.+?)\.(?: Make sure|$)", re.MULTILINE
)
"""Matches a JVM error about an unknown format, and the name of the format in it."""
_NO_DIRECTORY = re.compile(
    r"java\.io\.IOException: (?:mkdir of|Mkdirs failed to create) (?:file:)?(.+?)(?: failed)?$", re.MULTILINE
)
_FORMATS = (
    "console", "csv", "json", "kafka", "market", "memory", "noop", "orc", "parquet", "pstream", "rate", "text"
)  # fmt: skip
_NO_WORKER = re.compile(r"^Error from python worker:\n(.+?)\nPYTHONPATH was:", re.DOTALL | re.MULTILINE)
_LATE_WORKER = re.compile(
    r"Python worker (?:failed )?to connect back|Python daemon failed to launch worker"
    r"|STREAMING_PYTHON_RUNNER_INITIALIZATION_(?:TIMEOUT|COMMUNICATION)_FAILURE"
)
_LATE_WORKER_HINT = (
    "the machine is too busy or short of memory, as Spark waits only ten seconds; free it, and start again "
    "with the same checkpoint"
)
_QUERY = "pyspark.sql.streaming.query"
"""The module that parses the JSON texts of the JVM about a query."""
_AWAITED = "Exception thrown in awaitResult"
"""The message of an error that only wraps its cause."""
_UNREAD = "[STATE_STORE_COMMIT_VALIDATION_FAILED]"
"""Spark's name for an error about partitions of an operator with state that no task has run."""
_RAISED = "[USER_RAISED_EXCEPTION]"
"""Spark's name for an error that SQL raises, such as for a bad record with ``on_error: fail``."""
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_TERMINATED = re.compile(r"terminated with exception: (.+)", re.DOTALL)
_CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$", re.MULTILINE)
_COPY_HINT = (
    "a file sink of Spark cannot write the results of a copied query to a new directory; use foreachBatch"
)
_NO_STRUCT = "doesn't support the column `window` of the type"
_WINDOW_HINT = "select its parts: df.selectExpr('window.start', 'window.end', ...)"
_CALLED = re.compile(r"An error occurred while calling \S+\n: (?:[\w$]+\.)*([\w$]+(?:: .*)?)")
_PLAN = re.compile(r";\n.*", re.DOTALL)
_STACK = re.compile(r"\n\s*at .*|\n=== .*|\nDriver stacktrace:.*", re.DOTALL)


def spark_message(error: BaseException) -> str:
    """Return the first one or two sentences of a Spark error, without its plan and SQL state."""
    text = _STATE.sub("", str(error))
    text = _STACK.sub("", _PLAN.sub("", text))
    return " ".join(text.split()).removesuffix(".")


def _python_error(text: str) -> str | None:
    """Return the error that ends the last Python traceback in a text, such as ``ValueError: no``."""
    _, separator, rest = text.rpartition(_TRACEBACK)
    if not separator:
        return None
    # The lines of code are indented, and so is what Spark writes after the error.
    lines = dropwhile(_is_indented, rest.splitlines())
    said = list(takewhile(lambda line: line and not _is_indented(line), lines))
    if not said or not _PYTHON.match(said[0]):
        return None
    if not said[0].rstrip().endswith(":"):
        said = said[:1]  # further lines may hold a user's data, unless the first line announces them
    return textwrap.shorten(" ".join(said), _MAX_CHARACTERS, placeholder=" ...")


def _is_indented(line: str) -> bool:
    return line.startswith((" ", "\t"))


def is_without_answer(error: BaseException) -> bool:
    """Return whether an error means that Spark's driver did not answer, usually because it has ended."""
    # If the connection breaks during a call, Py4J reports only that the call failed.
    return (
        isinstance(error, ConnectionError | Py4JNetworkError)
        or type(error) is Py4JError
        or _is_half_answer(error)
        or _has_no_text(error)
        or is_lost_server(error)
    )


def _has_no_text(error: BaseException) -> bool:
    """Return whether the JVM ended before it told the text of its error."""
    try:
        str(error)
    except (Py4JError, ConnectionError):
        return True
    return False


def _is_half_answer(error: BaseException) -> bool:
    """Return whether PySpark got only the first part of a JSON text, because the connection broke."""
    return isinstance(error, JSONDecodeError) and any(
        frame.f_globals.get("__name__") == _QUERY for frame, _ in walk_tb(error.__traceback__)
    )


def is_ours(error: BaseException) -> bool:
    """Return whether a Spark error wraps a Penstock error."""
    return bool(_PENSTOCK.search(str(error)))


def is_late_worker(error: BaseException) -> bool:
    """Return whether an error means that a Python worker of Spark did not start in time."""
    text = str(error)
    return bool(_LATE_WORKER.search(text)) and not is_ours(error) and not _NO_WORKER.search(text)


def root_cause(error: BaseException) -> str:
    """Return the cause of a streaming query's failure, as one message.

    Parameters
    ----------
    error : BaseException
        The error that Spark raised, such as a ``StreamingQueryException``, whose text nests the errors of the
        JVM and of the Python workers.

    Returns
    -------
    str
        The first item of this list that exists: the last Penstock error in the text, with the Python error
        that caused it; the last output of a Python process that did not start; a message that a worker is
        late; the error that ends the last Python traceback; the message of Spark's last cause; Spark's own
        message.
    """
    if is_without_answer(error):
        return "the JVM of Spark's driver does not answer: it has ended, or was killed"
    text = str(error)
    own = list(_PENSTOCK.finditer(text))
    if own:
        message = " ".join(own[-1][1].split())
        rest = text[own[-1].end() :]
        cause = _python_error(rest) if rest.startswith("\nCaused by: ") else None
        return message if cause is None else f"{message} Caused by {cause}"
    unstarted = _NO_WORKER.search(text)
    if unstarted:
        return unstarted[1].splitlines()[-1].strip()
    if is_late_worker(error):
        return "a Python worker did not start in time"
    python = _python_error(text)
    if python is not None:
        return python
    caused = _CAUSED.findall(text)
    if caused:
        return str(caused[-1])
    called = _CALLED.search(text)
    if called:
        return called[1]
    terminated = _TERMINATED.search(text)
    return spark_message(Exception(terminated[1])) if terminated else spark_message(error)


def kind_of(error: BaseException) -> type[PenstockError]:
    """Return the error class for a query's failure.

    If a Penstock error made the query fail, return its class. Otherwise return `InvalidUsageError` if Spark
    refused the query or an expression raised an error, `UnavailableError` if the driver is gone or a Python
    worker did not start in time, and `PenstockError` in all other cases.
    """
    if isinstance(error, PenstockError):
        return type(error)
    if is_without_answer(error) or is_late_worker(error):
        return UnavailableError
    if isinstance(error, AnalysisException | IllegalArgumentException) or _NO_SOURCE.search(str(error)):
        return InvalidUsageError
    if _RAISED in str(error):
        return InvalidUsageError
    names = re.findall(r"penstock\.errors\.(\w+Error): ", str(error))
    kind = getattr(errors, names[-1], PenstockError) if names else PenstockError
    return kind if isinstance(kind, type) and issubclass(kind, PenstockError) else PenstockError


def failure_of(error: BaseException, fact: str, *, hint: str | None = None, **context: str) -> PenstockError:
    """Return the Penstock error for an error from Spark, with its cause in one line.

    Parameters
    ----------
    error : BaseException
        The error that Spark raised.
    fact : str
        The action that failed.
    hint : str, optional
        The remedy. By default the hint for the cause, if there is one.
    **context
        The context, such as ``query=``.
    """
    if is_without_answer(error):
        return UnavailableError(fact, **context, cause=root_cause(error), hint=hint)
    while _AWAITED in str(error) and (below := getattr(error, "_cause", None)) is not None:
        error = below
    text = str(error)
    if _UNREAD in text:
        return InvalidUsageError(
            f"{fact}: not all rows of a micro-batch were read",
            hint="in foreachBatch, read all rows, as df.write and df.collect() do; df.show(), df.limit() and "
            "an early return do not",
            **context,
        )
    if unknown := _NO_SOURCE.search(text):
        return InvalidUsageError(
            f"{fact}: there is no format {unknown[1]!r}",
            hint=did_you_mean(unknown[1], _FORMATS, "formats"),
            **context,
        )
    if refused := _NO_DIRECTORY.search(text):
        return InvalidUsageError(
            f"{fact}: a directory cannot be made", directory=refused[1],
            hint="choose a directory that this user may write", **context,
        )  # fmt: skip
    if hint is None and is_late_worker(error):
        hint = _LATE_WORKER_HINT
    if hint is None and "[BATCH_METADATA_NOT_FOUND]" in text:
        hint = _COPY_HINT
    if hint is None and _NO_STRUCT in text:
        hint = _WINDOW_HINT
    cause = root_cause(error).removesuffix(".").removeprefix(_RAISED).lstrip()
    # The line of a user's function, such as that of foreachBatch; errors of Penstock have it already.
    _, has_traceback, traceback = text.rpartition(_TRACEBACK)
    frames = _FRAME.findall(traceback) if has_traceback and not is_ours(error) else []
    at = users_line((file, int(line)) for file, line in frames)
    return kind_of(error)(fact, **context, cause=cause, **at, hint=hint)


def refusal_of(error: AnalysisException, columns: Iterable[str], **context: Any) -> InvalidUsageError:
    """Return the Penstock error for a user's expression that Spark refuses.

    Parameters
    ----------
    error : AnalysisException
        Spark's error, whose text may name internal columns and hold a plan.
    columns : iterable of str
        The columns that the expression may use.
    **context
        The context, such as ``expression=``.
    """
    if str(error.getCondition()).startswith("UNRESOLVED_COLUMN"):
        name = (error.getMessageParameters() or {}).get("objectName", "").replace("`", "")
        return InvalidUsageError(f"there is no column {name!r}", hint=did_you_mean(name, columns), **context)
    return InvalidUsageError(f"Spark refuses an expression: {spark_message(error)}", **context)
