"""Runs transactions in the partitions that a predictor names (H-Store §5.3.3, §5.3.4).

Results and tables are the same as in a serial run in the order of events:

1. If each transaction accesses only the predicted partitions, transactions have the same results in the order
   of `plan` as in the order of events.
2. The kernel stops before an access that was not predicted, before an unpredicted write to a replicated
   table, and where a transaction without an undo log is rejected. Then the call is undone, and the caller
   runs the events without predictions.
3. A call is undone from copies of the tables that the program writes, or by the undo logs of the partitions,
   which keep the entries of the whole call. The logs do not have the changes that forwarded transactions
   made. So a call with logs has only one wave: when its forwarded transactions have ended, no prediction can
   turn out wrong any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.engine import TableSet
from penstock.procedures.partitions.predicted.call import (
    DeviationError,
    Kernel,
    PredictedCall,
    UndoLog,
    tables_written,
)
from penstock.procedures.partitions.predicted.guards import (
    can_guard,
    can_omit_undo,
    can_undo_calls,
    load_guarded,
)
from penstock.procedures.partitions.predicted.prediction import StoredPredictor, TransactionPredictor
from penstock.procedures.partitions.predicted.routing import AttributePredictor

if TYPE_CHECKING:
    from penstock.procedures.partitions.partitioned_tables import PartitionedTables

__all__ = ["PredictedRuns", "PredictionLimits", "use_predictor"]


@dataclass(frozen=True, slots=True)
class PredictionLimits:
    """Up to which limits predictions help.

    Attributes
    ----------
    max_forwarded : float
        If predictions would forward more than this share of a call, one thread without predictions is as
        fast.
    max_copied : float
        If a call must copy or move more rows than this for each event, predictions do not save time. Calls
        with more rows to copy have undo logs instead, if the program can have them.
    useless_pause : int
        After a call with too many forwarded transactions, this many calls of the program have no predictions.
    """

    max_forwarded: float = 0.5
    max_copied: float = 16
    useless_pause: int = 31


LIMITS = PredictionLimits()


def use_predictor(
    state: TableSet | PartitionedTables,
    database: str,
    predictor: StoredPredictor | None,
    routing: Mapping[str, str],
    limits: PredictionLimits = LIMITS,
) -> None:
    """Let the transactions of an open database run in predicted partitions, if there is a predictor.

    Parameters
    ----------
    state : TableSet or PartitionedTables
        The tables of the open database.
    database : str
        The name of the database.
    predictor : StoredPredictor, optional
        The predictor that the caller of `Database.open` passed.
    routing : mapping of str to str
        The routing attributes of procedures. The predictor does not predict these procedures.
    limits : PredictionLimits
        Up to which limits predictions help.

    Raises
    ------
    InvalidUsageError
        If `predictor` is not a predictor of this database's partitions, or the database has one partition.
    """
    if predictor is None and not routing:
        return
    if predictor is not None and not hasattr(predictor, "bind"):
        raise InvalidUsageError(
            "this is no predictor",
            got=type(predictor).__name__,
            hint='read its file: penstock.Predictor.load("predictor.json")',
        )
    if isinstance(state, TableSet):
        raise InvalidUsageError("a predictor is for partitions", hint="open the database with partitions=2")
    count, placements = state.partitions, state.placements
    bound = None if predictor is None else predictor.bind(database, count, placements)
    if routing:
        bound = AttributePredictor(routing, count, placements, bound)
    if bound is not None:
        state.predicted = PredictedRuns(state, bound, routing, limits)


class PredictedRuns:
    """Runs transactions by predictions, over the tables of a database in partitions.

    Parameters
    ----------
    tables : PartitionedTables
        The tables of the database.
    predictor : TransactionPredictor
        Predicts the transactions of each call.
    routing : mapping of str to str
        The routing attributes that the design gives to procedures.
    limits : PredictionLimits
        Up to which limits predictions help.

    Attributes
    ----------
    transactions : int
        The number of transactions that ran as predicted.
    forwarded, late, without_undo : int
        The numbers of these transactions that were forwarded, ran late, or had no undo log. A late
        transaction runs at the same time as forwarded transactions, in a partition that they no longer need.
    wrong : int
        The number of calls with a wrong prediction.
    """

    def __init__(
        self,
        tables: PartitionedTables,
        predictor: TransactionPredictor,
        routing: Mapping[str, str] = MappingProxyType({}),
        limits: PredictionLimits = LIMITS,
    ) -> None:
        self._tables, self._predictor, self.routing = tables, predictor, dict(routing)
        self._limits = limits
        self._kernels: dict[str, tuple[Kernel, Kernel | None] | None] = {}
        self._logs = {id(part): UndoLog() for part in (*tables.partition_tables, tables.coordinator)}
        self._paused: dict[str, int] = {}
        self._declined: set[str] = set()
        self.transactions = self.forwarded = self.late = self.without_undo = self.wrong = 0

    def run(self, program: Program, events: pa.RecordBatch) -> pa.RecordBatch | None:
        """Run the events by predictions; if that is not possible, leave the tables unchanged and return None.

        The result is also None if the tables to copy or to move have too many rows, or if too many
        transactions would be forwarded. If too many would be forwarded, the next calls of the program run
        without predictions.
        """
        call = self._begin(program, events)
        if call is None:
            self._declined.add(program.digest)
            return None
        self._declined.discard(program.digest)
        self._tables.gathered.scatter()
        try:
            results = call.run()
        except DeviationError as error:
            self.wrong += 1
            call.put_back()
            self._predictor.correct(error.event, int(call.touched[error.event]))
            return None
        except BaseException:  # any error, even Ctrl-C, leaves tables half changed; raise it again
            call.put_back()
            raise
        finally:
            for log in self._logs.values():
                log.release()
        self._predictor.observe(call.touched)
        self.transactions += events.num_rows
        self.forwarded += call.forwarded
        self.late += call.late
        self.without_undo += call.without_undo
        return results

    def declines(self, program: Program | PlainProgram) -> bool:
        """Return whether the last call of a program began without predictions."""
        return program.digest in self._declined

    def _begin(self, program: Program, events: pa.RecordBatch) -> PredictedCall | None:
        """Return a predicted call, or None during a pause, or if predictions are missing or do not help."""
        if self._paused.get(program.digest, 0) > 0:
            self._paused[program.digest] -= 1
            return None
        most = self._limits.max_copied * events.num_rows
        copies = self._rows_of(tables_written(program)) <= most
        if not copies and (not can_undo_calls(program) or self._rows_of(self._shared(program)) > most):
            return None
        kernels = self._kernels_of(program)
        if kernels is None or (prediction := self._predictor.predict(program, events)) is None:
            return None
        call = PredictedCall(self._tables, program, events, prediction, kernels, self._logs, copies=copies)
        if call.planned > self._limits.max_forwarded * events.num_rows:
            self._paused[program.digest] = self._limits.useless_pause
            return None
        return call

    def _rows_of(self, names: Iterable[str]) -> int:
        """Return the number of rows that a call must copy from `names` and move from gathered tables."""
        return sum(len(self._tables[name]) for name in self._tables.gathered.names.union(names))

    def _shared(self, program: Program) -> list[str]:
        """Return the replicated tables that a program may write."""
        return [name for name in tables_written(program) if name not in self._tables.placements]

    def _kernels_of(self, program: Program) -> tuple[Kernel, Kernel | None] | None:
        if program.digest not in self._kernels:
            placements = self._tables.placements
            self._kernels[program.digest] = (
                (
                    load_guarded(program, placements, undo=True),
                    load_guarded(program, placements, undo=False) if can_omit_undo(program) else None,
                )
                if can_guard(program, placements)
                else None
            )
        return self._kernels[program.digest]
