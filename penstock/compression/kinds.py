"""Which Arrow types are texts."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["is_coded_text", "is_text"]


def is_text(kind: pa.DataType) -> bool:
    """Say whether values are texts, or binary."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def is_coded_text(given: pa.DataType, kind: pa.DataType) -> bool:
    """Say whether values of a type are texts of a kind, as numbers in a dictionary."""
    return bool(pa.types.is_dictionary(given) and is_text(kind) and given.value_type.equals(kind))
