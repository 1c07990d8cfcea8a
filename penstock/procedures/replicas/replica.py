"""A replica of a database that another process has open."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from penstock.errors import InvalidUsageError, UnavailableError
from penstock.procedures.in_process.open_database import OpenDatabase
from penstock.procedures.in_process.snapshot import Snapshot
from penstock.procedures.replicas.lag import Lag
from penstock.procedures.replicas.log_follower import LogFollower
from penstock.procedures.requests.run import REMEMBERED_REQUESTS
from penstock.units import parse_duration_us

if TYPE_CHECKING:
    from penstock.procedures.databases import Database
    from penstock.procedures.partitions.predicted.prediction import StoredPredictor

__all__ = ["Replica"]

_LOGGER = logging.getLogger(__name__)


class Replica:
    """A copy of the tables that another process has open: it follows the log, and can take over.

    Threads may share a replica.

    The replica's own thread runs the calls of the log, about a second after they were acknowledged. A replica
    writes nothing until `take_over`, so there may be any number of replicas. Replicas protect against the
    loss of a process or a machine. The log itself is only as safe as the storage of its location.

    Parameters
    ----------
    database : Database
        The tables and procedures, the same as in the other process.
    location, poll_interval, partitions, ranges, predictor, speculate
        See `Database.follow`.
    """

    def __init__(
        self,
        database: Database,
        location: str | os.PathLike[str],
        poll_interval: str | timedelta,
        partitions: int = 1,
        ranges: Mapping[str, Sequence[Any]] | None = None,
        predictor: StoredPredictor | None = None,
        speculate: bool | str = False,
    ) -> None:
        if not isinstance(location, str | os.PathLike):
            raise InvalidUsageError("the location of a database is not a path", got=type(location).__name__)
        self._poll_s = parse_duration_us(poll_interval) / 1e6
        self._database, self._location = database, location
        tables = (*database.catalog.all_tables.values(), REMEMBERED_REQUESTS)
        self._lock = threading.RLock()
        self._partitions, self._ranges = partitions, ranges
        self._predictor, self._speculate = predictor, speculate
        self._follower = LogFollower(database, tables, location, partitions, ranges, predictor, speculate)
        self._follower.advance()
        self._error: BaseException | None = None
        self._over = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="penstock-replica", daemon=True)
        self._thread.start()

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following. Closing twice, or after `take_over`, is not an error."""
        self._end()
        with self._lock:
            if not self._over:
                self._follower.close()
            self._over = True

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        is_told = False
        while not self._ended.wait(self._poll_s):
            try:
                with self._lock:
                    self._follower.advance()
                is_told = False
            except UnavailableError as error:
                if not is_told:
                    _LOGGER.warning("the log cannot be read [location=%s error=%s]", self._location, error)
                is_told = True
            except BaseException as error:  # readers of the tables must get the error
                self._error = error
                return

    @contextlib.contextmanager
    def _following(self) -> Iterator[LogFollower]:
        with self._lock:
            if self._over:
                raise InvalidUsageError("the replica is closed", hint="follow the database again")
            if self._error is not None:
                raise self._error
            yield self._follower

    @property
    def lag(self) -> Lag:
        """The lag of the replica behind the log. The log lacks the calls of about the last second.

        Raises
        ------
        PenstockError
            If the log can no longer be followed.
        """
        with self._following() as follower:
            return follower.lag

    def catch_up(self) -> None:
        """Run the new calls in the log.

        Raises
        ------
        PenstockError
            If the log can no longer be followed, or cannot be read now.
        """
        with self._following() as follower:
            follower.advance()

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table, in no particular order."""
        return self.snapshot(name).table(name)

    def snapshot(self, *tables: str) -> Snapshot:
        """Return a copy of the named tables, or of all tables, as of one moment between two calls.

        Every call in the copy is durable. If the other process has strong recovery, the moment may also be
        between two transactions of a workflow.

        Raises
        ------
        InvalidUsageError
            If there is no such table.
        """
        with self._following() as follower:
            copies = follower.snapshot(tables)
        return Snapshot({name: pa.Table.from_batches([convert()]) for name, convert in copies.items()})

    def take_over(
        self, *, recovery: Literal["weak", "strong"] = "weak", commit_interval: str | timedelta = "0ms"
    ) -> OpenDatabase:
        """Fence the other process, and return the open database; the replica ends.

        The other process may still run; it can acknowledge no further call. No acknowledged call is lost. A
        client that does not know whether its call ran sends the call again with the same id.

        Steps: 1. fence the log, 2. run the calls that the replica lacks, 3. open.

        Parameters
        ----------
        recovery, commit_interval
            See `Database.open`.

        Raises
        ------
        InvalidUsageError
            If the replica is closed.
        CorruptDataError, UnavailableError
            If the files are damaged, or the file system refuses. Then the replica is closed: open or follow
            the database again.
        """
        with self._following() as follower:
            self._over = True
        self._end()
        where = self._partitions, self._ranges
        return OpenDatabase(
            self._database,
            self._location,
            recovery,
            commit_interval,
            *where,
            follower,
            predictor=self._predictor,
            speculate=self._speculate,
        )
