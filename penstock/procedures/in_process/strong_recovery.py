"""Strong recovery of workflows: each transaction is in the log (S-Store §3.2.5).

A round runs transaction by transaction. Each transaction is logged with its input (its events and the rows of
its streams), and is durable before the next transaction begins. In a recovery, each transaction takes its
input from the log, and the rows that it emits are ignored. If the log ends within a round, the rest of this
round runs afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InternalError
from penstock.procedures.compiler.program import Program
from penstock.procedures.engine import Run
from penstock.procedures.in_process.command_log import Call, CommandLog
from penstock.procedures.partitions.partitioned_tables import State

__all__ = ["StrongRecovery"]

Streams = Mapping[str, pa.RecordBatch]


@dataclass
class _Round:
    """A round whose first `next` transactions have run, and the rows that they emitted into `streams`."""

    run: Run
    at: int
    program: Program
    events: pa.RecordBatch
    next: int = 0
    streams: Streams = field(default_factory=dict)

    def advance(self, transaction: int, streams: Streams) -> None:
        """Run a transaction over the rows in `streams`."""
        self.streams = self.run.advance_transaction(self.at, transaction, streams)
        self.next = transaction + 1


class StrongRecovery:
    """Runs workflows transaction by transaction, and repeats transactions of the log.

    Parameters
    ----------
    state : TableSet
        The tables of the database.
    log : CommandLog, optional
        Makes transactions durable. A replica has no log until it takes over.
    """

    def __init__(self, state: State, log: CommandLog | None = None) -> None:
        self._state = state
        self.log = log
        self._open: _Round | None = None

    def run(
        self,
        program: Program,
        events: pa.RecordBatch,
        bounds: npt.NDArray[np.int64] | None,
    ) -> pa.RecordBatch:
        """Run a round for each atomic batch; see `TableSet.run`."""
        run = self._state.begin(program, events, bounds)
        places = np.arange(events.num_rows + 1) if bounds is None else bounds
        for at in range(run.rounds):
            begin, end = map(int, places[at : at + 2])
            self._finish(_Round(run, at, program, events.slice(begin, end - begin)))
        return run.results()

    def _finish(self, open_round: _Round) -> None:
        """Run and log the remaining transactions of a round."""
        program, log = open_round.program, self.log
        if log is None:
            raise InternalError("a replica runs a transaction that its log lacks", called=program.name)
        for transaction in range(open_round.next, len(program.transactions)):
            takes = [program.takes[member] for member in program.transactions[transaction]]
            input_rows = {name: rows for name, rows in open_round.streams.items() if name in takes}
            if None not in takes and not input_rows:
                continue
            open_round.advance(transaction, open_round.streams)
            events = open_round.events if None in takes else None
            log.append(Call(program.name, program.digest, events, None, transaction, input_rows))
            log.wait(log.end)

    def begin(self, program: Program, events: pa.RecordBatch) -> None:
        """Begin a round of the log. Then call `repeat` for each of its transactions."""
        bounds = np.array([0, events.num_rows])
        self._open = _Round(self._state.begin(program, events, bounds), 0, program, events)

    def repeat(self, call: Call) -> None:
        """Run a transaction of the log again."""
        if self._open is None or call.transaction is None:
            raise InternalError("the log begins within a round", called=call.called)
        self._open.advance(call.transaction, {**self._open.streams, **call.streams})

    def end(self) -> None:
        """If the log has only the first transactions of a round, run the remaining transactions."""
        open_round, self._open = self._open, None
        if open_round is not None:
            self._finish(open_round)
