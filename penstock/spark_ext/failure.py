"""What to tell of an error that comes out of Spark: its cause, without the stack of the JVM."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, IllegalArgumentException

from penstock import errors
from penstock.errors import InvalidUsageError, PenstockError

__all__ = ["kind_of", "root_cause", "spark_message"]

_PENSTOCK = re.compile(
    r"penstock\.[\w.]*?\w+Error: (.+?)(?=\n\s*\n|\n\s+at |\nCaused by: |\s*SQLSTATE|\Z)", re.DOTALL
)
_TRACEBACK = "Traceback (most recent call last):\n"
_PYTHON = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:: .*)?)$")
_NO_SOURCE = "[DATA_SOURCE_NOT_FOUND]"
"""What Spark says, in an error of the JVM, of a format that is not there."""
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_TERMINATED = re.compile(r"terminated with exception: (.+)", re.DOTALL)
_CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$", re.MULTILINE)
_STACK = re.compile(r"\n\s*at .*|\n=== .*|\nDriver stacktrace:.*", re.DOTALL)


def spark_message(error: BaseException) -> str:
    """Return the first sentence or two of an error of Spark, without its plan and its SQL state."""
    text = _STATE.sub("", str(error))
    text = _STACK.sub("", text)
    return " ".join(text.split()).removesuffix(".")


def _python_error(text: str) -> str | None:
    """Return the line that ends the last Python traceback of a text, such as ``ValueError: no``."""
    _, found, rest = text.rpartition(_TRACEBACK)
    if not found:
        return None
    for line in rest.splitlines():
        if line.startswith((" ", "\t")):
            continue
        match = _PYTHON.match(line)
        return match["error"] if match else None
    return None


def root_cause(error: BaseException) -> str:
    """Return what made a streaming query fail, as one message.

    Parameters
    ----------
    error : BaseException
        What Spark raised, such as a ``StreamingQueryException``, whose text holds the errors of the JVM and
        of the Python workers one in another.

    Returns
    -------
    str
        The last error of Penstock's own in the text, with the Python error that caused it; or else the line
        that ends the last Python traceback; or else the message of Spark, of its last cause where that is
        given.
    """
    text = str(error)
    own = list(_PENSTOCK.finditer(text))
    if own:
        message = " ".join(own[-1][1].split())
        rest = text[own[-1].end() :]
        cause = _python_error(rest) if rest.startswith("\nCaused by: ") else None
        return message if cause is None else f"{message} Caused by {cause}"
    python = _python_error(text)
    if python is not None:
        return python
    caused = _CAUSED.findall(text)
    if caused:
        return str(caused[-1])
    terminated = _TERMINATED.search(text)
    return spark_message(Exception(terminated[1])) if terminated else spark_message(error)


def kind_of(error: BaseException) -> type[PenstockError]:
    """Return the class of error that tells a caller of a query's failure what to do next.

    It is that of Penstock's own error that made the query fail, `InvalidUsageError` where Spark refused the
    query, and else `PenstockError`, which promises nothing.
    """
    if isinstance(error, PenstockError):
        return type(error)
    if isinstance(error, AnalysisException | IllegalArgumentException) or _NO_SOURCE in str(error):
        return InvalidUsageError
    names = re.findall(r"penstock\.errors\.(\w+Error): ", str(error))
    found = getattr(errors, names[-1], PenstockError) if names else PenstockError
    return found if isinstance(found, type) and issubclass(found, PenstockError) else PenstockError
