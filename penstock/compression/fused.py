"""Computing on packed columns: a selection and a sum in the pass that unpacks them.

A sub-block is unpacked into the first cache, used there and forgotten, so nothing but the result is
written to memory. What a sub-block's base and width say of its range decides first: where no value can
be selected it is not unpacked at all, nor is that of the column which is summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock._kernels import kernel
from penstock.compression.arrow import Layout
from penstock.compression.codecs.null_suppression import NullSuppression, packed_of
from penstock.compression.column import Block
from penstock.compression.kernels.bits import SUB_BLOCK, Bytes, Packed, Step, finish, unpack_offsets
from penstock.compression.node import Node
from penstock.errors import InvalidUsageError

__all__ = ["sum_where"]


@kernel
def _sum_where(
    payload: Bytes,
    widths: Any,
    bases: Any,
    firsts: Any,
    step: int,
    out: Any,
    where_payload: Bytes,
    where_widths: Any,
    where_bases: Any,
    where_firsts: Any,
    where_step: int,
    where_out: Any,
    rows: int,
    low: int,
    high: int,
) -> tuple[int, int]:
    """Return the sum of the values whose `where` is from `low` to `high`, and their number.

    `out` and `where_out` are scratches of 1,024 values.
    """
    total: Any = np.int64(0)
    count = 0
    used, where_used = 0, 0
    for b in range(widths.shape[0]):
        n = min(1024, rows - b * 1024)
        width: Any = np.int64(widths[b])
        where_width: Any = np.int64(where_widths[b])
        base: Any = np.int64(where_bases[b])
        wanted: Any = True
        if where_step == 1 and where_width < 62:
            # Unsigned: the compiler takes it that sums of signed numbers do not wrap around.
            reach = (np.uint64(1) << np.uint64(where_width)) - np.uint64(1)
            wanted = base <= high and (low <= base or np.uint64(low) - np.uint64(base) <= reach)
        if wanted:
            tested, summed = where_out[:n], out[:n]
            unpack_offsets(where_payload, where_used, where_width, where_bases[b], tested)
            finish(where_step, 0, where_firsts[b, 0], where_firsts[b, 1], tested)
            unpack_offsets(payload, used, width, bases[b], summed)
            finish(step, 0, firsts[b, 0], firsts[b, 1], summed)
            for i in range(n):
                selected: Any = np.int64(tested[i]) >= low and np.int64(tested[i]) <= high
                total += np.int64(summed[i]) if selected else 0
                count += selected
        used += (n * width + 7) // 8
        where_used += (n * where_width + 7) // 8
    return total, count


def sum_where(values: Block, where: Block, low: int, high: int) -> tuple[int, int]:
    """Return the sum of the values in the rows whose `where` is from `low` to `high`, and their number.

    Parameters
    ----------
    values, where : Block
        Two columns of signed integers with as many rows. Rows with a null in either are left out.
    low, high : int
        Bounds, both included.

    Returns
    -------
    tuple of int
        The sum, modulo 2**64 as a signed integer, and the number of rows.

    Raises
    ------
    InvalidUsageError
        If a column is not of signed integers, or they have different numbers of rows.
    CorruptDataError
        If a block contradicts itself.
    """
    for block in (values, where):
        if not pa.types.is_signed_integer(block.type):
            raise InvalidUsageError(
                "only signed integers can be summed and selected by", type=str(block.type)
            )
    if values.rows != where.rows:
        raise InvalidUsageError(
            "the columns have different numbers of rows", rows=values.rows, where_rows=where.rows
        )
    most = np.iinfo(np.int64)
    low, high = max(low, most.min), min(high, most.max)
    if low > high:
        return 0, 0
    summed, tested = _packed(values), _packed(where)
    if summed is None or tested is None:
        return _decoded(values, where, low, high)
    result: Any = _sum_where(
        summed.payload,
        summed.widths,
        summed.bases,
        summed.firsts,
        int(summed.step),
        np.empty(SUB_BLOCK, values.nodes[0].dtype),
        tested.payload,
        tested.widths,
        tested.bases,
        tested.firsts,
        int(tested.step),
        np.empty(SUB_BLOCK, where.nodes[0].dtype),
        values.rows,
        low,
        high,
    )
    total, count = result
    return int(total), int(count)


def _packed(block: Block) -> Packed | None:
    """Return a column's sub-blocks where the kernel can unpack them."""
    node: Node = block.nodes[0]
    if block.layout is not Layout.FIXED or block.validity is not None:
        return None
    if node.codec != NullSuppression.number or not node.count:
        return None
    packed = packed_of(node, 0, -(-node.count // SUB_BLOCK))
    return None if packed.exceptions.size or packed.step is Step.XOR else packed


def _decoded(values: Block, where: Block, low: int, high: int) -> tuple[int, int]:
    """As `sum_where`, for columns that other codecs coded."""
    summed, tested = values.read().cast(pa.int64()), where.read().cast(pa.int64())
    selected = pc.and_(pc.greater_equal(tested, low), pc.less_equal(tested, high))
    kept = summed.filter(selected).drop_null()
    with np.errstate(over="ignore"):
        return int(kept.to_numpy().sum(dtype=np.int64)), len(kept)
