"""The execution traces of UpStream Fig. 12, the key states, and the memory of window queues."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.paper.scale import Scale
from benchmarks.paper.window_experiments import figure_13, figure_14
from benchmarks.paper.windows import (
    append_windows,
    execution_trace,
    own_panes,
    simulate_windows,
)
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation.traces import UNIT_US, Trace
from penstock.windows.update.queue import WindowQueue
from penstock.windows.update.results import KeyState, WindowMode

PAYLOAD = pa.schema([("value", pa.int64())])

# Windows have the number of their first tuple: W1 is tuples 1 to 3. A free server takes before an arrival of
# the same instant enters. "takes": the tuple and its win_spec, above 0 where it opens the window.
LAZY_TRACE = """
time  waits   state       takes   result  queue  application
 1            enq                           0       0
 2            enq                           0       0
 3    I W1    ready       1 (3)             0       0
 4    I W2    wait+ready                    0       1
 5    U W3    wait+ready  2 (0)             1       2
 6    U W4    wait+ready                    2       3
 7    U W5    wait        3 (0)             3       4
 8    U W6    wait                          4       5
 9    I W7    wait+ready  6 (3)   W1        0       5
10    U W8    wait+ready                    1       6
11    U W9    wait+ready  7 (0)             2       7
12    U W10   wait+ready                    3       8
13    U W11   wait        8 (0)             4       9
14    U W12   wait                          5      10
15    I W13   wait+ready  12 (3)  W6        0       6
"""
# The first committed window starts at time 1, the key starts waiting when a window starts at time 2, and the
# window that closes at time 4 invalidates the result of window 1, which is given at time 7 (UpStream §6.2.2).
EAGER_TRACE = """
time  waits   state       takes   result  queue  application
 1    I W1    ready       1 (3)             0       0
 2    I W2    wait+ready                    0       0
 3    U W3    wait+ready  2 (0)             1       0
 4    U W4    wait+ready                    2       1
 5    U W5    wait        3 (0)             3       2
 6    U W6    wait                          4       3
 7    I W7    wait+ready  6 (3)   W1        0       3
 8    U W8    wait+ready                    1       4
 9    U W9    wait+ready  7 (0)             2       5
10    U W10   wait+ready                    3       6
11    U W11   wait        8 (0)             4       7
12    U W12   wait                          5       8
13    I W13   wait+ready  12 (3)  W6        0       4
14    U W14   wait+ready                    1       5
15    U W15   wait+ready  13 (0)            2       6
"""


@pytest.mark.parametrize(
    ("mode", "expected"), [(WindowMode.LAZY, LAZY_TRACE), (WindowMode.EAGER, EAGER_TRACE)]
)
def test_execution_traces_are_those_of_figure_12(mode: WindowMode, expected: str) -> None:
    lines = ["time  waits   state       takes   result  queue  application"]
    for row in execution_trace(mode, 3, 1, 2, 15):
        waits = f"{row['waits']} W{row['window']}" if row["waits"] else ""
        takes = "" if row["dequeued"] is None else f"{row['dequeued']} ({row['win_spec']})"
        result = "" if row["result"] is None else f"W{row['result']}"
        lines.append(
            f"{row['time']:2}    {waits:<6}  {row['state']:<10}  {takes:<6}  {result:<6}  "
            f"{row['queue_staleness']:3}    {row['application_staleness']:4}"
        )
    assert "\n".join(line.rstrip() for line in lines) == expected.strip()


def _one(
    queue: WindowQueue, pane: int, now_us: int = 0, *, watermark: int | None = None, key: int = 0
) -> None:
    row = pa.RecordBatch.from_pydict({"value": [pane]}, schema=PAYLOAD)
    queue.enqueue(np.array([key]), np.array([pane]), row, now_us, watermark=watermark)


def _nothing(queue: WindowQueue, watermark: int) -> None:
    none = np.zeros(0, np.int64)
    queue.enqueue(none, none, pa.RecordBatch.from_pylist([], PAYLOAD), 0, watermark=watermark)


def test_an_eager_key_goes_through_all_states() -> None:
    queue = WindowQueue(WindowMode.EAGER, 4, 4, PAYLOAD, Policy.IN_PLACE, first_pane=0)
    assert queue.states(0) == {KeyState.DONE}
    _one(queue, 0)
    assert queue.states(0) == {KeyState.WAIT}
    assert not len(queue.dequeue(1, 1))
    assert queue.states(0) == {KeyState.IDLE}
    _one(queue, 2)
    assert queue.states(0) == {KeyState.READY}
    assert not len(queue.dequeue(1, 1))
    assert queue.states(0) == {KeyState.IDLE}
    _one(queue, 5)
    assert queue.states(0) == {KeyState.WAIT, KeyState.READY}
    served = queue.dequeue(1, 1)
    assert (served.start_pane.tolist(), served.panes.tolist()) == ([0], [0, 2])
    assert queue.states(0) == {KeyState.WAIT}
    assert not len(queue.dequeue(1, 1))
    assert queue.states(0) == {KeyState.IDLE}
    _nothing(queue, watermark=8)
    assert queue.states(0) == {KeyState.READY}
    assert queue.dequeue(1, 1).panes.tolist() == [5]
    assert queue.states(0) == {KeyState.DONE}
    assert (queue.rows_held, queue.memory.pages_used) == (0, 0)


def test_a_lazy_key_waits_once_a_window_is_complete_and_is_never_idle() -> None:
    queue = WindowQueue(WindowMode.LAZY, 4, 2, PAYLOAD, Policy.IN_PLACE, first_pane=0)
    _one(queue, 1)
    assert queue.states(0) == {KeyState.ENQ}
    _nothing(queue, watermark=4)
    assert queue.states(0) == {KeyState.WAIT}
    _one(queue, 5, watermark=8)
    served = queue.dequeue(9, 1)
    # Window 1 is complete at 6, window 2, with panes 4 to 7, at 8: it overwrote both others.
    assert (served.start_pane.tolist(), served.panes.tolist()) == ([4], [5])
    assert queue.states(0) == {KeyState.DONE}


def test_a_key_that_waits_under_processing_keeps_its_place_and_others_pass() -> None:
    queue = WindowQueue(WindowMode.EAGER, 10, 5, PAYLOAD, Policy.IN_PLACE, first_pane=0)
    _one(queue, 0, key=0)
    queue.dequeue(1, 1)
    _one(queue, 5, key=0)
    _one(queue, 0, key=1)
    queue.dequeue(1, 1)
    assert queue.states(0) == {KeyState.WAIT, KeyState.IDLE}
    assert queue.states(1) == {KeyState.IDLE}
    assert queue.servable == 0


def test_a_window_buffer_never_holds_more_than_size_plus_slide_less_one() -> None:
    """UpStream §7.2 has this bound for the enqueue side."""
    for mode in (WindowMode.LAZY, WindowMode.EAGER):
        for size, slide in ((7, 3), (5, 5), (6, 1)):
            queue = WindowQueue(mode, size, slide, PAYLOAD, Policy.IN_PLACE, block_rows=2)
            held = []
            for pane in range(60):
                _one(queue, pane)
                held.append(queue.rows_held)
            assert max(held) <= size + slide - 1


def test_a_delta_has_the_panes_that_came_and_not_those_that_were_stored() -> None:
    queue = WindowQueue(WindowMode.LAZY, 50, 1, PAYLOAD, Policy.IN_PLACE)
    for pane in range(40):
        _one(queue, pane)
    assert queue.delta().blocks["rows"].num_rows == 40
    _one(queue, 40)
    assert queue.delta().blocks["rows"].num_rows == 1
    assert queue.delta().blocks["cells"].num_rows == 0


SMALL = Scale(sizes_13=(5, 10, 20, 40), units_13=2_000, seeds_13=5, sizes_14=(2, 20), units_14=1_200)


@pytest.mark.long
def test_eager_is_flat_and_lazy_linear_in_the_size_of_tumbling_windows() -> None:
    rows = {(r["windows"], r["semantics"], r["size"]): r for r in figure_13(SMALL).to_pylist()}
    staleness = {key: row["application_staleness"] for key, row in rows.items()}
    for size in SMALL.sizes_13:
        # C_t * size from a window's end to its result, C_t in the eager case; once in each size.
        assert staleness["tumbling", "LAZY", size] == pytest.approx(size / 2, rel=0.02)
        assert staleness["tumbling", "EAGER", size] == pytest.approx(1 / (2 * size), rel=0.02)
        append, shedding, lazy, eager = (
            staleness["overlapping", name, size] for name in ("AQ", "AQ-RWS", "LAZY", "EAGER")
        )
        assert eager < lazy < shedding < append


@pytest.mark.long
def test_eager_loses_to_lazy_where_arrivals_have_gaps_and_wins_where_they_are_regular() -> None:
    rows = figure_14(SMALL).to_pylist()
    ratio = {(r["arrivals"], r["size"]): r["ratio"] for r in rows if r["windows_of"] == "the key's tuples"}
    for size in SMALL.sizes_14:
        assert ratio["in turn", size] < 1
        assert ratio["zipf 0.9", size] > 1
    assert min(ratio[name, 2] for name in ("zipf 0", "zipf 0.5", "zipf 0.9")) > 1
    for name in ("zipf 0", "zipf 0.5", "zipf 0.9"):
        by_size = [ratio[name, size] for size in SMALL.sizes_14]
        assert all(left > right for left, right in pairwise(by_size))


def test_append_windows_equal_a_loop_over_all_tuples_and_windows() -> None:
    size, slide, arrivals, cost = 4, 2, 40, 3
    free, staleness, delivered = 0, 0.0, []
    for tuple_ in range(arrivals):
        windows = [w for w in range(arrivals) if w * slide <= tuple_ < w * slide + size]
        free = max(free, tuple_) + cost * len(windows)
        delivered += [(free, w) for w in windows if tuple_ == w * slide + size - 1]
    known = 0
    for half in range(2 * arrivals):
        at = half / 2 + 0.25
        known = sum(time <= at for time, _ in delivered)
        staleness += max(at - (known * slide + size - 1), 0) / 2
    outcome = append_windows(size, slide, arrivals, cost * UNIT_US)
    assert outcome.application_units == pytest.approx(staleness / arrivals)
    assert outcome.delivered == known


def test_a_window_that_closes_without_a_tuple_is_delivered_at_once() -> None:
    times = np.array([0, 1, 9]) * UNIT_US
    trace = Trace(times, np.zeros(3, np.int64), 12 * UNIT_US)
    outcome = simulate_windows(WindowMode.EAGER, 4, 4, trace, np.array([0, 1, 9]), UNIT_US)
    assert outcome.delivered == 1
    assert outcome.application_units == 0


def test_panes_of_its_own_count_a_keys_tuples() -> None:
    trace = Trace(np.arange(5), np.array([2, 0, 2, 2, 0]), 5)
    assert own_panes(trace).tolist() == [0, 0, 1, 2, 1]


def test_a_snapshot_comes_in_units_of_a_bounded_size() -> None:
    queue = WindowQueue(WindowMode.LAZY, 4, 1, PAYLOAD, Policy.FIFO, unit_rows=6)
    for pane in range(6):
        for key in range(7):
            _one(queue, pane, pane, key=key)
    units = list(queue.snapshot())
    assert len(units) > 3
    assert sum(unit.blocks["rows"].num_rows for unit in units) == queue.rows_held
    other = WindowQueue(WindowMode.LAZY, 4, 1, PAYLOAD, Policy.FIFO)
    other.restore(units)
    served, expected = other.dequeue(7, 9), queue.dequeue(7, 9)
    assert served.rows.equals(expected.rows)
    assert served.ids.tolist() == expected.ids.tolist() == list(range(7))


def test_the_budget_holds_back_commits_while_complete_windows_are_left_over() -> None:
    queue = WindowQueue(WindowMode.EAGER, 2, 2, PAYLOAD, Policy.FIFO)
    for key in range(4):
        _one(queue, 0, key=key)
    assert len(queue.dequeue(4, 1)) == 0
    for key in range(4, 6):
        _one(queue, 0, key=key)
    _nothing(queue, watermark=2)
    assert queue.servable == 6
    served = [queue.dequeue(3, 1).ids.tolist() for _ in range(2)]
    # Three of the four committed; then the one left over and, within the limit, what waits.
    assert served == [[0, 1, 2], [3, 4, 5]]
    assert queue.servable == 0
