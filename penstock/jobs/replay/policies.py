"""Convert the state of an update queue, or of update windows, to a different policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import InvalidUsageError
from penstock.operators.key_blocks import KEY_BLOCK, OWNER
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.schedulers import new_scheduler
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.units import NEVER
from penstock.windows.update.scheduler import WindowScheduler
from penstock.windows.update.windows import UpdateWindows

__all__ = ["change_policy"]

_ARRIVED, _SHARE = (f"{RESERVED_PREFIX}{name}" for name in ("arrived", "share"))
_INTERVAL = f"{RESERVED_PREFIX}interval_us"
_QUEUE = "queue"
"""The part of a window operator's state that has its waiting keys."""
_UNKNOWN: dict[str, Any] = {f"{RESERVED_PREFIX}seen_us": NEVER, _INTERVAL: 0.0}
"""The values to store for keys whose update rates are unknown, because the old policy does not use rates."""


def change_policy(state: Any, policy: Policy, target: Any) -> list[PUnit]:
    """Convert the state of a queue or of windows to a snapshot for a different policy.

    Waiting keys are ordered by the arrival of their oldest pending updates.

    Parameters
    ----------
    state : UpdateQueue or UpdateWindows
        The state.
    policy : Policy
        The new policy.
    target : UpdateQueue or UpdateWindows
        An empty state of the new policy.

    Raises
    ------
    InvalidUsageError
        If the state has no policy, such as the state of a queue with append semantics.
    """
    if isinstance(state, UpdateQueue) and isinstance(target, UpdateQueue):
        return [_change_queue(state, policy, target)]
    if isinstance(state, UpdateWindows) and isinstance(target, UpdateWindows):
        return list(_change_windows(state, policy))
    raise InvalidUsageError("no key waits by a policy in this operator", hint="leave out --policy")


def _change_windows(windows: UpdateWindows, policy: Policy) -> Iterator[PUnit]:
    """Yield the snapshot of windows, with the places that waiting keys have under the new policy."""
    units = list(windows.snapshot())
    parts = [unit.blocks[KEY_BLOCK] for unit in units if _QUEUE in unit.meta]
    key_rows = pa.Table.from_batches(parts)
    ids = key_rows.column("key").to_numpy()
    weighted = "share" in key_rows.schema.names
    was = windows.scheduler.store(ids)
    scheduler = WindowScheduler(policy, weighted=weighted)
    scheduler.reserve(int(ids.max(initial=-1)) + 1)
    if weighted:
        scheduler.weigh(ids, was["share"])
    waits = np.flatnonzero(key_rows.column("candidate").to_numpy() != NEVER)
    since = key_rows.column("since_us").to_numpy()[waits]
    line = np.argsort(since, kind="stable")
    known = was.get("interval_us", np.zeros(len(ids)))
    scheduler.line_up(ids[waits][line], since[line], known[waits][line])
    places = scheduler.store(ids)
    places |= {name: was[name] for name in ("seen_us", "interval_us") if name in was and name in places}
    first = 0
    for unit in units:
        if _QUEUE not in unit.meta:
            yield unit
            continue
        block = unit.blocks[KEY_BLOCK].drop_columns(list(was))
        for name, values in places.items():
            block = block.append_column(name, pa.array(values[first : first + block.num_rows]))
        first += block.num_rows
        meta = {**unit.meta, _QUEUE: {**unit.meta[_QUEUE], **scheduler.meta}}
        yield PUnit(unit.kind, meta, {**unit.blocks, KEY_BLOCK: block})


def _change_queue(queue: UpdateQueue, policy: Policy, target: UpdateQueue) -> PUnit:
    units = list(queue.snapshot())
    key_rows = pa.Table.from_batches([unit.blocks[KEY_BLOCK] for unit in units])
    firsts = np.cumsum([0, *(unit.blocks[KEY_BLOCK].num_rows for unit in units)])
    place = np.concatenate([
        first + unit.blocks["rows"].column(OWNER).to_numpy()
        for first, unit in zip(firsts, units, strict=False)
    ])  # fmt: skip
    rows = pa.Table.from_batches([unit.blocks["rows"] for unit in units])
    other = next(target.snapshot()).blocks
    shares = rows.column(_SHARE).to_numpy() if _SHARE in rows.schema.names else None
    arrived = rows.column(_ARRIVED).to_numpy()
    known = _INTERVAL in key_rows.schema.names
    interval = key_rows.column(_INTERVAL).to_numpy()[place] if known else np.zeros(len(place))
    scheduler = new_scheduler(policy, weighted=shares is not None)
    scheduler.reserve(len(place))
    order = np.argsort(arrived, kind="stable")
    scheduler.arrive(
        order, np.zeros(len(order), np.bool_), interval[order], np.inf, 0,
        None if shares is None else shares[order], arrived[order],
    )  # fmt: skip
    places = scheduler.store(np.arange(len(place)))
    columns = {OWNER: place, **{f"{RESERVED_PREFIX}{name}": values for name, values in places.items()}}
    columns[_ARRIVED] = arrived
    blocks = {
        KEY_BLOCK: _fill(key_rows, other[KEY_BLOCK].schema, _UNKNOWN),
        "rows": _fill(rows, other["rows"].schema, {}, columns),
    }
    return PUnit("snapshot", {**units[0].meta, **scheduler.meta}, blocks)


def _fill(
    table: pa.Table, schema: pa.Schema, unknown: dict[str, Any], given: dict[str, Any] | None = None
) -> pa.RecordBatch:
    """Return a table's rows in a new schema. A column comes from `given`, else the table, else `unknown`."""
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
