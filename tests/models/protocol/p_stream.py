"""The logical p-stream: a FIFO channel of p-units from one operator to its readers."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import InternalError, InvalidUsageError
from tests.models.protocol.lineage import StreamUnit
from tests.models.protocol.tasks import PersistTask, TrimTask
from tests.models.protocol.vector_clock import VectorClock

__all__ = ["PStream"]


class PStream:
    """The channel behind an operator or a source: its result buffer *R*, and what of it is durable.

    A p-unit that is to be retained can be read only when it is durable, and so can those behind it. Tuples
    that the stream has already are dropped when they are written once more, which makes writing idempotent:
    what an operator makes again after a crash is what it made before.

    Parameters
    ----------
    name : str
        The operator or source that writes it.
    always : bool
        Whether each p-unit is retained, and not only the one after a retain marker.

    Notes
    -----
    *PStream* of (Scabbard Table 1). Departures: a batch's number is given by `write`; `read` and passing on
    are two steps, so that a reader's progress grows when it has acknowledged (Algorithm 1, lines 30 to 34);
    `trim_from` takes no reader, because what is released is what none of them needs.
    """

    def __init__(self, name: str, *, always: bool = False) -> None:
        self.name = name
        self.always = always
        self.end = 0
        self.retain = False
        self._clock = VectorClock()
        self._units: list[StreamUnit] = []
        self._first = 0  # the batch number of _units[0]
        self._waiting: set[int] = set()  # batches that are not durable yet
        self._readers: dict[str, int] = {}  # the next batch of each
        self._trimmed = 0

    def subscribe(self, reader: str, offset: int) -> None:
        """Add a reader that has all tuples before `offset`; of the first p-unit it may get some once more.

        Raises
        ------
        InvalidUsageError
            If it subscribed before, or the first p-units went already.
        """
        if reader in self._readers or self._first:
            raise InvalidUsageError("readers subscribe once, and before anything is read", reader=reader)
        self._readers[reader] = sum(unit.end <= offset for unit in self._units)

    def write(self, unit: StreamUnit, *, retained: bool = True) -> list[PersistTask]:
        """Append the new tuples of a p-unit; return the tasks that must be completed before it is read.

        Parameters
        ----------
        unit : StreamUnit
            The next tuples, or some that are here already.
        retained : bool
            Whether it is retained where this is due; False while the stream is loaded.

        Raises
        ------
        InternalError
            If tuples are missing between the stream's end and the p-unit.
        """
        if unit.offset > self.end:
            raise InternalError("a p-unit leaves a gap", stream=self.name, end=self.end, offset=unit.offset)
        if unit.end < self.end or (unit.rows and unit.end == self.end):
            return []
        unit = unit.after(self.end).since(self._clock)
        batch = self._first + len(self._units)
        self._units.append(unit)
        self.end, self._clock = unit.end, unit.clock
        if not (retained and unit.rows and (self.always or self.retain)):
            return []
        self.retain = False
        self._waiting.add(batch)
        return [PersistTask(unit)]

    def persisted(self, unit: StreamUnit) -> None:
        """Let readers read a p-unit, which is now durable."""
        self._waiting.discard(self._first + self._units.index(unit))

    def read(self, reader: str) -> StreamUnit | None:
        """Return the p-unit that `reader` has to acknowledge next, or None if there is none to read."""
        batch = self._readers[reader]
        if batch == self._first + len(self._units) or any(waiting <= batch for waiting in self._waiting):
            return None
        return self._units[batch - self._first]

    def acknowledged(self, reader: str) -> None:
        """Move `reader` on by one p-unit. Memory of p-units that all readers passed is freed."""
        self._readers[reader] += 1
        passed = min(self._readers.values()) - self._first
        del self._units[:passed]
        self._first += passed

    def trim_from(self, offset: int) -> list[TrimTask]:
        """Trim in bulk the durable tuples before `offset`, which nobody needs."""
        if offset <= self._trimmed:
            return []
        self._trimmed = offset
        return [TrimTask(self.name, offset)]

    def checkpoint(self) -> tuple[StreamUnit, ...]:
        """Return the p-units that a snapshot has to hold: all that some reader has not acknowledged."""
        return tuple(self._units)

    def load_stream(self, begin: int, units: Iterable[StreamUnit]) -> None:
        """Fill an empty channel that begins at `begin` with what a recovery found."""
        self.end = begin
        for unit in units:
            self.write(unit, retained=False)
