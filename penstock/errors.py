"""The errors that Penstock raises, named by what the caller does next.

Every error is a `PenstockError`. The text is the fact, then ``key=value`` pairs, then ``Hint: ...``.
The pairs are also in `PenstockError.context`. All of them survive pickling, because they travel from
Python workers to the driver. The text never holds a user's data.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

__all__ = [
    "ConflictError",
    "CorruptDataError",
    "FencedError",
    "InternalError",
    "InvalidUsageError",
    "PenstockError",
    "UnavailableError",
]

_LIBRARY: Final = re.compile(r"(site|dist)-packages|python3(\.\d+)?|pyspark\.zip|py4j-.*\.zip")
"""Matches directories and archives of Python and its packages."""
_MIN_SECRET_CHARACTERS: Final = 4
_hidden: dict[str, str] = {}
"""The secrets of this process, each with the text that messages show in its place."""


def hide_value(value: str, shown: str) -> None:
    """Hide a value, such as a password: all later messages of this process show `shown` in its place.

    A value of up to three characters is not hidden: it occurs in too many words.
    """
    if len(value) >= _MIN_SECRET_CHARACTERS:
        _hidden[value] = shown


def redact(text: str) -> str:
    """Replace the hidden values in a text."""
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, _hidden[value])
    return text


class PenstockError(Exception):
    """Root of all errors of Penstock.

    Parameters
    ----------
    fact : str
        The problem, in one sentence, without a closing full stop.
    hint : str, optional
        The remedy for the caller.
    **context
        Named values that locate the error, such as ``file=`` or ``bucket=``.

    Attributes
    ----------
    while_running : bool
        Whether a run that had begun raised the error, for example because of its data. Then the exit code of
        a command is 1, even if the class is `InvalidUsageError`.
    shows_cause : bool
        Whether users need the text of the error's cause, because their own code raised it.
    names_section : bool
        Whether the text begins with the section of a pipeline that the error is about.
    """

    while_running = False
    shows_cause = False
    names_section = False

    def __init__(self, fact: str, *, hint: str | None = None, **context: Any) -> None:
        self.fact = fact
        self.hint = hint
        self.context = context
        super().__init__(_text(fact, hint, context))

    def __str__(self) -> str:
        return redact(super().__str__())

    def add_context(self, **context: Any) -> None:
        """Add named values to this error and its text."""
        self.context = {**self.context, **context}
        self.args = (_text(self.fact, self.hint, self.context),)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by arguments, so that text, hint and context all arrive."""
        return _rebuild, (type(self), self.fact, self.hint, self.context)


def _text(fact: str, hint: str | None, context: dict[str, Any]) -> str:
    pairs = "".join(f" {name}={value}" for name, value in context.items())
    text = f"{fact}:{pairs}" if pairs else fact
    end = "" if hint and hint.endswith("?") else "."
    return f"{text}. Hint: {hint}{end}" if hint else f"{text}."


def _rebuild(
    kind: type[PenstockError], fact: str, hint: str | None, context: dict[str, Any]
) -> PenstockError:
    return kind(fact, hint=hint, **context)


class ConflictError(PenstockError):
    """Another process changed the data first: reload and try again."""


class FencedError(PenstockError):
    """Another process has taken over: stop."""


class UnavailableError(PenstockError):
    """A file system or service did not answer: try again later."""


class InvalidUsageError(PenstockError, ValueError):
    """The code, configuration or input is wrong: fix it."""


class CorruptDataError(PenstockError):
    """Stored data is damaged or missing: restore it. The context names the file."""

    def name_file(self, file: object) -> CorruptDataError:
        """Return the same error, with the file's name if it does not name a file yet."""
        if "file" in self.context:
            return self
        return CorruptDataError(self.fact, hint=self.hint, file=file, **self.context)


class InternalError(PenstockError):
    """Penstock broke one of its own invariants: please report it."""


def did_you_mean(name: str, known: Iterable[str], what: str = "columns") -> str:
    """Return a hint that suggests the known name most similar to `name`, or lists the known names."""
    from difflib import get_close_matches  # few processes raise errors

    names = list(known)
    by_case = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), list(by_case), n=1)
    choices = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    if near:
        return f"did you mean {by_case[near[0]]!r}?"
    return f"the {what} are {choices}" if choices else f"there are no {what}"


def users_code_error(fact: str, cause: Exception, **context: Any) -> InvalidUsageError:
    """Return the error for an exception in a user's function. The caller raises it from the exception.

    The error's text has the exception's type, and the file and line of the user's code. It does not have the
    exception's message, which may hold data.
    """
    error = InvalidUsageError(
        fact,
        **context,
        error=type(cause).__name__,
        **users_line((frame.f_code.co_filename, line) for frame, line in walk_tb(cause.__traceback__)),
        hint="the micro-batch runs again from the same state after a restart with mended code",
    )
    error.shows_cause = True
    return error


def users_line(frames: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Return the innermost line of a traceback that is neither in Penstock nor in an installed package.

    Parameters
    ----------
    frames : iterable of tuple
        The file and the line of each frame, the innermost last.

    Returns
    -------
    dict of str to str
        The line as ``at``, such as ``job.py:12``; empty if there is none.
    """
    lines = [f"{Path(name).name}:{line}" for name, line in frames if not _is_library(Path(name))]
    return {"at": lines[-1]} if lines else {}


def _is_library(file: Path) -> bool:
    """Return whether a file belongs to Penstock, Python or a package, perhaps on another machine."""
    installed = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    if any(map(file.is_relative_to, [Path(__file__).parent, *map(Path, installed)])):
        return True
    # Compiled extensions have frames with relative files.
    return not file.is_absolute() or any(map(_LIBRARY.fullmatch, file.parts))
