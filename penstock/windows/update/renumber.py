"""Give new numbers to the keys in a window queue's p-units."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import CorruptDataError
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.update_stream.stream import Integers

__all__ = ["renumber_key_rows"]

_KEY = "key"


def renumber_key_rows(
    unit: PUnit, rows: pa.RecordBatch, stored: Integers, numbers: Integers
) -> dict[str, pa.RecordBatch]:
    """Return the key rows and tuples of a window queue's unit with new key numbers, ordered by these numbers.

    Parameters
    ----------
    unit : PUnit
        The unit, with the key rows in the block `KEY_BLOCK`, and the tuples in the block ``rows``.
    rows : pyarrow.RecordBatch
        The tuples to use instead of the tuples in `unit`; they may have more or wider columns.
    stored, numbers : int64 arrays
        The stored key numbers, and the new number of each key.

    Raises
    ------
    CorruptDataError
        If a key row has an unknown number, or a tuple has no key row.
    """
    key_rows = unit.blocks[KEY_BLOCK]
    for name, column in ((KEY_BLOCK, _KEY), ("rows", OWNER)):
        block = unit.blocks[name]
        at = block.schema.get_field_index(column)
        if at < 0 or block.schema.field(at).type != pa.int64() or block.column(at).null_count:
            raise CorruptDataError("a block lacks a column of numbers", block=name, column=column)
    order = np.argsort(stored)
    keys = key_rows.column(_KEY).to_numpy()
    if not np.isin(keys, stored).all():
        raise CorruptDataError("a key row has the number of an unknown group", block=KEY_BLOCK)
    found = numbers[order[np.searchsorted(stored, keys, sorter=order)]]
    order = np.argsort(found, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    owners = places[unit.numbers_below("rows", OWNER, len(order))]
    sorted_rows = np.argsort(owners, kind="stable")
    return {
        KEY_BLOCK: set_column(key_rows.take(pa.array(order)), _KEY, found[order]),
        "rows": set_column(rows.take(pa.array(sorted_rows)), OWNER, owners[sorted_rows]),
    }


def set_column(block: pa.RecordBatch, name: str, values: Integers) -> pa.RecordBatch:
    """Return a batch in which a column of numbers has new values."""
    place = block.schema.get_field_index(name)
    return block.set_column(place, block.schema.field(place), pa.array(values))
