"""Weights: how much each key matters, and the shares of the services that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.update_stream.options import check_by_key
from penstock.operators.update_stream.stream import Integers, UpdateStream
from penstock.state_store.keys.key_index import KeyIndex
from penstock.state_store.keys.key_words import KeyCodec, Keys

__all__ = ["ONE", "GroupKey", "KeyWeights", "column_shares", "shares_of"]

ONE = 1 << 20
"""The share of a key of weight 1. Shares are whole, so that their sums are exact."""

_MAX_SHARE = 1 << 40


def shares_of(weights: npt.NDArray[np.float64]) -> Integers:
    """Return the shares of positive, finite weights: their square roots in units of 1 / `ONE`.

    Weights below ``2**-40`` and above ``2**40`` count as these.
    """
    found: Integers = np.clip(np.rint(np.sqrt(weights) * ONE), 1, _MAX_SHARE).astype(np.int64)
    return found


class Keyed(Protocol):
    """What has a key, such as `UpdateStream` or `GroupKey`."""

    @property
    def schema(self) -> pa.Schema:
        """Columns, those of the key among them."""

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns."""

    @property
    def codec(self) -> KeyCodec:
        """What makes keys of these columns."""


@dataclass(frozen=True)
class GroupKey:
    """The key of groups.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns of the group.
    """

    schema: pa.Schema

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns: all."""
        return tuple(self.schema.names)

    @property
    def codec(self) -> KeyCodec:
        """What makes keys of these columns."""
        return KeyCodec(list(self.schema))


class KeyWeights:
    """Weights of keys of one column, given by the value of the key; others have weight 1.

    Parameters
    ----------
    stream : UpdateStream or GroupKey
        Says what the key is.
    weights : mapping
        From values of the key, or all of them as text, to positive, finite numbers.

    Raises
    ------
    InvalidUsageError
        If the key has several columns, a value cannot be one of the key or comes twice, or a weight is no
        such number.
    """

    def __init__(self, stream: Keyed, weights: Mapping[Any, Any]) -> None:
        check_by_key(stream.key, weights)
        (name,) = stream.key
        kind = stream.schema.field(name).type
        try:
            if weights and all(isinstance(value, str) for value in weights):
                values = pa.array(list(weights), pa.string()).cast(kind)
            else:
                values = pa.array(list(weights), kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidUsageError(
                "a value in the weights cannot be one of the key", column=name, type=kind
            ) from error
        if values.null_count:
            raise InvalidUsageError("a value in the weights is null", column=name)
        self._codec = stream.codec
        self._index = KeyIndex()
        self._index.find_or_add(self._codec.encode([values]))
        if len(self._index) != len(weights):
            raise InvalidUsageError("a value in the weights comes twice", column=name, type=kind)
        # The last one is found by -1: that of keys without a weight.
        self._shares = shares_of(np.array([*weights.values(), 1.0], np.float64))

    def shares(self, keys: Keys) -> Integers:
        """Return the shares of keys."""
        return self._shares[self._index.find(keys)]

    def shares_by_value(self, column: pa.Array[Any]) -> Integers:
        """Return the shares of keys by their values, of which a null has weight 1."""
        found = np.full(len(column), ONE)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        found[there] = self.shares(self._codec.encode([column.drop_null()]))
        return found


def column_shares(stream: UpdateStream, rows: pa.RecordBatch) -> Integers:
    """Return the shares of rows by the weight column of the stream, which `UpdateStream.unusable` checked."""
    weights = pc.cast(rows.column(stream.weight), pa.float64(), safe=False)
    return shares_of(weights.to_numpy(zero_copy_only=False))
