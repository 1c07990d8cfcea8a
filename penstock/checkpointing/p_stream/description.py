"""The description of a p-stream, and checks of names and columns."""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

import pyarrow as pa

from penstock import _clock
from penstock.checkpointing.p_unit import PUnit, encode
from penstock.errors import InvalidUsageError

__all__ = ["DESCRIPTION_FILE", "Description", "check_name", "check_schema", "describe"]

DESCRIPTION_FILE = "p-stream"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Description(NamedTuple):
    """Identity, columns and kind of I/O of a p-stream."""

    identity: str
    schema: pa.Schema
    direct_io: bool


def describe(schema: pa.Schema, direct_io: bool) -> memoryview:
    """Return the file that describes a new p-stream."""
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    meta = {"identity": _clock.new_id(), "schema": text, **({"direct_io": True} if direct_io else {})}
    return encode(PUnit("p-stream", meta))


def check_name(name: str) -> str:
    """Return the name of a reader or writer.

    Raises
    ------
    InvalidUsageError
        If it cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise InvalidUsageError(
            "the name is not allowed",
            name=repr(name),
            hint="use at most 100 ASCII letters, digits, _, . and -; do not begin with . or -",
        )
    return name


def check_schema(schema: pa.Schema, expected: pa.Schema, location: str) -> None:
    """Check that rows of one schema may be written to a stream with another; column order may differ.

    Raises
    ------
    InvalidUsageError
        If a column is missing, too many, of another type, or given twice.
    """
    names = schema.names
    if len(set(names)) < len(names):
        raise InvalidUsageError("two columns have the same name", columns=", ".join(names))
    missing = [name for name in expected.names if name not in names]
    unknown = [name for name in names if name not in expected.names]
    others = [
        f"{name} is {schema.field(name).type}, not {expected.field(name).type}"
        for name in names
        if name in expected.names and not schema.field(name).type.equals(expected.field(name).type)
    ]
    if missing or unknown or others:
        raise InvalidUsageError(
            "the columns differ from those of the p-stream",
            location=location,
            missing=", ".join(missing) or "none",
            unknown=", ".join(unknown) or "none",
            types="; ".join(others) or "same",
        )
