"""Named points at which a test can make the process fail.

``PENSTOCK_FAILPOINTS="name=action;name=action"`` arms them. If it is not set, a fail point costs one
dictionary look-up. The action ``kill`` sends SIGKILL to this process, and ``error`` raises `InjectedError`.
With a marker file, as in ``name=error@/path/marker``, the action happens only if the fail point can create
the file. So it happens once, and a retried task passes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "COMPACTION_POINTS",
    "COORDINATOR_POINTS",
    "FAILPOINTS",
    "LOCAL_POINTS",
    "LOG_POINTS",
    "P_STREAM_POINTS",
    "SINK_POINTS",
    "STATE_POINTS",
    "TAKEOVER_POINTS",
    "TASK_ROWS_POINTS",
    "InjectedError",
    "armed",
    "failpoint",
]

STATE_POINTS = (
    "state.before_write",
    "state.after_write",
    "state.after_fsync",
    "state.after_publish",
    "operator.after_enqueue",
    "operator.after_apply",
    "operator.after_commit",
    "operator.before_release",
)
"""Fail points in workers that run a stateful operator."""

P_STREAM_POINTS = ("p_stream.after_segments", "p_stream.after_commit")
"""Fail points in a process that appends to a p-stream."""

COMPACTION_POINTS = ("compaction.after_segments", "compaction.after_commit", "compaction.after_shortening")
"""Fail points in a process that compacts an update log."""

SINK_POINTS = ("sink.after_segments", "sink.before_commit", "sink.after_commit")
"""Fail points of Spark's writes to a p-stream: in a worker, then on the driver."""

TASK_ROWS_POINTS = ("task_rows.before_commit", "task_rows.after_commit")
"""Fail points in workers that commit rows to a p-stream themselves: dropped rows, and answers to requests."""

COORDINATOR_POINTS = ("coordinator.before_continuations", "coordinator.after_continuation")
"""Fail points in the worker that runs transactions over several buckets."""

LOG_POINTS = ("log.before_header", "log.after_write", "log.after_sync")
"""Fail points in a process that appends to the write-ahead log of a database."""

TAKEOVER_POINTS = ("takeover.after_fence", "takeover.after_calls")
"""Fail points in a replica of a database that takes over."""

LOCAL_POINTS = ("local.after_plan", "local.after_write", "local.after_commit")
"""Fail points in a process that runs a pipeline on the local engine."""

FAILPOINTS = (
    *STATE_POINTS,
    *P_STREAM_POINTS,
    *COMPACTION_POINTS,
    *SINK_POINTS,
    *TASK_ROWS_POINTS,
    *COORDINATOR_POINTS,
    *LOG_POINTS,
    *TAKEOVER_POINTS,
    *LOCAL_POINTS,
)
"""All fail points. `failpoint` refuses other names, so tests can iterate over all of them."""

_VARIABLE = "PENSTOCK_FAILPOINTS"


class InjectedError(RuntimeError):
    """Raised by a fail point whose action is ``error``."""


def _parse_armed(text: str) -> dict[str, str]:
    pairs = (entry.split("=", 1) for entry in text.split(";") if entry)
    armed = {name.strip(): action.strip() for name, action in pairs}
    unknown = sorted(set(armed) - set(FAILPOINTS))
    if unknown:
        raise ValueError(f"unknown fail points: {unknown}")
    return armed


_ARMED = _parse_armed(os.environ.get(_VARIABLE, ""))


@contextmanager
def armed(points: Mapping[str, str]) -> Iterator[None]:
    """Arm fail points in this process during a block."""
    before = dict(_ARMED)
    _ARMED.update(points)
    try:
        yield
    finally:
        _ARMED.clear()
        _ARMED.update(before)


def failpoint(name: str) -> None:
    """Fail here if the environment asks for it.

    Raises
    ------
    InjectedError
        If the point's action is ``error`` and its marker file was not there yet.
    """
    action = _ARMED.get(name)
    if action is None:
        return
    kind, _, marker = action.partition("@")
    if marker:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise InjectedError(f"fail point {name}")
