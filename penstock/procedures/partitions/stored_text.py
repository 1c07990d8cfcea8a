"""Values that are kept as text in a file: a design, or a predictor."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError

__all__ = ["StoredText"]


@check_keywords
class StoredText(ABC):
    """A value that a text file keeps."""

    _KIND: ClassVar[str]
    """The kind of value, with an article, as errors name it."""

    @classmethod
    def load(cls, source: Self | str | os.PathLike[str]) -> Self:
        """Read a value from the file `source`; return `source` if it is already a value.

        Raises
        ------
        InvalidUsageError
            If the file cannot be read, or does not describe a value of this kind.
        """
        if isinstance(source, cls):
            return source
        try:
            text = Path(source).read_text(encoding="utf-8")  # type: ignore[arg-type]
        except (OSError, TypeError, ValueError) as error:
            raise InvalidUsageError(f"cannot read {cls._KIND}", file=source, reason=str(error)) from error
        return cls.parse(text, str(source))

    @classmethod
    @abstractmethod
    def parse(cls, text: str, file: str = "<text>") -> Self:
        """Return the value that a text describes; see `load`."""
