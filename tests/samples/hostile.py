"""Possible content of forged files with correct checksums."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.checkpointing import PUnit, decode, encode

NESTED: list[Any] = []
for _ in range(50):
    NESTED = [NESTED]

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 200, 1.5, float("nan"),
    float("inf"), "", "x", "../x", "\0", [], [[]], [None], {}, {"": 0}, NESTED,
)  # fmt: skip
"""Values that take a field's place."""

GONE = object()
"""Stands for a removed field."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths to all values inside a JSON value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key)
            yield from places(value[key], (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return `value` with another value at a path, or without it."""
    whole = copy.deepcopy(value)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    if new is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return whole


def every_change(value: Any) -> Iterator[tuple[str, Any]]:
    """Return descriptions and variants of `value`: a strange value in each place, or the place removed."""
    for path in places(value):
        for new in (GONE, *STRANGE):
            yield f"{path} {'gone' if new is GONE else repr(new)[:20]}", changed(value, path, new)


def rewrite(file: Path, unit: PUnit) -> None:
    """Put a p-unit in the place of a file."""
    file.write_bytes(encode(unit))


def unit_in(file: Path) -> PUnit:
    """Return the p-unit in a file."""
    return decode(file.read_bytes(), file)
