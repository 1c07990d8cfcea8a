"""Checked access to the metadata in a file.

A checksum is not a signature: a file that was damaged before it was written, or that somebody else made, has
a valid checksum. So every field's type and range are checked before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from penstock.checkpointing.files.abc import is_name
from penstock.errors import CorruptDataError
from penstock.units import FOREVER, NEVER

__all__ = ["Fields"]

_KINDS: Final[Mapping[type, str]] = {
    str: "a text", bool: "true or false", dict: "an object", list: "a list"
}  # fmt: skip

T = TypeVar("T")


class Fields:
    """The fields of a JSON object, or the items of a list. Each value is checked when it is read.

    Parameters
    ----------
    values : mapping or sequence
        The parsed JSON.
    file : object, optional
        The file's name, for errors.
    path : str
        The path of the values in the file's header, for errors.
    """

    __slots__ = ("_file", "_path", "_values")

    def __init__(
        self, values: Mapping[str, Any] | Sequence[Any], file: object = None, path: str = ""
    ) -> None:
        self._values: Any = values
        self._file = file
        self._path = path

    def damage_error(self, key: str | int, expected: str) -> CorruptDataError:
        """Return the error for a field with the wrong type or range."""
        error = CorruptDataError(
            "a field of a file's header is missing or has a wrong value",
            field=self._place_of(key),
            expected=expected,
        )
        return error if self._file is None else error.name_file(self._file)

    def _place_of(self, key: str | int) -> str:
        if isinstance(key, int):
            return f"{self._path}[{key}]"
        return f"{self._path}.{key}" if self._path else key

    def _get(self, key: str | int, kind: type[T]) -> T:
        try:
            value = self._values[key]
        except LookupError:
            value = None
        # Compare the types exactly, because Python counts true and false as numbers.
        if type(value) is not kind:
            raise self.damage_error(key, _KINDS[kind])
        return value

    def has(self, key: str) -> bool:
        """Return whether a field is present and not null."""
        return self._values.get(key) is not None

    def number(self, key: str | int, least: int = NEVER, most: int = FOREVER) -> int:
        """Return a whole number from `least` to `most`, by default any number of 64 bits."""
        try:
            value = self._values[key]
        except LookupError:
            value = None
        if type(value) is not int or not least <= value <= most:
            raise self.damage_error(key, f"a whole number from {least} to {most}")
        return value

    def count(self, key: str | int, most: int = FOREVER) -> int:
        """Return a whole number that is not negative."""
        return self.number(key, 0, most)

    def number_or_none(self, key: str | int) -> int | None:
        """Return a whole number of 64 bits; None if the field is null. A missing field is an error."""
        return None if self._is_null(key) else self.number(key)

    def _is_null(self, key: str | int) -> bool:
        try:
            return self._values[key] is None
        except LookupError:
            return False

    def real(self, key: str) -> float:
        """Return a finite number."""
        value = self._values.get(key)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.damage_error(key, "a finite number")
        return float(value)

    def real_or_none(self, key: str) -> float | None:
        """Return a finite number; None if the field is null. A missing field is an error."""
        return None if self._is_null(key) else self.real(key)

    def text(self, key: str | int) -> str:
        """Return a text."""
        return self._get(key, str)

    def text_or_none(self, key: str) -> str | None:
        """Return a text; None if the field is null. A missing field is an error."""
        return None if self._is_null(key) else self.text(key)

    def name(self, key: str | int) -> str:
        """Return a text that is a valid name of a file."""
        name = self.text(key)
        if not is_name(name):
            raise self.damage_error(key, "a name")
        return name

    def flag(self, key: str) -> bool:
        """Return true or false."""
        return self._get(key, bool)

    def fields(self, key: str | int) -> Fields:
        """Return the fields of an object."""
        return Fields(self._get(key, dict), self._file, self._place_of(key))

    def plain(self, key: str | int) -> dict[str, Any]:
        """Return an object without checking its values."""
        return self._get(key, dict)

    def items(self, key: str | int) -> Fields:
        """Return the items of a list."""
        return Fields(self._get(key, list), self._file, self._place_of(key))

    def row(self, key: str | int, length: int) -> Fields:
        """Return the items of a list of a fixed length."""
        elements = self.items(key)
        if len(elements) != length:
            raise self.damage_error(key, f"a list of {length}")
        return elements

    def rows(self, key: str | int, length: int) -> Iterator[Fields]:
        """Return the items of each inner list of a list of lists. Each inner list has `length` items."""
        elements = self.items(key)
        return (elements.row(number, length) for number in range(len(elements)))

    def count_rows(self, key: str | int, length: int) -> list[list[int]]:
        """Return a list of lists of `length` whole numbers that are not negative. Faster than `rows`."""
        rows: list[Any] = self._get(key, list)
        for number, row in enumerate(rows):
            sound = type(row) is list and len(row) == length
            for value in row if sound else ():
                if type(value) is not int or value < 0 or value > FOREVER:
                    sound = False
            if not sound:
                raise self.damage_error(key, f"lists of {length} whole numbers, but list {number} is not")
        return rows

    def objects(self, key: str | int) -> Iterator[Fields]:
        """Return the fields of each object in a list."""
        elements = self.items(key)
        return (elements.fields(number) for number in range(len(elements)))

    def numbers(self, key: str | int) -> dict[str, int]:
        """Return an object whose fields are whole numbers of 64 bits."""
        inner = self.fields(key)
        return {name: inner.number(name) for name in inner}

    def __iter__(self) -> Iterator[str]:
        """Return the names of the fields of an object."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of fields or items."""
        return len(self._values)
