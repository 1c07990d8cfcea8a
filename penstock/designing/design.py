"""`design`: choose how a database is partitioned, from a trace of its transactions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.conf.arguments import check_keywords
from penstock.designing.cost import CostModel
from penstock.designing.initial import declared_choice
from penstock.designing.result import DesignResult
from penstock.designing.search import Limits, Progress, search
from penstock.designing.traces.actual import add_actual_accesses
from penstock.designing.traces.log import read_log_and_tables
from penstock.designing.traces.trace import Request, declare
from penstock.designing.workload import Workload
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures.databases import Database
from penstock.procedures.engine import TableSet
from penstock.procedures.in_process.arrow_rows import as_arrow, batches_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["design"]

TRANSACTIONS_PER_PARTITION = 20
"""An interval has at least this many transactions per partition; with fewer, skew would be due to chance."""


@check_keywords
def design(
    database: Database,
    requests: Iterable[Request] | Mapping[str, pa.Table | pa.RecordBatch | Mapping[str, Any]] | None = None,
    *,
    log: str | os.PathLike[str] | None = None,
    tables: Mapping[str, pa.Table | pa.RecordBatch | Mapping[str, Any]] | None = None,
    partitions: int = 4,
    seconds: float = 10.0,
    intervals: int = 10,
    alpha: float = 5.0,
    beta: float = 1.0,
    memory_bytes: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> DesignResult:
    """Choose the partitions of a database for a trace of its transactions.

    Each table is partitioned by one key column (by hash or by ranges) or by two key columns, or it is
    replicated. A good design lets few transactions need several partitions, and gives all partitions about
    the same load. If events do not determine which rows a procedure accesses, the design may name an
    attribute that usually determines the partition of these rows. Nothing is written. Ctrl-C ends the search
    with the best design so far.

    Parameters
    ----------
    database : Database
        The tables and procedures.
    requests : mapping, or iterable of tuple
        A mapping from names of procedures and workflows to events; or pairs of a name and events, in the
        order of calls. Each procedure is compiled for its events.
    log : str or path, optional
        The directory of a database, which another process may have open. The requests are the calls since the
        database's newest version.
    tables : mapping, optional
        With `requests`, the rows that the tables have before the requests. The rows are needed if procedures
        use indexes, or compute keys that the events do not determine. Such procedures run in Python over the
        rows. With `log`, the rows come from the log.
    partitions : int
        The number of partitions, 2 to 64.
    seconds : float
        The longest duration of the search. A search that finds nothing better for a long time ends earlier.
    intervals : int
        The number of intervals into which the trace is divided. If an interval would have fewer than 20
        transactions per partition, there are fewer intervals. Skew is measured in each interval: otherwise
        load that moves from partition to partition would look balanced.
    alpha, beta : float
        The weights of coordination and skew in the cost.
    memory_bytes : int, optional
        The memory of a partition; needs `log` or `tables`. Designs that need more memory are excluded.
    seed : int
        The seed of the search. Equal seeds find equal designs unless `seconds` or Ctrl-C ends the search.
    progress : callable, optional
        Called after each round of the search.

    Returns
    -------
    DesignResult
        The design, its cost, the cost of the declared design, and an explanation.

    Raises
    ------
    InvalidUsageError
        If there is no request, a request does not fit its procedure, or an option is unusable.
    CorruptDataError, UnavailableError
        If the files of the log are damaged, or the file system refuses.

    Examples
    --------
    >>> bank = penstock.database("bank")
    >>> accounts = bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    >>> @bank.procedure(event="source bigint, target bigint, amount bigint")
    ... def transfer(e, accounts):
    ...     accounts[e.source].balance -= e.amount
    ...     accounts[e.target].balance += e.amount
    >>> events = {"source": [1, 2, 3], "target": [1, 2, 3], "amount": [1, 1, 1]}
    >>> result = penstock.design(bank, {"transfer": events}, partitions=2)
    >>> result.design.columns
    {'accounts': 'id'}
    """
    if type(seconds) not in (int, float) or not seconds > 0:
        raise InvalidUsageError("seconds is not a positive number", seconds=repr(seconds))
    if (requests is None) == (log is None):
        raise InvalidUsageError(
            "a trace comes from requests or from a log", hint="give one of requests= and log="
        )
    rows: TableSet | None = None
    calls: Iterable[Request]
    if log is not None:
        if tables is not None:
            raise InvalidUsageError("the rows of tables come from the log", hint="leave out tables=")
        calls, rows = read_log_and_tables(database, log)
    else:
        calls = list(requests.items()) if isinstance(requests, Mapping) else requests or ()
        if tables is not None:
            rows = _load(database, tables)
    if memory_bytes is not None and rows is None:
        raise InvalidUsageError(
            "the sizes of tables are unknown without a log or rows",
            hint="give log= or tables=, or leave out memory_bytes=",
        )
    calls = list(calls)
    trace = declare(database, calls, rows)
    if rows is not None:
        trace = add_actual_accesses(trace, calls, rows)
    if type(partitions) is int and type(intervals) is int and partitions > 0 and intervals > 0:
        intervals = min(intervals, max(trace.transactions // (TRANSACTIONS_PER_PARTITION * partitions), 1))
    workload = Workload.encode(trace, partitions, intervals)
    model = CostModel(workload, alpha, beta, memory_bytes)
    found = search(model, seed=seed, limits=Limits(seconds=seconds), progress=progress)
    return DesignResult(model, found, declared_choice(workload))


def _load(database: Database, tables: Mapping[str, Any]) -> TableSet:
    """Return a database's tables with these rows."""
    state = TableSet(database.tables.values())
    for name, rows in tables.items():
        if name not in database.tables:
            hint = did_you_mean(name, database.tables, "tables")
            raise InvalidUsageError("there is no such table", table=name, hint=hint)
        for batch in batches_of(as_arrow(rows, owner=name), database.tables[name].schema, owner=name):
            state.load(name, batch)
    return state
