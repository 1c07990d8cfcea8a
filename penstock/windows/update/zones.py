"""Zones: the tuples of each key as a list of blocks in paged memory (UpStream §7.2).

A *fixed-length contiguous zone* (FLCZ) is a block of consecutive locations of one page. A zone holds
consecutive tuples of one key, between its dequeue offset and its enqueue offset. A key's window buffer is a
doubly linked list of zones. Panes increase along the list and within a zone. This is the order ``<'`` of the
paper, so pane numbers can replace the paper's pointers `WS` and `WE`.

Blocks are the allocation unit of `PagedMemory`. Kernels cannot allocate, so the caller gives them a *stack*
with the maximum number of blocks that a batch can need. Kernels push the blocks that they free onto this
stack, so that the same batch can use them again. After the batch, the caller returns the remaining blocks to
the memory.

All kernels of a window queue get the same arrays, as one tuple (`State`)::

    key_rows   one row for each key, columns as below
    due        for each key, the watermark at which its next window is complete; FOREVER if there is none
    registers  numbers of the whole queue
    blocks     one row for each block: NEXT and PREVIOUS in the list, dequeue offset (DQ), enqueue offset (NQ)
    slots      one row for each location: pane, mark, whether it is not stored yet, the entry that it
               came from
    stack      free blocks
"""

from __future__ import annotations

from penstock._kernels import kernel
from penstock.operators.update_stream.stream import Integers
from penstock.units import FOREVER, NEVER

__all__ = [
    "FOREVER",
    "NEVER",
    "NONE",
    "State",
    "append",
    "blocks_needed",
    "count_slots",
    "free_head",
    "free_tail",
    "list_slots",
]

State = tuple[Integers, Integers, Integers, Integers, Integers, Integers]

NONE = -1
"""Marks that there is no block, location or key."""

# Columns of a key row. HEAD is the first block. ET and DF are the paper's pointers, stored as locations. The
# pointers WS and WE are stored as windows: CANDIDATE is the most recent window, with which the key waits, and
# COMMITTED is the window under processing.
HEAD, ET, DF, CANDIDATE, COMMITTED = 0, 1, 2, 3, 4
# NEWEST is the newest pane. All windows up to CLOSED are complete, or will never have a tuple.
NEWEST, CLOSED = 5, 6
SERVICE, READY_NEXT, READY_RANK, FIRST = 7, 8, 9, 10
# SINCE is the time at which the key began to wait. PENDING is the completion time of the oldest complete
# window that was not emitted. NEXT_PENDING is the same for windows that are newer than the committed window.
SINCE, PENDING, NEXT_PENDING = 11, 12, 13
QUEUE_BOOKED, APPLICATION_BOOKED, DELIVERED, IN_SERVICE = 14, 15, 16, 17
# WAITED is the time that the key waited until its window was committed. ROWS is the number of its tuples.
# ROOM is the number of its spare locations during a batch. DIRTY is 1 if the key changed since it was stored.
WAITED, ROWS, ROOM, DIRTY = 18, 19, 20, 21
KEY_ROW_WIDTH = 22

# Indices into `registers`.
SIZE, SLIDE, BLOCK_ROWS, EAGER, SPARE = 0, 1, 2, 3, 4
READY_HEAD, READY_TAIL, LAST_RANK, HELD, EVENTS = 5, 6, 7, 8, 9
KEYS, LATE, COMPLETED, DISREGARDED, ROWS_HELD, READIES = 10, 11, 12, 13, 14, 15
REGISTERS = 16

# The columns of `blocks`, and the columns of `slots`.
NEXT, PREVIOUS, DQ, NQ = 0, 1, 2, 3
PANE, MARK, FRESH, ENTRY = 0, 1, 2, 3


@kernel
def blocks_needed(ids: Integers, state: State) -> int:
    """Return the maximum number of new blocks that entries for `ids` need."""
    key_rows, _, registers, blocks, _, _ = state
    rows = registers[BLOCK_ROWS]
    for i in range(ids.shape[0]):
        last = key_rows[ids[i], ET]
        key_rows[ids[i], ROOM] = 0 if last < 0 else rows - blocks[last // rows, NQ]
    needed = 0
    for i in range(ids.shape[0]):
        k = ids[i]
        if key_rows[k, ROOM] == 0:
            needed += 1
            key_rows[k, ROOM] = rows
        key_rows[k, ROOM] -= 1
    return needed


@kernel
def append(k: int, pane: int, mark: int, entry: int, state: State) -> int:
    """Append a tuple after the key's last tuple and return its location."""
    key_rows, _, registers, blocks, slots, stack = state
    rows = registers[BLOCK_ROWS]
    last = key_rows[k, ET]
    block = last // rows if last >= 0 else NONE
    if block < 0 or blocks[block, NQ] == rows:
        registers[SPARE] -= 1
        new = stack[registers[SPARE]]
        blocks[new, NEXT] = NONE
        blocks[new, PREVIOUS] = block
        blocks[new, DQ] = 0
        blocks[new, NQ] = 0
        if block >= 0:
            blocks[block, NEXT] = new
        else:
            key_rows[k, HEAD] = new
        block = new
    location = block * rows + blocks[block, NQ]
    blocks[block, NQ] += 1
    slots[location, PANE] = pane
    slots[location, MARK] = mark
    slots[location, FRESH] = 1
    slots[location, ENTRY] = entry
    key_rows[k, ET] = location
    key_rows[k, ROWS] += 1
    registers[ROWS_HELD] += 1
    return location


@kernel
def _forget(k: int, location: int, state: State) -> None:
    """Count a dropped tuple, and mark its slot so that its payload is not written."""
    key_rows, _, registers, _, slots, _ = state
    slots[location, ENTRY] = NONE
    key_rows[k, ROWS] -= 1
    registers[ROWS_HELD] -= 1


@kernel
def _release(k: int, block: int, state: State) -> None:
    """Unlink an empty zone and put its block on the stack."""
    key_rows, _, registers, blocks, _, stack = state
    before, after = blocks[block, PREVIOUS], blocks[block, NEXT]
    rows = registers[BLOCK_ROWS]
    if before >= 0:
        blocks[before, NEXT] = after
    else:
        key_rows[k, HEAD] = after
    if after >= 0:
        blocks[after, PREVIOUS] = before
    else:
        key_rows[k, ET] = before * rows + blocks[before, NQ] - 1 if before >= 0 else NONE
    stack[registers[SPARE]] = block
    registers[SPARE] += 1


@kernel
def free_head(k: int, limit: int, state: State) -> None:
    """Drop the key's tuples in panes before `limit`."""
    key_rows, _, registers, blocks, slots, _ = state
    rows = registers[BLOCK_ROWS]
    while key_rows[k, HEAD] >= 0:
        block = key_rows[k, HEAD]
        while blocks[block, DQ] < blocks[block, NQ]:
            location = block * rows + blocks[block, DQ]
            if slots[location, PANE] >= limit:
                return
            _forget(k, location, state)
            blocks[block, DQ] += 1
        _release(k, block, state)


@kernel
def free_tail(k: int, limit: int, state: State) -> None:
    """Drop the key's tuples in panes from `limit` on."""
    key_rows, _, registers, blocks, slots, _ = state
    rows = registers[BLOCK_ROWS]
    while key_rows[k, ET] >= 0:
        location = key_rows[k, ET]
        if slots[location, PANE] < limit:
            return
        block = location // rows
        _forget(k, location, state)
        blocks[block, NQ] -= 1
        if blocks[block, DQ] == blocks[block, NQ]:
            _release(k, block, state)
        else:
            key_rows[k, ET] = location - 1


@kernel
def count_slots(
    ids: Integers, begins: Integers, ends: Integers, fresh: bool, bounds: Integers, state: State
) -> None:
    """Count each key's panes, or only `fresh` panes, in [begin, end); write running sums to `bounds`."""
    key_rows, _, registers, blocks, slots, _ = state
    rows = registers[BLOCK_ROWS]
    for i in range(ids.shape[0]):
        count = 0
        block = key_rows[ids[i], HEAD]
        while block >= 0 and slots[block * rows + blocks[block, DQ], PANE] < ends[i]:
            for location in range(block * rows + blocks[block, DQ], block * rows + blocks[block, NQ]):
                pane = slots[location, PANE]
                if begins[i] <= pane < ends[i] and (not fresh or slots[location, FRESH]):
                    count += 1
            block = blocks[block, NEXT]
        bounds[i + 1] = bounds[i] + count


@kernel
def list_slots(
    ids: Integers,
    begins: Integers,
    ends: Integers,
    fresh: bool,
    bounds: Integers,
    out: Integers,
    state: State,
) -> None:
    """Write the locations that `count_slots` counted."""
    key_rows, _, registers, blocks, slots, _ = state
    rows = registers[BLOCK_ROWS]
    for i in range(ids.shape[0]):
        at = bounds[i]
        block = key_rows[ids[i], HEAD]
        while block >= 0 and slots[block * rows + blocks[block, DQ], PANE] < ends[i]:
            for location in range(block * rows + blocks[block, DQ], block * rows + blocks[block, NQ]):
                pane = slots[location, PANE]
                if begins[i] <= pane < ends[i] and (not fresh or slots[location, FRESH]):
                    out[at] = location
                    at += 1
            block = blocks[block, NEXT]
