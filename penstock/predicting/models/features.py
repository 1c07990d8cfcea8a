"""Features of events, and the decision tree that chooses a model from features (H-Store §5.4, Table 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.procedures.partitions.placement import hash_values
from penstock.procedures.rows import numpy_column
from penstock.procedures.schema import Column, Kind
from penstock.procedures.texts import Numbers, TextNumbers
from penstock.state_store.keys.key_words import buckets_of

__all__ = ["Category", "Feature", "Tree", "features_of", "read_features"]

Floats = npt.NDArray[np.float64]
_MISSING = -1.0


class Category(StrEnum):
    """The categories of features."""

    VALUE = "value"
    HASH = "hash"
    NULL = "null"
    LENGTH = "length"
    SAME_HASH = "same hash"
    BASE = "base"


class Feature(NamedTuple):
    """A feature of an event.

    Attributes
    ----------
    category : Category
        `VALUE` is the value of an attribute, `HASH` the partition of its hash, and `NULL` whether it is null.
        `LENGTH` is the length of a list, and `SAME_HASH` whether all elements have the same partition. `BASE`
        is whether the attribute, or each element of a list, has the same partition as the base attribute,
        which determines the partitions of most queries.
    attribute : str
        The attribute's name.
    """

    category: Category
    attribute: str

    def __str__(self) -> str:
        """Return the feature as text for people."""
        return f"{self.category}({self.attribute})"


def features_of(event: Sequence[Column], base: str | None) -> list[Feature]:
    """Return all features of an event; `base` is the base attribute, if there is one."""
    found = []
    for column in event:
        if column.nullable:
            found.append(Feature(Category.NULL, column.name))
        if column.is_list:
            found += [Feature(Category.LENGTH, column.name), Feature(Category.SAME_HASH, column.name)]
        else:
            if not column.kind.is_interned:
                found.append(Feature(Category.VALUE, column.name))
            if column.kind is not Kind.FLOAT:
                found.append(Feature(Category.HASH, column.name))
        if base is not None and base != column.name and column.kind is not Kind.FLOAT:
            found.append(Feature(Category.BASE, column.name))
    return found


def read_features(
    features: Sequence[Feature],
    events: pa.RecordBatch,
    event: Sequence[Column],
    base: str | None,
    partitions: int,
) -> Floats:
    """Return a row for each event with the value of each feature; a missing value is -1."""
    columns = {column.name: column for column in event}
    rows = np.empty((events.num_rows, len(features)))
    for place, (category, attribute) in enumerate(features):
        rows[:, place] = _read(category, columns[attribute], events, columns.get(base or ""), partitions)
    return rows


def _read(
    category: Category, column: Column, events: pa.RecordBatch, base: Column | None, partitions: int
) -> Floats:
    values: Any = events.column(column.name)
    if category is Category.NULL:
        return np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.float64)
    if category is Category.VALUE:
        numbers, null = numpy_column(column, values, TextNumbers())
        return np.nan_to_num(np.where(null, _MISSING, numbers.astype(np.float64)))
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if not column.is_list:
        hashes = _hashes(column, values, partitions)
        if category is Category.BASE and base is not None:
            equal = hashes == _hashes(base, events.column(base.name), partitions)
            return np.where(valid, equal, _MISSING)
        return np.where(valid, hashes, _MISSING)
    offsets = np.asarray(values.offsets.to_numpy(), np.int64)
    lengths = np.diff(offsets)
    if category is Category.LENGTH:
        return np.where(valid, lengths, _MISSING)
    hashes = _hashes(column, values.values, partitions)
    first = np.zeros(len(lengths), np.int64)
    if category is Category.BASE and base is not None:
        first = _hashes(base, events.column(base.name), partitions)
    elif len(hashes):
        first = hashes[np.minimum(offsets[:-1], len(hashes) - 1)]
    events_of = np.repeat(np.arange(len(lengths)), lengths)
    different = hashes[offsets[0] : offsets[-1]] != first[events_of]
    return np.where(valid, np.bincount(events_of, different, len(lengths)) == 0, _MISSING)


def _hashes(column: Column, values: pa.Array[Any], partitions: int) -> Numbers:
    return buckets_of(hash_values(column, values).view(np.uint64), partitions)


@dataclass(frozen=True)
class Tree:
    """A decision tree as tuples with a value for each node; node 0 is the root.

    Attributes
    ----------
    feature : tuple of int
        The position of the feature that the node compares; -1 for a leaf.
    bound : tuple of float
        Rows whose feature has at most this value take the left branch.
    left, right : tuple of int
        The numbers of the nodes at the ends of the branches.
    model : tuple of int
        For a leaf, the number of the model.
    """

    feature: tuple[int, ...] = (-1,)
    bound: tuple[float, ...] = (0.0,)
    left: tuple[int, ...] = (0,)
    right: tuple[int, ...] = (0,)
    model: tuple[int, ...] = (0,)

    def choose(self, rows: Floats) -> Numbers:
        """Return the number of the model for each row of features."""
        feature, bound, left, right, model = map(
            np.asarray, (self.feature, self.bound, self.left, self.right, self.model)
        )
        nodes = np.zeros(len(rows), np.int64)
        while (inner := feature[nodes] >= 0).any():
            at = nodes[inner]
            values = rows[inner, feature[at]]
            nodes[inner] = np.where(values <= bound[at], left[at], right[at])
        return np.asarray(model[nodes], np.int64)
