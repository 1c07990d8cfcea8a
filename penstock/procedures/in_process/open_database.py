"""The tables of a database in this process, and transactions over them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidUsageError, PenstockError
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.engine import TableSet, event_schema, result_schema
from penstock.procedures.in_process.arrow_rows import as_arrow, as_structs, batches_of
from penstock.procedures.in_process.command_log import Call, CommandLog
from penstock.procedures.in_process.open_programs import OpenPrograms
from penstock.procedures.in_process.open_tables import open_tables
from penstock.procedures.in_process.replay import ANSWER, LOAD, replay
from penstock.procedures.in_process.request_queue import Request, RequestQueue, answer
from penstock.procedures.in_process.snapshot import Snapshot
from penstock.procedures.in_process.strong_recovery import StrongRecovery
from penstock.procedures.parallel.evaluation import Evaluation
from penstock.procedures.partitions.design import PartitionDesign
from penstock.procedures.partitions.explain import explain_partitions
from penstock.procedures.partitions.predicted.run import use_predictor
from penstock.procedures.requests.messages import ANSWERS, REQUESTS
from penstock.procedures.requests.run import REMEMBERED_REQUESTS, answer_requests
from penstock.procedures.schema import TableSpec
from penstock.procedures.workflows.batches import bounds_of
from penstock.speculating.in_process.queued_groups import MAX_PLANNED, QueuedGroups, speculated_calls
from penstock.speculating.in_process.speculation import use_speculation
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    from penstock.procedures.databases import Database
    from penstock.procedures.partitions.predicted.prediction import StoredPredictor
    from penstock.procedures.replicas.log_follower import LogFollower

__all__ = ["OpenDatabase"]

T = TypeVar("T")


class OpenDatabase:
    """The tables of a database in this process's memory. Threads may share it; calls run one after the other.

    Calls of several threads, and transactions of `submit`, become durable together in one sync.

    Parameters
    ----------
    database : Database
        The tables and procedures; procedures may be added while the database is open.
    location, recovery, commit_interval, partitions, ranges
        See `Database.open`.
    follower : LogFollower, optional
        A replica's copy of the tables, which makes recovery short.
    evaluation, design, predictor, speculate
        See `Database.open`.

    Attributes
    ----------
    evaluation : Evaluation
        Evaluates batches of events on several threads, and counts what they did.
    """

    def __init__(
        self,
        database: Database,
        location: str | os.PathLike[str] | None = None,
        recovery: Literal["weak", "strong"] = "weak",
        commit_interval: str | timedelta = "0ms",
        partitions: int = 1,
        ranges: Mapping[str, Sequence[Any]] | None = None,
        follower: LogFollower | None = None,
        evaluation: str | Evaluation = "serial",
        design: PartitionDesign | str | os.PathLike[str] | None = None,
        predictor: StoredPredictor | None = None,
        speculate: bool | str = False,
    ) -> None:
        self.evaluation = Evaluation(evaluation) if isinstance(evaluation, str) else evaluation
        interval_s = parse_duration_us(commit_interval) / 1e6
        if recovery not in ("weak", "strong"):
            raise InvalidUsageError("there is no such recovery", recovery=recovery, hint="use weak or strong")
        if not (location is None or isinstance(location, str | os.PathLike)):
            raise InvalidUsageError("the location of a database is not a path", got=type(location).__name__)
        if location is None and recovery == "strong":
            raise InvalidUsageError(
                "only a database in a directory has strong recovery", hint="give open() a location"
            )
        tables = (*database.catalog.all_tables.values(), REMEMBERED_REQUESTS)
        placed: Sequence[TableSpec] = tables
        several, routing = dict[str, tuple[str, ...]](), dict[str, str]()
        if design is not None:
            if partitions != 1 or ranges:
                raise InvalidUsageError(
                    "a design determines the partitions", hint="leave out partitions= and ranges="
                )
            chosen = PartitionDesign.load(design)
            placed = chosen.apply(database.name, tables)
            chosen.check_routes(database.procedures, placed)
            partitions, ranges, several = chosen.partitions, chosen.ranges, chosen.several
            routing = dict(chosen.routing)
        if recovery == "strong" and partitions != 1:
            raise InvalidUsageError(
                "strong recovery has one partition", partitions=partitions, hint='use recovery="weak"'
            )
        self._database = database
        self._closed, self._broken = False, cast(PenstockError | None, None)
        self._lock = threading.RLock()
        self._queue: RequestQueue | None = None
        self._log: CommandLog | None = None
        self._strong: StrongRecovery | None = None
        self._state = open_tables(placed, partitions, ranges or {}, [REMEMBERED_REQUESTS.name], several)
        self._programs = OpenPrograms(database, {spec.name for spec in tables})
        if isinstance(self._state, TableSet):
            self._state.evaluation = self.evaluation
        elif self.evaluation.mode != "serial":
            raise InvalidUsageError(
                "partitions run serially", evaluation=self.evaluation.mode, hint="use partitions=1"
            )
        use_predictor(self._state, database.name, predictor, routing)
        if speculate is not False:
            use_speculation(self._state, database, speculate)
        if location is None:
            return
        try:
            self._log = CommandLog(location, database.name, tables, interval_s)
            strong = StrongRecovery(self._state, self._log)
            calls = None
            if follower is not None and (calls := follower.hand_over(self._log)) is not None:
                copy = follower.copy
                self._state.close()
                self._state, self._programs, strong = copy.state, copy.programs, copy.strong
            if calls is None:
                calls = self._log.restore(self._state)
            replay(calls, self._state, self._programs, strong)
            self._strong = strong if recovery == "strong" else None
        except BaseException:  # any error closes the database, and is raised again
            if self._log is not None:
                self._log.close()
            self._state.close()
            raise

    def __enter__(self) -> OpenDatabase:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Run the queued transactions, store the tables if there is a location, and close the database.

        Closing twice is not an error.
        """
        with self._lock:
            queue, self._queue = self._queue, None
            self._closed = True
        if queue is not None:
            queue.close()
        with self._lock:
            log, self._log = self._log, None
            if log is not None:
                with contextlib.closing(log):
                    if log.failure is None:  # callers that waited for the log have its error
                        log.checkpoint(self._state)
            self._state.close()

    def checkpoint(self) -> None:
        """Store the tables, so that the next `Database.open` need not run earlier calls again.

        The database also makes checkpoints automatically.

        Raises
        ------
        UnavailableError
            If the file system refuses. Then open the database again; no call is lost.
        """
        with self._lock:
            self.check_open()
            if self._log is not None:
                with self._abandon_on_error():
                    self._log.checkpoint(self._state)

    def _perform(self, call: Call, change: Callable[[], T], *harmless: type[Exception]) -> T:
        """Change the tables and log the call; an error in `harmless` leaves the tables unchanged."""
        with self._abandon_on_error(*harmless):
            result = change()
        speculated = speculated_calls(self._state)
        if self._log is None:
            self._state.forget_deleted()
            return result
        with self._abandon_on_error():
            for one in (call, *speculated):
                self._log.append(one)
            self._checkpoint_if_due()
        return result

    @contextlib.contextmanager
    def _durable_at_exit(self) -> Iterator[None]:
        """Hold the lock; after releasing it, wait until all logged calls are durable."""
        with self._lock:
            self.check_open()
            yield
            log = self._log
            end = log.end if log is not None else 0
        if log is not None:
            try:
                log.wait(end)
            except PenstockError:
                with self._lock:
                    self.abandon()
                raise

    def _checkpoint_if_due(self) -> None:
        if self._log is not None and self._log.checkpoint_is_due:
            self._log.checkpoint(self._state)

    @contextlib.contextmanager
    def _abandon_on_error(self, *harmless: type[Exception]) -> Iterator[None]:
        """Refuse further calls after an error or interrupt, because the tables may be half changed."""
        try:
            yield
        except harmless:
            raise
        except BaseException:  # even after Ctrl-C the tables may be ahead; raise it again
            self.abandon()
            raise

    def abandon(self) -> None:
        """Refuse further calls, because the tables may be half changed, or ahead of the log."""
        log, self._log = self._log, None
        halfway = InvalidUsageError("a call failed halfway", hint="open the database again")
        self._broken = self._broken or (halfway if log is None else log.refusal)  # closing may fail
        if log is not None:
            log.close()
            self._broken = log.refusal

    def load(self, table: str, rows: pa.Table | pa.RecordBatch | Mapping[str, Any]) -> None:
        """Insert rows with new keys into a table.

        Raises
        ------
        InvalidUsageError
            If a key exists already, or a column does not fit.
        """
        with self._durable_at_exit():
            spec, columns = self._programs.table(table), as_arrow(rows, owner=table)
            spec.check_known(columns.schema.names)
            for batch in batches_of(columns, spec.schema, owner=table):
                change = partial(self._state.load, table, batch)
                self._perform(Call(LOAD + table, "", batch), change, InvalidUsageError)

    def call(self, procedure: str, /, *positional: Never, **attributes: Any) -> dict[str, Any]:
        """Run one transaction, or one round of a workflow; return the results and ``rejected``.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or an attribute does not fit.
        """
        self._programs.check_call(procedure, positional, attributes)
        event = pa.RecordBatch.from_struct_array(as_structs([attributes], owner=procedure))
        return self.run(procedure, event).to_pylist()[0]

    def run(
        self,
        procedure: str,
        events: pa.Table | pa.RecordBatch | Mapping[str, Any],
        *,
        batch: str | None = None,
    ) -> pa.Table:
        """Run a transaction, or a round of a workflow, for each row in order; return a table of results.

        The last column, ``rejected``, has the reason why a transaction was rejected; it is null if the
        transaction was committed.

        Parameters
        ----------
        procedure : str
            The name of a procedure or workflow.
        events : pyarrow.Table, pyarrow.RecordBatch or dict of columns
            A row for each event, with the attributes of the event as columns.
        batch : str, optional
            The column that separates the atomic batches of a workflow: consecutive rows with an equal value
            are one batch. By default each row is a batch.

        Raises
        ------
        InvalidUsageError
            If there is no such procedure, or a column does not fit.
        """
        with self._durable_at_exit():
            return self._run(procedure, as_arrow(events, owner=procedure), batch)

    def _run(self, procedure: str, events: pa.Table | pa.RecordBatch, batch: str | None = None) -> pa.Table:
        """Run transactions, and return their results, which are not durable yet."""
        program = self._programs.find(procedure, events.schema)
        results = []
        bounds = None if batch is None else bounds_of(program, events, batch)
        for rows in batches_of(events, event_schema(program.event), owner=procedure):
            if self._strong is not None and program.stages:
                results.append(self._run_strong(self._strong, program, rows, bounds))
                continue
            change = partial(self._state.run, program, rows, bounds)
            # Procedures that Python runs change the tables only after they have run.
            harmless = Exception if isinstance(program, PlainProgram) else InvalidUsageError
            results.append(self._perform(Call(procedure, program.digest, rows, bounds), change, harmless))
        return pa.Table.from_batches(results, result_schema(program))

    def submit(self, procedure: str, /, *positional: Never, **attributes: Any) -> Future[dict[str, Any]]:
        """Queue one transaction, or a round of a workflow; return a future with the result of `call`.

        Queued transactions run in order, and become durable together. `submit` waits while 65,536
        transactions are queued. A callback of the future must not wait for the database.

        Raises
        ------
        InvalidUsageError
            If the database is closed. The future raises the errors of `call`.
        """
        self._programs.check_call(procedure, positional, attributes)
        with self._lock:
            self.check_open()
            if self._queue is None:
                self._queue = RequestQueue(self._run_groups)
            queue = self._queue
        return queue.put(Request(procedure, attributes))

    def answer(self, requests: pa.Table) -> pa.Table:
        """Run each request once, even if it is sent again; return an answer for each request.

        The database remembers its last 131,072 requests with their answers.

        Parameters
        ----------
        requests : pyarrow.Table
            Each request has an id, the procedure, and the arguments as a JSON object; see
            `penstock.procedures.requests.messages.REQUESTS`.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or has the wrong type.
        """
        with self._durable_at_exit():
            programs = self._programs.requests()
            answers = [
                self._perform(
                    Call(ANSWER, programs.digest, rows),
                    partial(answer_requests, self._state, rows, programs, 0),
                )
                for rows in batches_of(requests, REQUESTS, owner="requests")
            ]
        answered = pa.Table.from_batches(answers, ANSWERS)
        return answered.replace_schema_metadata(programs.types(answered["procedure"].to_pylist()))

    def _run_groups(self, groups: list[Sequence[Request]], max_planned: int = MAX_PLANNED) -> None:
        """Run groups in order; if the database speculates, run requests of later groups at the same time."""
        queued = QueuedGroups(groups, self._state, self._programs, max_planned)
        for group in queued:
            self._run_group(group, queued.offer_later())
            queued.answer_speculated(self._answer_when_durable)

    def _run_group(self, group: Sequence[Request], offer: contextlib.AbstractContextManager[None]) -> None:
        """Run requests that call one procedure with the same types of values; answer each when durable."""
        try:
            with self._lock, offer:
                if self._broken is not None:
                    self.check_open()
                rows = as_structs([request.attributes for request in group], owner=group[0].procedure)
                results = self._run(group[0].procedure, pa.RecordBatch.from_struct_array(rows)).to_pylist()
        except BaseException as error:  # callers that wait for the results must get the error
            if len(group) == 1 or not isinstance(error, InvalidUsageError):
                return answer(group, error)
            for request in group:  # one request is wrong: run each request alone
                self._run_group([request], contextlib.nullcontext())
            return None
        return self._answer_when_durable(group, results)

    def _answer_when_durable(self, group: Sequence[Request], results: Sequence[dict[str, Any]]) -> None:
        """Answer requests that have run, once all logged calls are durable."""
        with self._lock:
            log, broken = self._log, self._broken
            end = log.end if log is not None else 0
        if broken is not None:
            return answer(group, broken)
        if log is None:
            return answer(group, results)
        return log.when_durable(end, lambda error: answer(group, results if error is None else error))

    def _run_strong(
        self,
        strong: StrongRecovery,
        program: Program | PlainProgram,
        rows: pa.RecordBatch,
        bounds: npt.NDArray[np.int64] | None,
    ) -> pa.RecordBatch:
        if isinstance(program, PlainProgram):
            raise InvalidUsageError(
                "a workflow with plain=True has no strong recovery",
                workflow=program.name,
                hint='open the database with recovery="weak"',
            )
        with self._abandon_on_error():
            results = strong.run(program, rows, bounds)
            self._checkpoint_if_due()
            return results

    def check_open(self) -> None:
        """Raise the error of a call if the database is closed, fenced, or refuses calls after an error."""
        with self._lock:
            if self._log is not None and self._log.failure is not None:
                self.abandon()
            if self._broken is not None:
                raise self._broken.with_traceback(None)  # each raise would lengthen the old traceback
        if self._closed:
            raise InvalidUsageError("the database is closed", hint="open it again")

    def explain(self) -> str:
        """Describe where rows are and where transactions run, and how many ran over several partitions."""
        with self._lock:
            return explain_partitions(self._database, self._state)

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, in no particular order."""
        return self.snapshot(name).table(name)

    def snapshot(self, *tables: str) -> Snapshot:
        """Return a copy of the named tables, or of all tables, as of one moment between two calls.

        The copy takes memory, and later calls do not change it. The copy may hold transactions that are not
        durable yet.

        Raises
        ------
        InvalidUsageError
            If there is no such table.
        """
        with self._lock:
            specs = [self._programs.table(name) for name in tables or self._database.tables]
            copies = {spec.name: self._state[spec.name].freeze() for spec in specs}
        # Transactions run while the copies are converted.
        return Snapshot({name: pa.Table.from_batches([convert()]) for name, convert in copies.items()})
