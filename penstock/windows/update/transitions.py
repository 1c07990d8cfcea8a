"""The Key Transition Graph: how entries, watermarks and services change keys (UpStream §6.2, Fig. 10).

Window k has the panes ``[k * slide, k * slide + size)``. The panes of a key arrive in increasing order, and
no pane is older than the watermark. So everything before ``max(watermark, newest pane + 1)`` has arrived, and
a window that ends there or earlier is *complete*. When it is a key's turn, the queue *commits* to the window
with which the key waits: this window is served to its end, even if newer windows of the key arrive.

Some names are the paper's. `_mru_l` and `_mru_e` are the two rules for the most recent window;
`_is_update` and `_do_promote` are conditions of the graph, which `penstock.windows.update.queue` draws.
"""

from __future__ import annotations

import numpy as np

from penstock._kernels import kernel
from penstock.operators.update_stream.stream import Integers
from penstock.windows.update.zones import (
    APPLICATION_BOOKED,
    BLOCK_ROWS,
    CANDIDATE,
    CLOSED,
    COMMITTED,
    COMPLETED,
    DELIVERED,
    DF,
    DIRTY,
    DISREGARDED,
    DQ,
    EAGER,
    ET,
    EVENTS,
    FIRST,
    FOREVER,
    FRESH,
    HEAD,
    HELD,
    IN_SERVICE,
    KEYS,
    LAST_RANK,
    LATE,
    NEVER,
    NEWEST,
    NEXT_PENDING,
    NONE,
    PANE,
    PENDING,
    QUEUE_BOOKED,
    READIES,
    READY_HEAD,
    READY_NEXT,
    READY_RANK,
    READY_TAIL,
    SERVICE,
    SINCE,
    SIZE,
    SLIDE,
    WAITED,
    State,
    append,
    free_head,
    free_tail,
)

__all__ = [
    "FREE",
    "IDLE",
    "READY",
    "STATES",
    "append_stored",
    "commit",
    "enter",
    "finish",
    "line_up",
    "put_back",
    "serve_ready",
    "sweep",
]

FREE, READY, IDLE = 0, 1, 2
STATES = 3


@kernel
def _mru_l(newest: int, closed: int, size: int, slide: int) -> int:
    """Return the most recent complete window, given the key's newest pane (MRU_L)."""
    return min((closed - size) // slide, newest // slide)


@kernel
def _mru_e(newest: int, slide: int) -> int:
    """Return the window that started most recently (MRU_E)."""
    return newest // slide


@kernel
def _is_update(window: int, last: int) -> bool:
    """Return whether the most recent window is newer than the known window."""
    return window > last


@kernel
def _do_promote(k: int, state: State) -> bool:
    """Return whether a key becomes READY once its committed window gets a tuple or is complete."""
    key_rows, _, _, _, _, _ = state
    return key_rows[k, SERVICE] == IDLE


@kernel
def _end(window: int, state: State) -> int:
    """Return the pane after a window's last pane (WE for the committed window)."""
    _, _, registers, _, _, _ = state
    return window * registers[SLIDE] + registers[SIZE]


@kernel
def _push_ready(k: int, state: State) -> None:
    """Append a key to the keys under processing (upq)."""
    key_rows, _, registers, _, _, _ = state
    key_rows[k, SERVICE] = READY
    key_rows[k, READY_NEXT] = NONE
    registers[LAST_RANK] += 1
    key_rows[k, READY_RANK] = registers[LAST_RANK]
    if registers[READY_TAIL] >= 0:
        key_rows[registers[READY_TAIL], READY_NEXT] = k
    else:
        registers[READY_HEAD] = k
    registers[READY_TAIL] = k
    registers[READIES] += 1


@kernel
def _pop_ready(before: int, state: State) -> None:
    """Unlink the key after `before` from upq; NONE means the head."""
    key_rows, _, registers, _, _, _ = state
    k = registers[READY_HEAD] if before < 0 else key_rows[before, READY_NEXT]
    following = key_rows[k, READY_NEXT]
    if before < 0:
        registers[READY_HEAD] = following
    else:
        key_rows[before, READY_NEXT] = following
    if following < 0:
        registers[READY_TAIL] = before
    registers[READIES] -= 1


@kernel
def _wait(k: int, window: int, now_us: int, events: Integers, state: State) -> None:
    """Let the key wait with `window` (WS), and write the event for the scheduler."""
    key_rows, _, registers, _, _, _ = state
    resident = key_rows[k, CANDIDATE] != NEVER
    if not resident:
        key_rows[k, SINCE] = now_us
        key_rows[k, QUEUE_BOOKED] = now_us
        if key_rows[k, SERVICE] != FREE:
            registers[HELD] += 1
    key_rows[k, CANDIDATE] = window
    events[registers[EVENTS], 0] = k
    events[registers[EVENTS], 1] = resident
    registers[EVENTS] += 1


@kernel
def _first_needed(k: int, state: State) -> int:
    """Return the first pane that the enqueue side needs."""
    key_rows, _, registers, _, _, _ = state
    if key_rows[k, CANDIDATE] != NEVER:
        return key_rows[k, CANDIDATE] * registers[SLIDE]
    if registers[EAGER]:
        return FOREVER  # Later windows have none of the present panes.
    return (key_rows[k, CLOSED] + 1) * registers[SLIDE]


@kernel
def _trim(k: int, state: State) -> None:
    """Free the tuples that neither side of the buffer needs."""
    key_rows, _, registers, _, _, _ = state
    enqueue_side = _first_needed(k, state)
    if key_rows[k, COMMITTED] == NEVER:
        free_head(k, enqueue_side, state)
    else:
        free_head(k, min(key_rows[k, COMMITTED] * registers[SLIDE], enqueue_side), state)


@kernel
def _set_due(k: int, state: State) -> None:
    """Set the watermark at which the key's next window is complete."""
    key_rows, due, registers, _, _, _ = state
    following = key_rows[k, CLOSED] + 1
    due[k] = _end(following, state) if following <= key_rows[k, NEWEST] // registers[SLIDE] else FOREVER


@kernel
def _close(k: int, closed: int, now_us: int, events: Integers, state: State) -> None:
    """Complete the key's windows that end at pane `closed` or before."""
    key_rows, _, registers, _, _, _ = state
    size, slide = registers[SIZE], registers[SLIDE]
    last_closed = key_rows[k, CLOSED]
    top = _mru_l(key_rows[k, NEWEST], closed, size, slide)
    key_rows[k, CLOSED] = max(last_closed, (closed - size) // slide)
    # All windows in (last_closed, top] have the key's newest tuple. Complete windows above top have no tuple.
    if _is_update(top, last_closed):
        key_rows[k, DIRTY] = 1
        count = top - last_closed
        registers[COMPLETED] += count
        if key_rows[k, PENDING] == NEVER:
            key_rows[k, PENDING] = now_us
            key_rows[k, APPLICATION_BOOKED] = max(now_us, key_rows[k, DELIVERED])
        committed, candidate = key_rows[k, COMMITTED], key_rows[k, CANDIDATE]
        if committed != NEVER and top > committed and key_rows[k, NEXT_PENDING] == NEVER:
            key_rows[k, NEXT_PENDING] = now_us
        if registers[EAGER]:
            if last_closed < candidate <= top:
                count -= 1
            if last_closed < committed <= top:
                count -= 1
                if _do_promote(k, state):
                    _push_ready(k, state)
            registers[DISREGARDED] += count
        else:
            registers[DISREGARDED] += count - 1 if candidate == NEVER else count
            _wait(k, top, now_us, events, state)
    _set_due(k, state)


@kernel
def _start(k: int, pane: int, now_us: int, events: Integers, state: State) -> None:
    """If `pane` starts a window of an eager key, empty the enqueue side; let the key wait with the window."""
    key_rows, _, registers, _, _, _ = state
    window = _mru_e(pane, registers[SLIDE])
    newest = key_rows[k, NEWEST]
    last = (
        key_rows[k, CLOSED] if newest == NEVER else max(key_rows[k, CLOSED], _mru_e(newest, registers[SLIDE]))
    )
    if not _is_update(window, last):
        return
    candidate, committed = key_rows[k, CANDIDATE], key_rows[k, COMMITTED]
    if candidate != NEVER and candidate <= key_rows[k, CLOSED]:
        registers[DISREGARDED] += 1
    free_tail(k, NEVER if committed == NEVER else _end(committed, state), state)
    _wait(k, window, now_us, events, state)


@kernel
def enter(
    ids: Integers,
    panes: Integers,
    watermark: int,
    now_us: int,
    events: Integers,
    locations: Integers,
    state: State,
) -> None:
    """Enqueue entries in order. Late entries get no location.

    Parameters
    ----------
    watermark : int
        The watermark before these entries.
    events : int64 array of shape (2 n, 2)
        Output: each key that begins to wait, or continues to wait with a newer window; and whether the key
        waited before.
    locations : int64 array
        Output: the location of each entry. At the end, the caller writes the payload of each entry whose slot
        still names this entry.
    """
    key_rows, _, registers, _, _, _ = state
    size, slide = registers[SIZE], registers[SLIDE]
    for i in range(ids.shape[0]):
        k, pane = ids[i], panes[i]
        newest = key_rows[k, NEWEST]
        locations[i] = NONE
        if pane <= newest or pane < watermark:
            registers[LATE] += 1
            continue
        key_rows[k, DIRTY] = 1
        if newest == NEVER:
            registers[KEYS] += 1
            key_rows[k, CLOSED] = max(key_rows[k, CLOSED], (pane - size) // slide)
        else:
            _close(k, pane, now_us, events, state)
        starter = newest == NEVER or pane // slide > newest // slide
        if starter and registers[EAGER]:
            _start(k, pane, now_us, events, state)
        key_rows[k, NEWEST] = pane
        # Mark the first tuple of a window with 0: a window is opened when it is committed, not here.
        locations[i] = append(k, pane, 0 if starter else -1, i, state)
        committed = key_rows[k, COMMITTED]
        if committed != NEVER and pane < _end(committed, state):
            if key_rows[k, DF] < 0:
                key_rows[k, DF] = locations[i]
            if _do_promote(k, state):
                _push_ready(k, state)
        _close(k, pane + 1, now_us, events, state)
        _trim(k, state)


@kernel
def sweep(ids: Integers, watermark: int, now_us: int, events: Integers, state: State) -> None:
    """For keys that are due, complete the windows that the watermark completes."""
    for i in range(ids.shape[0]):
        _close(ids[i], watermark, now_us, events, state)
        _trim(ids[i], state)


@kernel
def _commit(k: int, now_us: int, state: State) -> None:
    """Commit to the window with which the key waits. The tuples of this window become the dequeue side."""
    key_rows, _, registers, blocks, _, _ = state
    key_rows[k, COMMITTED] = key_rows[k, CANDIDATE]
    key_rows[k, CANDIDATE] = NEVER
    key_rows[k, WAITED] = max(now_us - key_rows[k, SINCE], 0)
    key_rows[k, SINCE] = NEVER
    key_rows[k, FIRST] = 1
    key_rows[k, DIRTY] = 1
    free_head(k, key_rows[k, COMMITTED] * registers[SLIDE], state)
    first = key_rows[k, HEAD]
    key_rows[k, DF] = first * registers[BLOCK_ROWS] + blocks[first, DQ]
    _trim(k, state)


@kernel
def commit(ids: Integers, now_us: int, state: State) -> None:
    """Commit keys that left the scheduler to the windows with which they waited.

    The keys become READY in the order of `ids`.
    """
    for i in range(ids.shape[0]):
        _commit(ids[i], now_us, state)
        _push_ready(ids[i], state)


@kernel
def serve_ready(limit: int, state: State) -> Integers:
    """Serve the available tuples of all READY keys; return up to `limit` keys with complete windows.

    The returned keys leave upq. Keys of incomplete windows become IDLE. Keys of complete windows beyond
    `limit` stay READY.
    """
    key_rows, _, registers, _, _, _ = state
    served = np.empty(min(limit, registers[READIES]), np.int64)
    count, before, k = 0, NONE, registers[READY_HEAD]
    while k >= 0:
        following = key_rows[k, READY_NEXT]
        if key_rows[k, COMMITTED] > key_rows[k, CLOSED]:
            key_rows[k, DF] = NONE
            key_rows[k, SERVICE] = IDLE
            key_rows[k, DIRTY] = 1
            _pop_ready(before, state)
        elif count < limit:
            served[count] = k
            count += 1
            _pop_ready(before, state)
        else:
            before = k
        k = following
    return served[:count]


@kernel
def put_back(ids: Integers, replace: bool, state: State) -> None:
    """Drop the tuples that their key no longer needs, according to its stored key row.

    If `replace`, drop all tuples of the key.
    """
    key_rows, _, _, _, slots, _ = state
    for i in range(ids.shape[0]):
        k = ids[i]
        if replace:
            free_tail(k, NEVER, state)
        _trim(k, state)
        last, committed = key_rows[k, ET], key_rows[k, COMMITTED]
        if last >= 0 and committed != NEVER and slots[last, PANE] < _first_needed(k, state):
            free_tail(k, _end(committed, state), state)
        _set_due(k, state)


@kernel
def append_stored(ids: Integers, panes: Integers, marks: Integers, locations: Integers, state: State) -> None:
    """Append stored tuples to their keys; write their locations to `locations`."""
    _, _, _, _, slots, _ = state
    for i in range(ids.shape[0]):
        locations[i] = append(ids[i], panes[i], marks[i], i, state)
        slots[locations[i], FRESH] = 0


@kernel
def line_up(ids: Integers, state: State) -> None:
    """Append stored READY keys to the keys under processing (upq), in this order."""
    key_rows, _, registers, _, _, _ = state
    for i in range(ids.shape[0]):
        registers[LAST_RANK] = key_rows[ids[i], READY_RANK] - 1
        _push_ready(ids[i], state)


@kernel
def finish(ids: Integers, pending_us: Integers, booked_us: Integers, state: State) -> None:
    """End the processing of keys whose windows are emitted (DONE).

    Parameters
    ----------
    pending_us, booked_us : int64 arrays
        Output: the completion time of each key's oldest pending window, and the time up to which its
        staleness is counted.
    """
    key_rows, _, registers, _, _, _ = state
    for i in range(ids.shape[0]):
        k = ids[i]
        pending_us[i] = key_rows[k, PENDING]
        booked_us[i] = key_rows[k, APPLICATION_BOOKED]
        key_rows[k, PENDING] = key_rows[k, NEXT_PENDING]
        key_rows[k, APPLICATION_BOOKED] = max(key_rows[k, NEXT_PENDING], key_rows[k, DELIVERED])
        key_rows[k, NEXT_PENDING] = NEVER
        key_rows[k, COMMITTED] = NEVER
        key_rows[k, SERVICE] = FREE
        key_rows[k, DF] = NONE
        key_rows[k, IN_SERVICE] += 1
        key_rows[k, DIRTY] = 1
        if key_rows[k, CANDIDATE] != NEVER:
            registers[HELD] -= 1
        _trim(k, state)
