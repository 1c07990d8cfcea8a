"""`database`: tables and procedures, and transactions in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from penstock.checkpointing.files import absolute_location
from penstock.conf.arguments import check_keywords
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.procedures.analysis.explain import describe_table, explain_table
from penstock.procedures.procedure import Procedure
from penstock.procedures.schema import TableSpec
from penstock.procedures.workflows.catalog import Catalog
from penstock.procedures.workflows.streams import StreamSpec
from penstock.procedures.workflows.windows import WindowSpec
from penstock.procedures.workflows.workflow import Nested, Workflow

if TYPE_CHECKING:
    from penstock.procedures.in_process.open_database import OpenDatabase
    from penstock.procedures.parallel.evaluation import Evaluation
    from penstock.procedures.partitions.design import PartitionDesign
    from penstock.procedures.partitions.predicted.prediction import StoredPredictor
    from penstock.procedures.replicas.replica import Replica
    from penstock.procedures.requests.client import RequestClient

__all__ = ["Database", "database"]

Function = Callable[..., Any]


@check_keywords
def database(name: str, location: str | os.PathLike[str] | None = None) -> Database:
    """Return a new database, without tables and procedures.

    Parameters
    ----------
    name : str
        The name of the database. Stored tables record the name.
    location : str or path, optional
        The default state location of the database's queries. A path is relative to the working directory.

    Raises
    ------
    InvalidUsageError
        If the name is unusable, or the location is not a path.

    Examples
    --------
    >>> bank = penstock.database("bank")
    >>> accounts = bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id")
    >>> @bank.procedure(event="source bigint, target bigint, amount bigint")
    ... def transfer(e, accounts):
    ...     accounts[e.source].balance -= e.amount
    ...     accounts[e.target].balance += e.amount
    >>> with bank.open() as db:
    ...     db.load("accounts", {"id": [1, 2], "balance": [100, 0]})
    ...     print(db.call("transfer", source=1, target=2, amount=30))
    ...     print(db.call("transfer", source=1, target=3, amount=30))
    {'rejected': None}
    {'rejected': 'unknown key: accounts'}
    """
    return Database(name, location)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and all(c.isalnum() or c in "_-" for c in name)


@check_keywords
class Database:
    """Tables, streams, procedures and workflows, on the driver or in any process of Python.

    Parameters
    ----------
    name, location
        See `database`.

    Attributes
    ----------
    catalog : Catalog
        The tables, streams, windows and triggers that are declared.
    workflows : dict
        The workflows, by name.
    """

    def __init__(self, name: str, location: str | os.PathLike[str] | None = None) -> None:
        if not _is_name(name):
            hint = "use letters, digits, _ and -"
            raise InvalidUsageError("the name is not usable", name=repr(name), hint=hint)
        self.name = name
        self.location = None if location is None else absolute_location(location)
        self.catalog = Catalog()
        self.workflows: dict[str, Workflow] = {}

    @property
    def tables(self) -> dict[str, TableSpec]:
        """The tables that are declared, by name."""
        return self.catalog.tables

    @property
    def procedures(self) -> dict[str, Procedure]:
        """The procedures, by name."""
        return self.catalog.procedures

    def table(
        self,
        name: str,
        columns: str,
        *,
        key: str | Iterable[str],
        partition_by: str | None = None,
        indexes: Iterable[str | Iterable[str]] = (),
    ) -> TableSpec:
        """Declare a table.

        Parameters
        ----------
        name : str
            The table's name; procedures that access the table have a parameter of this name.
        columns : str
            The columns as Spark's DDL, with ``NOT NULL`` where nulls are not allowed.
        key : str or iterable of str
            The columns of the primary key: at most four, none nullable.
        partition_by : str, optional
            The key column that determines the bucket or partition of a row. By default every partition has
            all rows of the table, and transactions over a stream run in one bucket.
        indexes : iterable
            For each index, one to four columns; ``table.by(column)`` reads rows in the order of the index.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable, or the table exists already.
        """
        spec = TableSpec.parse(name, columns, key, partition_by, indexes)
        self.catalog.add("table", spec)
        return spec

    def stream(self, name: str, columns: str) -> StreamSpec:
        """Declare a stream between procedures of a workflow.

        A procedure that has the stream as a parameter emits rows: ``name.emit(column=value, ...)``. The
        procedure that is defined with ``event=`` this stream takes these rows.

        Parameters
        ----------
        name : str
            The name of the stream.
        columns : str
            The columns as Spark's DDL; see `table`.

        Raises
        ------
        InvalidUsageError
            If a name or type is unusable or taken.
        """
        self.catalog.add("stream", spec := StreamSpec.parse(name, columns))
        return spec

    def window(
        self,
        name: str,
        columns: str,
        *,
        size: int | str | timedelta,
        slide: int | str | timedelta,
        time: str | None = None,
    ) -> WindowSpec:
        """Declare a sliding window, which belongs to the first procedure that has it as a parameter.

        ``name.insert(column=value, ...)`` stages a row, and returns whether the window slid. ``for row in
        name`` and ``len(name)`` see the window as of its last slide, without the staged rows.

        Parameters
        ----------
        name : str
            The name of the window.
        columns : str
            The columns as Spark's DDL; see `table`.
        size, slide : int, str or timedelta
            Numbers of rows. With `time`: durations such as ``"60s"`` for a timestamp, otherwise integers.
        time : str, optional
            The column of time: a timestamp, date or integer. The window slides at multiples of `slide`, when
            a row at or after the next multiple is inserted. If a row is older than the last slide, its
            transaction is rejected.

        Raises
        ------
        InvalidUsageError
            If a name, type, size or slide is unusable.
        """
        self.catalog.add("window", spec := WindowSpec.parse(name, columns, size, slide, time))
        return spec

    @overload
    def procedure(self, function: Function) -> Procedure: ...

    @overload
    def procedure(
        self,
        *,
        event: str | StreamSpec | None = None,
        returns: str | None = None,
        plain: bool = False,
        route: str | Iterable[str] = (),
    ) -> Callable[[Function], Procedure]: ...

    def procedure(
        self,
        function: Function | None = None,
        *,
        event: str | StreamSpec | None = None,
        returns: str | None = None,
        plain: bool = False,
        route: str | Iterable[str] = (),
    ) -> Procedure | Callable[[Function], Procedure]:
        """Make a stored procedure from a function whose parameters are an event and tables.

        With `event` the function is compiled at once, otherwise when the columns of its input are known.

        Parameters
        ----------
        function : callable
            The function that becomes the procedure.
        event : str or StreamSpec, optional
            The event's attributes, possibly arrays, as Spark's DDL; or the stream whose rows are the events.
        returns : str, optional
            The names and types of the results, as Spark's DDL; none by default.
        plain : bool
            Whether to run the procedure uncompiled: any Python works, a thousand times slower.
        route : str or iterable of str, optional
            Expressions over the event that give the transaction's partitions, such as ``"e.number // 100"``,
            if no attribute does. A transaction that accesses other partitions is rejected.

        Raises
        ------
        InvalidUsageError
            If the function uses Python that cannot be compiled; the error names file, line and column.
        """

        def decorate(function: Function) -> Procedure:
            text = self.catalog.read(function).with_route(route)
            self._check_free(text.name)
            results = parse_schema(returns) if returns else pa.schema([])
            attributes = parse_schema(event) if isinstance(event, str) else event
            procedure = Procedure(
                text, self.catalog, attributes, results, plain=plain, location=self.location
            )
            self.procedures[text.name] = procedure
            return procedure

        return decorate if function is None else decorate(function)

    def trigger(self, on: TableSpec | StreamSpec | WindowSpec | str) -> Callable[[Function], Procedure]:
        """Make a procedure that runs with each insert into a table or stream, or each slide of a window.

        The trigger is a part of the transaction that inserts. Its event is the inserted row; for a window,
        the row that makes the window slide. Rows that `OpenDatabase.load` inserts do not run triggers.

        Parameters
        ----------
        on : TableSpec, StreamSpec, WindowSpec or str
            The table, stream or window, or its name. Define the trigger before procedures that insert into
            it.

        Raises
        ------
        InvalidUsageError
            If the function cannot be compiled, its name is taken, `on` does not exist, or the function
            inserts into `on`, directly or through other triggers.
        """
        if not isinstance(on, str | TableSpec | StreamSpec | WindowSpec):
            raise InvalidUsageError("a trigger needs a table, stream or window", got=type(on).__name__)
        name = on if isinstance(on, str) else on.name
        catalog = self.catalog
        relation = catalog.find_relation(name)
        event = pa.schema([pa.field(one.name, one.type, one.nullable) for one in relation.columns])

        def decorate(function: Function) -> Procedure:
            text = self.catalog.read(function)
            self._check_free(text.name)
            catalog.check_trigger(name, text)
            triggers = catalog.triggers.setdefault(name, [])
            # Compile the function as one of the triggers, so that a trigger that runs itself is refused.
            triggers.append(text)
            try:
                return Procedure(text, catalog, event, pa.schema([]), trigger_of=name)
            except BaseException:  # any error undoes the change, and is raised again
                triggers.pop()
                raise

        return decorate

    def nested(self, *procedures: Procedure) -> Nested:
        """Make procedures of a workflow one transaction: all of them commit, or none."""
        return Nested(procedures)

    def workflow(self, name: str, *parts: Procedure | Nested) -> Workflow:
        """Make a workflow of procedures and of the streams between them.

        For each event a round runs. The border procedures, which take the event, run first. Every other
        procedure runs after the procedures whose rows it takes. Each procedure runs as one transaction over
        all rows that it takes in the round.

        Parameters
        ----------
        name : str
            The name of the workflow.
        *parts : Procedure or Nested
            The procedures, in any order. Procedures that do not depend on each other run in the given order.

        Raises
        ------
        InvalidUsageError
            If the procedures form a cycle, if none takes a stream, if two take the same stream or return the
            same name, or if a procedure does not compile.
        """
        self._check_free(name)
        self.workflows[name] = workflow = Workflow(name, parts, self.catalog, self.location)
        return workflow

    def _check_free(self, name: str) -> None:
        triggers = {text.name for texts in self.catalog.triggers.values() for text in texts}
        taken = {"procedure": {*self.procedures}, "workflow": {*self.workflows}, "trigger": triggers}
        for kind, names in taken.items():
            if name in names:
                raise InvalidUsageError(f"the database has this {kind} already", **{kind: name})

    def explain(self) -> str:
        """Describe the tables and the procedures; see `Procedure.explain`."""
        programs = [one.explain() for one in self.procedures.values()]
        programs += [one.explain() for one in self.workflows.values()]
        return "\n".join([f"database {self.name}", *map(explain_table, self.tables.values()), *programs])

    def to_json(self) -> dict[str, Any]:
        """Return the content of `explain` as values that JSON can hold."""
        tables = [describe_table(spec) for spec in self.tables.values()]
        procedures = [one.to_json() for one in self.procedures.values()]
        workflows = [one.to_json() for one in self.workflows.values()]
        return {"database": self.name, "tables": tables, "procedures": procedures, "workflows": workflows}

    def open(
        self,
        location: str | os.PathLike[str] | None = None,
        *,
        recovery: Literal["weak", "strong"] = "weak",
        commit_interval: str | timedelta = "0ms",
        partitions: int = 1,
        ranges: Mapping[str, Sequence[Any]] | None = None,
        design: PartitionDesign | str | os.PathLike[str] | None = None,
        evaluation: str | Evaluation = "serial",
        predictor: StoredPredictor | None = None,
        speculate: bool | str = False,
    ) -> OpenDatabase:
        """Open the tables in this process's memory. Transactions run one after the other.

        Parameters
        ----------
        location : str or path, optional
            A directory. Each call is stored there before it returns. By default nothing is stored.
        recovery : str
            ``weak`` logs only the events of a workflow, ``strong`` logs each transaction with its input.
        commit_interval : str or timedelta
            The time that a call waits to share a sync with other calls; by default it waits only for the
            running sync.
        partitions : int
            The number of threads, each with its own rows. The number does not change results or tables.
        ranges : mapping of str to sequence, optional
            For each table that is partitioned by ranges, the least value of each partition but the first.
        design : PartitionDesign, str or path, optional
            A result of `penstock.design`, or its YAML file, instead of `partitions` and `ranges`.
        evaluation : str or Evaluation
            The mode of ``run``: ``serial``; on two threads: ``chains``, ``levels``, ``split``, ``adaptive``.
        predictor : Predictor, optional
            A result of `penstock.predict`, so that fewer transactions are forwarded.
        speculate : bool or str
            If set, partitions speculate, and find conflicts by ``rows`` (or True), ``tables`` or ``occ``.

        Raises
        ------
        InvalidUsageError
            If the location holds different tables, or calls of a changed program; or an option is unusable.
        CorruptDataError, UnavailableError
            If the database's files are damaged, or the file system refuses.
        """
        from penstock.procedures.in_process.open_database import OpenDatabase

        options = (location, recovery, commit_interval, partitions, ranges, None, evaluation, design)
        return OpenDatabase(self, *options, predictor, speculate)

    def follow(
        self,
        location: str | os.PathLike[str],
        *,
        poll_interval: str | timedelta = "100ms",
        partitions: int = 1,
        ranges: Mapping[str, Sequence[Any]] | None = None,
        predictor: StoredPredictor | None = None,
        speculate: bool | str = False,
    ) -> Replica:
        """Follow the database that another process has open at a location, until this process takes over.

        Parameters
        ----------
        location : str or path
            The directory of the database; both machines must be able to read it.
        poll_interval : str or timedelta
            How often the replica looks for new calls.
        partitions, ranges, predictor, speculate
            See `open`. These settings apply to the replica, and to the database after a takeover.

        Raises
        ------
        InvalidUsageError, CorruptDataError, UnavailableError
            As in `open`, or if the location holds no database.
        """
        from penstock.procedures.replicas.replica import Replica

        return Replica(self, location, poll_interval, partitions, ranges, predictor, speculate)

    def connect(self, location: str | os.PathLike[str], *, timeout: str | timedelta = "30s") -> RequestClient:
        """Return a client that sends requests to a stream of transactions over this database.

        Parameters
        ----------
        location : str or path
            The value of `requests` in `penstock.transactions`. Requests wait at this location for the query.
        timeout : str or timedelta
            The maximum time that a call waits for its answer.

        Raises
        ------
        InvalidUsageError
            If the location holds anything but requests. For other errors see `open`.

        Examples
        --------
        >>> with bank.connect("bank-requests") as client:  # doctest: +SKIP
        ...     client.call("transfer", source=1, target=2, amount=30)
        """
        from penstock.procedures.requests.client import RequestClient

        return RequestClient(self.catalog, location, timeout)
