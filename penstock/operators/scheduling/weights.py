"""Weights of keys, and the shares of services that follow from them."""

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

__all__ = ["ONE", "GroupKey", "KeyWeights", "find_shares", "shares_of"]

ONE = 1 << 20
"""The share of a key of weight 1. Shares are integers, so that their sums are exact."""

_MAX_SHARE = 1 << 40


def shares_of(weights: npt.NDArray[np.float64]) -> Integers:
    """Return the shares of positive, finite weights: their square roots times `ONE`, as integers.

    Weights are clipped to ``2**-40`` and ``2**40``.
    """
    shares: Integers = np.clip(np.rint(np.sqrt(weights) * ONE), 1, _MAX_SHARE).astype(np.int64)
    return shares


class Keyed(Protocol):
    """The interface of a keyed schema, such as `UpdateStream` or `GroupKey`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, including the key."""

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns."""

    @property
    def codec(self) -> KeyCodec:
        """The codec of the key columns."""


@dataclass(frozen=True)
class GroupKey:
    """The key of groups: all group columns.

    Parameters
    ----------
    schema : pyarrow.Schema
        The group columns.
    """

    schema: pa.Schema

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns."""
        return tuple(self.schema.names)

    @property
    def codec(self) -> KeyCodec:
        """The codec of the key columns."""
        return KeyCodec(list(self.schema))


class KeyWeights:
    """Weights by the value of a single-column key; keys without an entry have weight 1.

    Parameters
    ----------
    stream : UpdateStream or GroupKey
        The stream or group that defines the key.
    weights : mapping
        Maps key values to positive, finite numbers. Key values of any type may be given as text.

    Raises
    ------
    InvalidUsageError
        If the key has several columns, a key value does not fit the column or occurs twice, or a weight is
        not a positive, finite number.
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
                "a key of the weights does not fit the key column", column=name, type=kind
            ) from error
        if values.null_count:
            raise InvalidUsageError("a key of the weights is null", column=name)
        self._codec = stream.codec
        self._index = KeyIndex()
        self._index.find_or_add(self._codec.encode([values]))
        if len(self._index) != len(weights):
            raise InvalidUsageError("two keys of the weights are equal", column=name, type=kind)
        # The last entry, at index -1, is the share of keys without a weight.
        self._shares = shares_of(np.array([*weights.values(), 1.0], np.float64))

    def shares(self, keys: Keys) -> Integers:
        """Return the shares of keys."""
        return self._shares[self._index.find(keys)]

    def shares_by_value(self, column: pa.Array[Any]) -> Integers:
        """Return the shares of key values; a null has weight 1."""
        shares = np.full(len(column), ONE)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        shares[there] = self.shares(self._codec.encode([column.drop_null()]))
        return shares


def find_shares(
    stream: UpdateStream, weights: KeyWeights | None, rows: pa.RecordBatch, keys: Keys
) -> Integers | None:
    """Return the shares of rows by key or from the weight column; None if there are no weights.

    The caller has checked the weight column with `UpdateStream.find_unusable`.
    """
    if weights is not None:
        return weights.shares(keys)
    if stream.weight is None:
        return None
    numbers = pc.cast(rows.column(stream.weight), pa.float64(), safe=False)
    return shares_of(numbers.to_numpy(zero_copy_only=False))
