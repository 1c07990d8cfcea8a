"""Convert the state of an update queue for another policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.units import NEVER

__all__ = ["change_policy"]

_CELL, _ARRIVED, _SHARE = (f"{RESERVED_PREFIX}{name}" for name in ("cell", "arrived", "share"))
_INTERVAL = f"{RESERVED_PREFIX}interval_us"
_UNKNOWN: dict[str, Any] = {f"{RESERVED_PREFIX}seen_us": NEVER, _INTERVAL: 0.0}
"""The stored values for keys whose update rates no policy has needed."""


def change_policy(queue: Any, policy: Policy, target: Any) -> PUnit:
    """Return the state of a queue as a snapshot of a queue of another policy.

    Keys that wait line up in the order of their oldest pending updates.

    Parameters
    ----------
    queue : UpdateQueue
        The queue.
    policy : Policy
        The other policy.
    target : UpdateQueue
        A queue of that policy.

    Raises
    ------
    InvalidUsageError
        If a queue has semantics other than update.
    """
    if not (isinstance(queue, UpdateQueue) and isinstance(target, UpdateQueue)):
        raise InvalidUsageError("only an update queue has a policy", hint="leave out --policy")
    units = list(queue.snapshot())
    cells = pa.Table.from_batches([unit.blocks["cells"] for unit in units])
    firsts = np.cumsum([0, *(unit.blocks["cells"].num_rows for unit in units)])
    place = np.concatenate([
        first + unit.blocks["rows"].column(_CELL).to_numpy()
        for first, unit in zip(firsts, units, strict=False)
    ])  # fmt: skip
    rows = pa.Table.from_batches([unit.blocks["rows"] for unit in units])
    other = next(target.snapshot()).blocks
    shares = rows.column(_SHARE).to_numpy() if _SHARE in rows.schema.names else None
    arrived = rows.column(_ARRIVED).to_numpy()
    known = _INTERVAL in cells.schema.names
    interval = cells.column(_INTERVAL).to_numpy()[place] if known else np.zeros(len(place))
    scheduler = new_scheduler(policy, weighted=shares is not None)
    scheduler.reserve(len(place))
    order = np.argsort(arrived, kind="stable")
    scheduler.arrive(
        order, np.zeros(len(order), np.bool_), interval[order], np.inf, 0,
        None if shares is None else shares[order], arrived[order],
    )  # fmt: skip
    places = scheduler.store(np.arange(len(place)))
    columns = {_CELL: place, **{f"{RESERVED_PREFIX}{name}": values for name, values in places.items()}}
    columns[_ARRIVED] = arrived
    blocks = {
        "cells": _fill(cells, other["cells"].schema, _UNKNOWN),
        "rows": _fill(rows, other["rows"].schema, {}, columns),
    }
    return PUnit("snapshot", {**units[0].meta, **scheduler.meta}, blocks)


def _fill(
    table: pa.Table, schema: pa.Schema, unknown: dict[str, Any], given: dict[str, Any] | None = None
) -> pa.RecordBatch:
    """Return a table's rows in another schema: the given columns, its own columns, or unknown values."""
    given = given or {}
    columns = []
    for field in schema:
        if field.name in given:
            columns.append(pa.array(given[field.name], field.type))
        elif field.name in table.schema.names:
            columns.append(pa.concat_arrays(table.column(field.name).chunks))
        else:
            columns.append(pa.array(np.full(table.num_rows, unknown[field.name])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
