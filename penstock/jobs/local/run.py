"""Run a pipeline on the local engine until it ends or is stopped."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import _durable
from penstock._clock import monotonic_s, now_us, pause
from penstock._kernels import on_first_compilation
from penstock.checkpointing.spark_checkpoint import local_path
from penstock.conf.document import Document
from penstock.conf.pipeline import Pipeline, Query
from penstock.errors import InvalidUsageError, PenstockError, UnavailableError
from penstock.jobs.following.batches import Batch, Totals, batch_printer
from penstock.jobs.local.pipeline import open_pipeline
from penstock.jobs.signals import StopSignals
from penstock.local_engine.query import LocalBatch
from penstock.local_engine.start import RESULTS
from penstock.monitoring.batch import OperatorBatch
from penstock.units import parse_address, parse_duration_us

if TYPE_CHECKING:
    from penstock.jobs.dashboard.dashboard import Dashboard

__all__ = ["AVAILABLE_NOW", "run_local"]

AVAILABLE_NOW = "available_now"
_POLL_S = 0.002
_SIGNAL_S = 0.1


def run_local(
    pipeline: Pipeline,
    on_batch: Callable[[Batch], None] | None = None,
    *,
    document: Document | None = None,
    dashboard: Dashboard | None = None,
) -> Totals:
    """Run a pipeline in this process until its input ends, or SIGINT or SIGTERM stops it.

    Call this function on the main thread.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    on_batch : callable, optional
        Called with each micro-batch of the results; by default a line is printed.
    document : Document, optional
        The positions of the pipeline's fields, for errors.
    dashboard : Dashboard, optional
        Shows the run.

    Raises
    ------
    InvalidUsageError
        If the local engine cannot run the pipeline, or another process runs with its checkpoint.
    PenstockError
        If a micro-batch fails.
    """
    totals = Totals()
    chosen_s = 0.0
    with StopSignals() as signals, ExitStack() as stack:
        show = on_batch
        if show is None:
            show = stack.enter_context(batch_printer(later_steps=pipeline.later_steps))
            stack.enter_context(on_first_compilation(lambda line: print(line, file=sys.stderr, flush=True)))
        stack.enter_context(_only_run(pipeline.query.checkpoint))
        if signals.received is not None:
            return replace(totals, signal=signals.received)
        try:
            # Servers that do not answer are called for a minute.
            with StopSignals(raises=True):
                running = open_pipeline(pipeline, document)
        except (KeyboardInterrupt, SystemExit):
            if signals.received is None:
                raise
            return replace(totals, signal=signals.received)
        metrics = _MetricsFile(pipeline)
        exports = _open_exports(pipeline.query, stack)
        if dashboard is not None:
            dashboard.show_checkpoint(running.checkpoint, None)
            if not dashboard.follows_file:
                exports.append(dashboard.history.add)

        def note(done: LocalBatch) -> None:
            nonlocal totals, chosen_s
            metrics.write(done)
            for export in exports:
                export([_operator_batch(done, pipeline.query.name)])
            batch = _batch(done)
            totals = totals.plus(batch)
            show(batch)
            if done.query == RESULTS:
                chosen_s = done.metrics.interval_ms / 1000

        def is_stopped() -> bool:
            return signals.received is not None

        trigger = pipeline.query.trigger
        if trigger == AVAILABLE_NOW:
            with _errors_of_run(document):
                running.run_available(note, is_stopped)
            return replace(totals, signal=signals.received)
        fixed_s = None if trigger is None else parse_duration_us(trigger) / 1e6
        while not is_stopped():
            begin_s = monotonic_s()
            with _errors_of_run(document):
                ran = running.step(note)
            # Without a trigger, the contract of the results' queue chooses the interval.
            next_s = begin_s + (fixed_s if fixed_s is not None else chosen_s if ran else 0.0)
            if not ran:
                pause(_POLL_S)  # poll, because other processes do not announce new rows
            while not is_stopped() and (left_s := next_s - monotonic_s()) > 0:
                pause(min(left_s, _SIGNAL_S))  # wait until the next trigger
    return replace(totals, signal=signals.received)


@contextmanager
def _only_run(checkpoint: str | None) -> Iterator[None]:
    """Lock a checkpoint, so that no other process runs with it. The lock ends with this process.

    Raises
    ------
    InvalidUsageError
        If another process has locked the checkpoint.
    UnavailableError
        If the file system refuses.
    """
    path = None if checkpoint is None else local_path(checkpoint)
    if path is None:  # a temporary checkpoint, or one that the engine refuses
        yield
        return
    is_new = not path.exists()
    _durable.make_directory(path)
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UnavailableError("the checkpoint cannot be opened", checkpoint=path) from error
    try:
        _lock(lock, path)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may still hold the descriptor
        os.close(lock)
        if is_new and path.is_dir() and not any(path.iterdir()):  # of a refused start
            _durable.delete_tree(path)


def _lock(directory: int, path: Path) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidUsageError(
            "another process runs with this checkpoint",
            checkpoint=path,
            hint="stop that process, or give each run its own query.checkpoint and output",
        ) from None
    except OSError as error:
        raise UnavailableError("the checkpoint cannot be locked", checkpoint=path) from error


@contextmanager
def _errors_of_run(document: Document | None) -> Iterator[None]:
    """Mark errors as errors of a micro-batch. If an error names a source, add the line of this source."""
    try:
        yield
    except PenstockError as error:
        error.while_running = True
        if document is not None and "source" in error.context:
            line = document.place(tuple(str(error.context["source"]).split(".")))
            error.add_context(pipeline=line)
        raise


def _open_exports(query: Query, stack: ExitStack) -> list[Callable[[Iterable[OperatorBatch]], None]]:
    """Open the exports of metrics that a pipeline asks for; the stack closes them."""
    exports: list[Callable[[Iterable[OperatorBatch]], None]] = []
    if query.prometheus is not None:
        from penstock.monitoring.prometheus import PrometheusServer  # few runs have it

        server = PrometheusServer(*parse_address(query.prometheus))
        stack.callback(server.close)
        exports.append(server.exporter.add)
    if query.opentelemetry:
        from penstock.monitoring.opentelemetry import OpenTelemetryExporter, otlp_provider

        provider: Any = otlp_provider()
        stack.callback(provider.shutdown)
        exports.append(OpenTelemetryExporter(provider).add)
    return exports


def _query_name(done: LocalBatch, name: str) -> str:
    return name if done.query == RESULTS else f"{name}.{done.query}"


def _start_of(done: LocalBatch) -> str:
    return datetime.fromtimestamp(now_us() / 1e6 - done.duration_ms / 1e3, UTC).isoformat()


def _operator_batch(done: LocalBatch, name: str) -> OperatorBatch:
    return OperatorBatch(
        query=_query_name(done, name),
        query_id=done.query_id,
        batch_id=done.number,
        timestamp=_start_of(done),
        operator=done.operator,
        batch_ms=round(done.duration_ms),
        bad_records=done.bad_records,
        metrics=done.metrics,
    )


def _batch(done: LocalBatch) -> Batch:
    metrics = done.metrics
    stale = metrics.application_staleness.summary()
    return Batch(
        number=done.number,
        rows_in=metrics.rows_in,
        emitted=metrics.emitted,
        conflated=metrics.conflated,
        late=metrics.late,
        duplicates=metrics.duplicates,
        dropped=metrics.dropped,
        bad_records=done.bad_records,
        waiting_keys=metrics.waiting_keys,
        committed=metrics.committed,
        rejected=metrics.rejected,
        duration_ms=round(done.duration_ms),
        new_input=done.new_input,
        staleness_ms=stale["avg"],
        staleness_p95_ms=stale["p95"],
        query="" if done.query == RESULTS else done.query,
    )


class _MetricsFile:
    """Appends the metrics of micro-batches to the pipeline's file, if it names one."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._path = None if pipeline.query.metrics is None else Path(pipeline.query.metrics)
        self._name = pipeline.query.name
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)

    def write(self, done: LocalBatch) -> None:
        if self._path is None:
            return
        entry = {
            "query": _query_name(done, self._name),
            "query_id": done.query_id,
            "batch_id": done.number,
            "timestamp": _start_of(done),
            "operator": done.operator,
            "batch_ms": round(done.duration_ms, 3),
            "bad_records": done.bad_records,
            **done.metrics.summary(),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
