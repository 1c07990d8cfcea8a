"""Variables in a pipeline's file: ``${NAME}``, ``${NAME:-default}`` and ``${file:PATH}``.

A variable stands for a value of the environment, or for the content of a file, such as a mounted secret.
``$${NAME}`` is the text ``${NAME}``. Messages show a variable's name in place of its value.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from penstock.errors import InvalidUsageError, hide_value

__all__ = ["substitute_variables"]

_REFERENCE: Final = re.compile(r"(\$?)\$\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<default>:-.*)?|file:(?P<file>.+)", re.DOTALL)


def substitute_variables(text: str) -> str:
    """Return a text with the values of its variables.

    Raises
    ------
    InvalidUsageError
        If a variable without a default is unset or empty, a file cannot be read, or ``${...}`` has a
        different form.
    """
    return _REFERENCE.sub(lambda found: found[0][1:] if found[1] else _value_of(found[2]), text)


def _value_of(reference: str) -> str:
    match = _VARIABLE.fullmatch(reference)
    if match is None:
        raise InvalidUsageError(
            f"${{{reference}}} is not a variable",
            hint="write ${NAME}, ${NAME:-default} or ${file:PATH}; $${ for the text ${",
        )
    name, default, file = match["name"], match["default"], match["file"]
    if file is not None:
        value = _content_of(file)
    else:
        value = os.environ.get(name, "")
        if not value and default is not None:
            return str(default[2:])
        if not value:
            raise InvalidUsageError(
                f"the variable {name} is not set",
                hint=f"set it in the environment, or write a default: ${{{name}:-default}}",
            )
    hide_value(value, f"${{{name or reference}}}")
    return value


def _content_of(file: str) -> str:
    """Return the text of a file without the line breaks at its end."""
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InvalidUsageError(f"${{file:{file}}} cannot be read: {cause}") from None
