"""Test a pipeline without Spark, sources and sink: the test passes rows and time, and reads results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa

from penstock import _failpoints
from penstock._clock import SimulatedClock
from penstock.conf.document import PipelineError
from penstock.errors import InternalError, InvalidUsageError
from penstock.records.python_rows import TIME_HINT, Localize, in_utc, to_table
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    from penstock.checkpointing.p_stream.reader import PStreamReader
    from penstock.conf.document import Document
    from penstock.conf.pipeline import Pipeline
    from penstock.local_engine.inputs import PushInput
    from penstock.local_engine.query import LocalBatch
    from penstock.local_engine.start import LocalGraph

__all__ = ["START", "CrashPoint", "LocalTest", "PipelineTest", "parse_start", "pipeline"]

CrashPoint: TypeAlias = Literal["plan", "write", "commit"]
"""The step after which a process dies: a micro-batch's plan, the write of its results, or its commit."""

START: Final = "2026-01-01T00:00:00Z"
"""The time at which a test begins, by default."""

_LATE_ROWS: Final = "late-rows"


class LocalTest:
    """The common part of `PipelineTest` and `GraphTest`.

    `send` replaces the sources, `rows` replaces the sink, and the checkpoint is temporary. Operators, state,
    commits and restarts are the same as in production.

    Sent rows wait for the next trigger. If rows wait, `advance` and `rows` begin with a trigger.

    Parameters
    ----------
    inputs : mapping of str to PushInput
        The sources by their names.
    directory : pathlib.Path
        The directory for the checkpoint and the state.
    interval : str, optional
        The time between triggers in `advance`. By default, `advance` triggers once, at its end.
    start : datetime
        The time at which the test begins.
    localize : callable
        Gives a zone to times of rows without a zone.
    """

    def __init__(
        self,
        inputs: Mapping[str, PushInput],
        directory: Path,
        interval: str | None,
        start: datetime,
        localize: Localize = in_utc,
    ) -> None:
        self.localize = localize
        self._inputs = dict(inputs)
        self._directory = directory
        self._interval = interval
        self.clock = SimulatedClock(round(start.timestamp() * 1e6))
        self._results: dict[int, pa.Table] = {}
        self._taken = -1
        self._rows_wait = self._is_interrupted = False
        self._late_rows: dict[str, PStreamReader] = {}
        self.metrics: list[dict[str, Any]] = []
        """The metrics of each committed micro-batch, in the form of `penstock.metrics`."""
        self._running: LocalGraph = self._open()

    def _open(self) -> LocalGraph:
        raise InternalError("a test opens nothing")

    def _open_results(self, schema: Any, checkpoint: str) -> _Results:
        return _Results(self._results, schema)

    @property
    def now(self) -> datetime:
        """The time of the test."""
        return datetime.fromtimestamp(self.clock() / 1e6, UTC)

    def send(self, rows: Sequence[Mapping[str, Any]] | pa.Table, to: str = "source") -> None:
        """Pass rows to a source.

        Parameters
        ----------
        rows : sequence of mapping or pyarrow.Table
            The rows. Columns that a row leaves out are null. Times may be ISO texts. Times without a zone are
            in the pipeline's ``spark.sql.session.timeZone``, by default UTC; in a table, always in UTC.
        to : str
            The source: ``source`` for the pipeline's own source, ``with`` for the other side of a join, or
            the name of an input of a union.

        Raises
        ------
        InvalidUsageError
            If there is no such source or column, or a value does not fit.
        """
        from penstock.conf.values import did_you_mean

        if to not in self._inputs:
            hint = did_you_mean(to, list(self._inputs), f"the sources are {', '.join(self._inputs)}")
            raise InvalidUsageError(f"there is no source {to!r}", hint=hint)
        source = self._inputs[to]
        source.send(to_table(rows, source.arrow, localize=self.localize))
        self._rows_wait = True

    def trigger(self) -> None:
        """Run a micro-batch if rows have arrived or keys wait.

        Raises
        ------
        PenstockError
            If the micro-batch fails.
        """
        if self._is_interrupted:  # this micro-batch runs again, and has no rows that arrived after the crash
            self._is_interrupted = False
        else:
            self._rows_wait = False
        self._running.step(self._note)

    def _trigger_while_rows_wait(self) -> None:
        while self._is_interrupted or self._rows_wait:
            self.trigger()

    def _note(self, batch: LocalBatch) -> None:
        self.metrics.append(
            {
                "query": batch.query,
                "batch_id": batch.number,
                "operator": batch.operator,
                **batch.metrics.summary(),
            }
        )

    def advance(self, duration: str | timedelta) -> None:
        """Let time pass. The pipeline triggers at each interval, or once at the end if it has no interval.

        Raises
        ------
        InvalidUsageError
            If the duration is not valid.
        """
        self._trigger_while_rows_wait()
        left = parse_duration_us(duration)
        step = left if self._interval is None else parse_duration_us(self._interval)
        while left > 0:
            passed = min(step, left)
            self.clock.advance(passed)
            left -= passed
            self.trigger()

    def rows(self) -> list[dict[str, Any]]:
        """Return the results since the last call, in order."""
        rows: list[dict[str, Any]] = self.table().to_pylist()
        return rows

    def table(self) -> pa.Table:
        """Return the same results as `rows`, as a table."""
        self._trigger_while_rows_wait()
        new = [table for number, table in sorted(self._results.items()) if number > self._taken]
        self._taken = max(self._results, default=-1)
        return pa.concat_tables([self._schema.empty_table(), *new])

    def late_rows(self) -> list[dict[str, Any]]:
        """Return the rows since the last call that an operator with ``late_to`` dropped, in order.

        The test keeps these rows in a temporary directory; the p-stream that ``late_to`` names stays as it
        is. Like `rows`, this method triggers first if rows wait.

        Raises
        ------
        InvalidUsageError
            If no operator has ``late_to``.
        """
        from penstock.checkpointing.p_stream.reader import PStreamReader

        self._trigger_while_rows_wait()
        late = self._directory / _LATE_ROWS
        if not late.exists():
            raise InvalidUsageError("no operator keeps its late rows", hint="give it late_to")
        found: list[dict[str, Any]] = []
        for place in sorted(late.iterdir()):
            if place.name not in self._late_rows:
                self._late_rows[place.name] = PStreamReader(place)
            found += self._late_rows[place.name].read().to_pylist()
        return found

    @property
    def _schema(self) -> pa.Schema:
        from penstock.spark_ext.border.types import as_arrow_of_spark

        return as_arrow_of_spark(self._running.schema)

    @property
    def waiting_keys(self) -> int:
        """The number of keys that wait to be served."""
        return int(self.metrics[-1]["waiting_keys"]) if self.metrics else 0

    @property
    def staleness_ms(self) -> dict[str, float]:
        """The application staleness since the previous micro-batch: ``avg``, ``p95`` and ``max``."""
        found: dict[str, float] = self.metrics[-1]["application_staleness_ms"] if self.metrics else {}
        return found

    def restart(self) -> None:
        """End the process and start another process; state that is not durable is lost."""
        self._running = self._open()

    def crash(self, at: CrashPoint = "write") -> None:
        """Run a micro-batch whose process dies before its end, and start another process.

        The next trigger runs the micro-batch again.

        Parameters
        ----------
        at : {"plan", "write", "commit"}
            The step after which the process dies.

        Raises
        ------
        InvalidUsageError
            If no micro-batch would run, because no rows arrived and no keys wait.
        """
        point = f"local.after_{at}"
        if point not in _failpoints.LOCAL_POINTS:
            raise InvalidUsageError("there is no such point to crash at", at=at, known="plan, write, commit")
        with _failpoints.armed({point: "error"}):
            try:
                self._running.step(lambda batch: None)
            except _failpoints.InjectedError:
                # Rows that arrived after an earlier crash are not in this micro-batch.
                self._rows_wait = self._rows_wait and self._is_interrupted
                self._is_interrupted = True
                self.restart()
                return
        raise InvalidUsageError("no micro-batch ran that could crash", hint="send rows before")


class PipelineTest(LocalTest):
    """A pipeline under test.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    document : Document
        The positions of the pipeline's fields, for errors.
    directory : pathlib.Path
        The directory for the checkpoint and the state.
    schemas : mapping of str to str
        The columns of sources by their names, as DDL, for sources that do not declare them.
    start : str or datetime
        The time at which the test begins.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        document: Document,
        directory: Path,
        schemas: Mapping[str, str],
        start: str | datetime,
    ) -> None:
        from penstock.jobs.local.pipeline import source_schemas
        from penstock.local_engine.inputs import PushInput

        self._pipeline = pipeline
        self._document = document
        inputs = {name: PushInput(schema) for name, schema in source_schemas(pipeline, schemas).items()}
        trigger = pipeline.query.trigger
        interval = None if trigger == "available_now" else trigger
        localize = _in_zone(pipeline.query.spark.get("spark.sql.session.timeZone", "UTC"))
        super().__init__(inputs, directory, interval, parse_start(start, localize), localize)

    def _open(self) -> LocalGraph:
        from penstock.jobs.local.pipeline import Places, open_pipeline
        from penstock.local_engine.checks import USE_SPARK

        places = Places(
            dict(self._inputs), self._open_results, str(self._directory / "checkpoint"), self.clock
        )
        try:
            return open_pipeline(self._pipeline, self._document, places)
        except PipelineError as error:
            hint = "a test runs on the local engine; test this pipeline on Spark"
            raise PipelineError([one.replace(USE_SPARK, hint) for one in error.problems]) from None


class _Results:
    """Keeps the results of each micro-batch across restarts."""

    def __init__(self, results: dict[int, pa.Table], schema: Any) -> None:
        from penstock.spark_ext.border.types import as_arrow_of_spark

        self._results = results
        self._schema = as_arrow_of_spark(schema)

    def write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> None:
        """Keep the results of a micro-batch.

        Raises
        ------
        InvalidUsageError
            If the micro-batch ran before and had other rows.
        """
        table = pa.Table.from_batches(list(rows), self._schema)
        before = self._results.setdefault(batch, table)
        if not before.equals(table) and repr(before.to_pylist()) != repr(table.to_pylist()):
            raise InvalidUsageError(
                "a micro-batch that runs again has other results",
                batch=batch,
                hint="a function of the pipeline depends on more than its rows",
            )


@contextmanager
def pipeline(
    reference: str | Path,
    overrides: Sequence[str] = (),
    *,
    schemas: Mapping[str, str] | None = None,
    start: str | datetime = START,
) -> Iterator[PipelineTest]:
    """Open a pipeline for a test, in a temporary directory.

    Parameters
    ----------
    reference : str or pathlib.Path
        The pipeline's file, or the name of a packaged example.
    overrides : sequence of str
        The changes of the pipeline, each as ``section.field=value``.
    schemas : mapping of str to str, optional
        For each source (``source``, ``with``, or the name of a union's input), its columns as DDL. By default
        sources have the columns that the pipeline declares.
    start : str or datetime
        The time at which the test begins.

    Yields
    ------
    PipelineTest

    Raises
    ------
    PipelineError
        If the file is wrong, or the local engine cannot run it.

    Examples
    --------
    >>> import penstock.testing
    >>> with penstock.testing.pipeline("market") as test:
    ...     test.send([{"symbol": "A", "time": "2026-01-01T00:00:00Z", "price": 1.0, "volume": 5}])
    ...     [row["price"] for row in test.rows()]
    [1.0]
    """
    from penstock.conf.pipeline import load_document, redirect_late_rows
    from penstock.jobs.cluster.modules import import_beside

    loaded, document = load_document(str(reference), overrides)
    import_beside(loaded, reference)
    query = loaded.query.model_copy(update={"checkpoint": None, "state_location": None})
    loaded = loaded.model_copy(update={"query": query, "engine": "local"})
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as directory:
        quiet = redirect_late_rows(loaded, late_place(Path(directory)))
        yield PipelineTest(quiet, document, Path(directory), schemas or {}, start)


def late_place(directory: Path) -> Callable[[str], str]:
    """Return a function from an operator's name to the temporary p-stream of its late rows."""
    return lambda name: str(directory / _LATE_ROWS / name)


def _in_zone(zone: str) -> Localize:
    """Return a function that gives times a zone as a run does for records of files."""

    def localize(moment: datetime) -> datetime:
        from penstock.local_engine.field_texts import to_instants

        times = pa.chunked_array([pa.array([moment], pa.timestamp("us"))])
        localized: datetime = to_instants(times, zone).cast(pa.timestamp("us", "UTC"))[0].as_py()
        return localized

    return in_utc if zone == "UTC" else localize


def parse_start(start: str | datetime, localize: Localize = in_utc) -> datetime:
    """Return the time at which a test begins; `localize` gives it a zone if it has none.

    Raises
    ------
    InvalidUsageError
        If a text is not a time.
    """
    try:
        begin = datetime.fromisoformat(start) if isinstance(start, str) else start
        if not isinstance(begin, datetime):
            raise ValueError
    except ValueError:
        raise InvalidUsageError("the start is not a time", start=start, hint=TIME_HINT) from None
    return begin if begin.tzinfo else localize(begin)
