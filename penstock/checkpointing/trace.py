"""Algorithm 1 of Scabbard in the runtime: the functions that do the steps, and a trace of the steps.

======  =====================================  ==========================================  ============
line    step                                   function                                    trace
======  =====================================  ==========================================  ============
6-8     a checkpoint marker arrives            Spark starts a micro-batch: every query is  ``arrived``
                                               aligned between micro-batches, so I and R
                                               are empty and the first marker is the last
9-13    checkpoint I, R and Θ                  `BucketStore.commit` writes Θ of a bucket;  ``checkpointed``
                                               Spark's commit log completes the checkpoint
14-15   release: drop what is obsolete         `BucketStore.sweep` deletes state files;    ``deleted``,
        and pass the marker up                 `PStream.trim_from` notes a reader's        ``release``,
                                               release; `PStream.trim` trims the stream    ``trim``
16      retain: persist what follows           every p-stream retains: `SegmentWriter`, or ``persisted``
                                               `StreamWriter` if one sync is for all
17-18   receive a p-unit                       `_StreamReader.partitions`                  ``planned``
19, 25  drop what *PV in* has                  Spark's offset log fixes a micro-batch's
                                               rows; the next one starts at their end
20-21   channels without a marker              none: micro-batches are aligned
22-24   persistTask                            `CommitLog.commit`, after the segments      ``commit``
26-27   queryTask                              `BucketTask.run`, `Operator.run`
28-34   send, unless *PV out* has it           `StreamWriter.commit`: a micro-batch whose  ``commit``
                                               number the log has is dropped
35-36   the last operator releases             `_StreamReader.commit`, by Spark, after     ``done``
                                               the micro-batch is committed
37-38   progress recovery, upstream request    `GraphRecovery`, phases 1 and 2             ``recovered``
39      *PV in*, *PV out*                      rows of the newest committed micro-batch
40      recoveryTasks                          `find_state`, `StateCache.take`             ``found``
======  =====================================  ==========================================  ============

The trace is off unless the environment variable ``PENSTOCK_TRACE`` names a file, to which every process
appends JSON lines, or `tracing` injects a sink. A line is written before an effect that deletes or publishes
something (``commit``, ``release``, ``trim``, ``deleted``), and after any other effect. So the order of the
lines proves the order of the effects. After a ``commit`` succeeds, a line ``committed`` follows. Both lines
name the writer and its session, because another entry may take the number that a commit tried. If one sync
makes both segments and entry durable, ``persisted`` comes between the two. `tests.models.replay` replays a
trace through the model of the protocol (docs/design/0006).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

__all__ = ["TraceSink", "is_traced", "trace", "tracing"]

TraceSink: TypeAlias = Callable[[dict[str, Any]], None]
"""A function that takes an event: its name under ``event``, and its facts as JSON values."""

_VARIABLE = "PENSTOCK_TRACE"


def _append_to(path: str) -> TraceSink:
    """Return a sink that appends lines to a file.

    Each line is one write, so that processes can share the file.
    """

    def append(event: dict[str, Any]) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(event).encode() + b"\n")
        finally:
            os.close(file)

    return append


_sink: TraceSink | None = _append_to(os.environ[_VARIABLE]) if _VARIABLE in os.environ else None


def is_traced() -> bool:
    """Return whether a trace is written, so that callers compute expensive facts only for a trace."""
    return _sink is not None


def trace(event: str, **facts: Any) -> None:
    """Record a step of the protocol, if a trace is written."""
    if _sink is not None:
        _sink({"event": event, **facts})


@contextmanager
def tracing(sink: TraceSink) -> Iterator[None]:
    """Send the events of this process to `sink` within the context."""
    global _sink  # noqa: PLW0603 - one trace for each process
    before, _sink = _sink, sink
    try:
        yield
    finally:
        _sink = before
