"""Windows under simulated load: one server that takes marked tuples, and append windows to compare with.

Serving a tuple takes a fixed time. A window's result is delivered when its last tuple has been served, so a
whole window costs ``C_t`` times its tuples, the lower bound of the source (UpStream §6.1.2): while a window
is computed, no other of its key is open. Append semantics has all windows open, so there a tuple costs
``C_t`` for each of the windows that it is in; no computation is shared between them, as in the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.paper.tuple_queue import MarkedTuple, TupleWindowQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.scheduling.staleness import Staleness, StalenessMeter
from penstock.operators.simulation.draws import draws
from penstock.operators.simulation.traces import UNIT_US, Trace
from penstock.operators.update_stream.stream import Integers
from penstock.windows.update.results import KeyState, WindowMode

__all__ = ["WindowOutcome", "append_windows", "execution_trace", "own_panes", "simulate_windows"]

_NOTHING = pa.schema([])


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """The measurements of one simulated run.

    Attributes
    ----------
    queue, application : Staleness
        As the queue's own meters have it.
    delivered : int
        Results delivered.
    """

    queue: Staleness
    application: Staleness
    delivered: int

    @property
    def application_units(self) -> float:
        """Average application staleness in units of time."""
        return self.application.average_ms * 1000 / UNIT_US


def own_panes(trace: Trace) -> Integers:
    """Return for each tuple how many of its key came before: windows over a key's own tuples."""
    order = np.argsort(trace.keys, kind="stable")
    sizes = np.bincount(trace.keys)
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    panes = np.empty(len(order), np.int64)
    panes[order] = np.arange(len(order)) - begins
    return panes


def simulate_windows(
    mode: WindowMode, size: int, slide: int, trace: Trace, panes: Integers, cost_us: int
) -> WindowOutcome:
    """Let one server take tuples from an in-place window queue while `trace` arrives.

    At one instant a free server takes before an arrival enters, as in `penstock.operators.simulation.server`.

    Parameters
    ----------
    panes : int64 array
        The pane of each tuple; for each key they increase from 0 or above.
    """
    queue = TupleWindowQueue(mode, size, slide, _NOTHING, Policy.IN_PLACE, first_pane=0)
    times = trace.times_us
    arriving, free, count = 0, 0, 0
    while free < trace.end_us:
        taken = queue.take(free)
        if taken is None:
            if arriving == len(times):
                break
            free = max(free, int(times[arriving]))
            _enter(queue, trace, panes, arriving)
            arriving += 1
            continue
        if taken.pane is not None:
            free += cost_us
            while arriving < len(times) and times[arriving] < free:
                _enter(queue, trace, panes, arriving)
                arriving += 1
        if taken.closes:
            queue.deliver(taken, free)
            count += 1
    waiting, application = queue.account_staleness(max(free, trace.end_us))
    return WindowOutcome(waiting, application, count)


def append_windows(
    size: int, slide: int, arrivals: int, cost_us: int, *, accept: float = 1.0, seed: int = 0
) -> WindowOutcome:
    """Compute windows of one key's tuples, one a unit, under append semantics: every one that is accepted.

    A window that is shed takes no time and gives no result; it is pending from its end until the result of a
    later one is delivered. The run ends with the arrivals.

    Parameters
    ----------
    accept : float
        The share of windows that are computed; the others are shed at random.
    """
    windows = (arrivals - size) // slide + 1
    taken = draws(seed, 0, windows + size) < accept
    starts = np.arange(len(taken)) * slide
    opened = np.zeros(arrivals + 1, np.int64)
    np.add.at(opened, np.minimum(starts[taken], arrivals), 1)
    np.add.at(opened, np.minimum(starts[taken] + size, arrivals), -1)
    costs = np.cumsum(opened)[:arrivals] * cost_us
    # served[t] = max(served[t - 1], t) + cost[t]
    total = np.cumsum(costs)
    times = np.arange(arrivals, dtype=np.int64) * UNIT_US
    served = total + np.maximum.accumulate(times - (total - costs))
    end_us = arrivals * UNIT_US
    numbers = np.flatnonzero(taken[:windows])
    delivered = served[numbers * slide + size - 1]
    numbers, delivered = numbers[delivered <= end_us], delivered[delivered <= end_us]
    # Until the first result, window 0 is pending; after the result of window w, window w + 1 is.
    pending = np.append(0, numbers + 1)
    since = (pending * slide + size - 1) * UNIT_US
    begins, ends = np.append(0, delivered), np.append(delivered, end_us)
    meter = StalenessMeter()
    for arrived, begin, until in zip(since, begins, ends, strict=True):
        meter.add(np.array([arrived]), np.array([max(arrived, begin)]), int(until))
    return WindowOutcome(Staleness(), meter.take(float(end_us)), len(numbers))


def execution_trace(mode: WindowMode, size: int, slide: int, cost: int, ticks: int) -> list[dict[str, Any]]:
    """Return what happens to one key at the times 1 to `ticks`, one arrival at each (UpStream Fig. 12).

    Returns
    -------
    list of dict
        ``waits``: "I" if the key begins to wait with the arrival, "U" if a newer window overwrites the
        waiting one, and with which window; ``state`` at the end of the time step; ``dequeued`` and
        ``win_spec`` of the tuple that the server takes; ``result``: the window whose result is delivered.
        Windows have the number of their first tuple. Both stalenesses are those at the end of the step; 0 as
        well if nothing is pending.
    """
    queue = TupleWindowQueue(mode, size, slide, _NOTHING, Policy.IN_PLACE, first_pane=1)
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    free = 0
    served: MarkedTuple | None = None
    rows = []
    for now in range(1, ticks + 1):
        result = None
        if served is not None and free <= now and served.closes:
            queue.deliver(served, now)
            result, served = served.start_pane, None
        taken = queue.take(now) if free <= now else None
        before = queue.waiting_window(0)
        queue.enqueue(np.zeros(1, np.int64), np.array([now]), nothing, now)
        after = queue.waiting_window(0)
        if taken is None and free <= now:
            taken = queue.take(now)
        if taken is not None:
            served, free = taken, now + cost
        since, pending = queue.stale_since(0)
        if served is not None and served.closes:
            pending = int(served.arrived_us[0])
        state = queue.states(0)
        rows.append(
            {
                "mode": str(mode),
                "time": now,
                "waits": "" if after == before else "I" if before is None else "U",
                "window": after if after != before else None,
                "state": "+".join(str(one) for one in KeyState if one in state),
                "dequeued": None if taken is None else taken.pane,
                "win_spec": None if taken is None else taken.win_spec,
                "result": result,
                "queue_staleness": 0 if since is None else now - since,
                "application_staleness": 0 if pending is None else now - pending,
            }
        )
    return rows


def _enter(queue: TupleWindowQueue, trace: Trace, panes: Integers, row: int) -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    one = slice(row, row + 1)
    queue.enqueue(trace.keys[one], panes[one], rows, int(trace.times_us[row]))
