"""Helpers for all commands: options, errors as messages and exit codes, sizes, and the console."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

__all__ = [
    "FAILED",
    "RETAIN_VERSIONS",
    "SIGNALLED",
    "WRONG",
    "CheckpointOption",
    "DebugOption",
    "JsonOption",
    "LogOption",
    "RetainOption",
    "StateArgument",
    "amount",
    "console",
    "errors",
    "read_tables",
    "size",
    "split_option",
    "unwrap",
    "utc_time",
]

FAILED: Final = 1
WRONG: Final = 2
SIGNALLED: Final = 128
RETAIN_VERSIONS: Final = 2  # as in `BucketStore`, whose module is heavy
_PIPE_WIDTH: Final = 200
"""The width of tables without a terminal."""

StateArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A state location (a path, or a URI such as s3://bucket/state), the directory of a query, "
        "operator or bucket in it, or the directory of a database.",
        show_default=False,
    ),
]
RetainOption = Annotated[
    int,
    typer.Option(
        "--retain-versions",
        min=1,
        metavar="N",
        help="With --checkpoint: how many versions to keep. Give the query's retain_versions, which is not "
        "stored. Without --checkpoint, all versions are kept.",
    ),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="CHECKPOINT",
        help="The query's checkpointLocation, or the directory of a graph or pipeline, which shows what is "
        "committed. Starts Spark.",
        show_default=False,
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
LogOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="The directory of the database, whose calls since its newest version are the trace.",
        show_default=False,
    ),
]


@contextmanager
def errors(*, debug: bool) -> Iterator[None]:
    """Turn errors into one message and an exit code.

    Raises
    ------
    typer.Exit
        The exit code is 130 after Ctrl-C; 2 if the command line or a configuration is wrong and nothing ran;
        else 1.
    """
    from penstock.errors import InvalidUsageError, PenstockError, redact

    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(SIGNALLED + 2) from None
    except PenstockError as error:
        if debug:
            raise
        cause = f" Caused by {type(error.__cause__).__name__}: {error.__cause__}" if error.shows_cause else ""
        cause = redact(cause)
        typer.secho(f"{error}{cause}", err=True, fg=typer.colors.RED)
        is_wrong = isinstance(error, InvalidUsageError) and not error.while_running
        raise typer.Exit(WRONG if is_wrong else FAILED) from None
    except OSError as error:
        if not debug and _is_of_py4j(error):
            _show_failure(error)
        if debug or error.filename is None:
            raise
        typer.secho(f"{error.filename}: {error.strerror}.", err=True, fg=typer.colors.RED)
        raise typer.Exit(WRONG) from None
    except Exception as error:
        if debug or not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        _show_failure(error)


def _is_of_py4j(error: OSError) -> bool:
    """Return whether an error is Py4J's, because Py4J cannot reach the JVM."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(str(frame.f_globals.get("__name__")).startswith("py4j.") for frame in frames)


def _show_failure(error: Exception) -> NoReturn:
    """Print an error of Spark as one message, and exit."""
    from penstock.spark_ext.api.failure import failure_of

    typer.secho(f"{failure_of(error, 'the query failed')}", err=True, fg=typer.colors.RED)
    raise typer.Exit(FAILED) from None


def read_tables(options: list[str], what: str, owner: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name and the rows of each ``OWNER=FILE``, a Parquet file.

    Raises
    ------
    InvalidUsageError
        If an option has a different form, or a file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.errors import InvalidUsageError

    for option in options:
        name, path = split_option(option, what, owner)
        try:
            yield name, pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise InvalidUsageError(f"cannot read {what}", file=path, reason=str(error)) from error


def split_option(option: str, what: str, owner: str) -> tuple[str, str]:
    """Return the name and the file of ``OWNER=FILE``.

    Raises
    ------
    InvalidUsageError
        If the option has a different form.
    """
    from penstock.errors import InvalidUsageError

    name, equals, path = option.partition("=")
    if not equals:
        raise InvalidUsageError(f"{what} have a name and a file", got=option, hint=f"write {owner}=FILE")
    return name, path


def console() -> Console:
    """Return the console that writes tables to standard output."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def amount(files: int, size_bytes: int) -> str:
    """Format a number of files and their size in bytes."""
    return f"{files:,} file{'' if files == 1 else 's'}, {size(size_bytes)}"


def unwrap(command: Callable[..., Any] | None) -> str:
    """Return a command's docstring with one line for each paragraph; typer wraps it to the terminal's width.

    A paragraph that begins with a backspace keeps its lines.
    """
    paragraphs = inspect.cleandoc((command and command.__doc__) or "").split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith("\b") else paragraph.replace("\n", " ") for paragraph in paragraphs
    )


def utc_time(time_us: int) -> str:
    """Format a time."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(size_bytes: int) -> str:
    """Format a number of bytes."""
    from rich.filesize import decimal

    return decimal(size_bytes)
