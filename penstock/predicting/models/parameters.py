"""The partitions that a query will access, by the attributes of an event (H-Store §5.3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.procedures.partitions.placement import Placement
from penstock.procedures.schema import Column
from penstock.procedures.texts import Numbers

__all__ = ["ANY_COUNTER", "IMPOSSIBLE", "UNKNOWN", "Parameters", "QueryName", "Source"]

UNKNOWN, IMPOSSIBLE = -1, -2
"""The partitions of a query that no attribute says, and of one for which a list has no element."""
ANY_COUNTER = -1


class QueryName(NamedTuple):
    """A query as it is named in models.

    Attributes
    ----------
    verb : str
        ``read``, ``write``, ``insert``, ``delete`` or ``select``.
    table : str
        The table.
    columns : tuple of str
        Of ``select`` the columns of the index whose values are given.
    """

    verb: str
    table: str
    columns: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether it changes rows."""
        return self.verb not in ("read", "select")

    def __str__(self) -> str:
        """Return its text for people."""
        return f"{self.verb} {self.table}" + (f" by {', '.join(self.columns)}" if self.columns else "")


@dataclass(frozen=True, slots=True)
class Source:
    """The attribute of the event that is a column of the keys of a query's rows.

    Attributes
    ----------
    query : int
        The place of the query's name.
    column : str
        The column of the key.
    attribute : str
        The attribute. Of a list, the element of an invocation has its number.
    counter : int
        The invocation for which this holds; `ANY_COUNTER` for all.
    coefficient : float
        The share of invocations in the trace in which both were equal.
    is_exact : bool
        Whether the compiler knows it, so that it always holds.
    """

    query: int
    column: str
    attribute: str
    counter: int
    coefficient: float
    is_exact: bool


class Parameters:
    """The partitions of queries by the attributes of events, for the tables' present placement.

    Parameters
    ----------
    names : sequence of QueryName
        The names of queries.
    sources : sequence of Source
        Their sources.
    event : sequence of Column
        The attributes.
    placements : mapping
        The placements of partitioned tables.
    partitions : int
        The number of partitions.
    """

    def __init__(
        self,
        names: Sequence[QueryName],
        sources: Sequence[Source],
        event: Sequence[Column],
        placements: Mapping[str, Placement],
        partitions: int,
    ) -> None:
        self.everywhere = (1 << partitions) - 1
        self._columns = {column.name: column for column in event}
        self._fixed: dict[int, int] = {}
        self._attributes: dict[tuple[int, int], tuple[str, str]] = {}
        self._placements = dict(placements)
        for place, name in enumerate(names):
            placement = placements.get(name.table)
            if placement is None:
                self._fixed[place] = self.everywhere if name.writes else 0
            elif name.verb == "select" and placement.names[0] not in name.columns:
                self._fixed[place] = self.everywhere
        for source in sources:
            placement = placements.get(names[source.query].table)
            if placement is not None and source.column == placement.names[0]:
                found = source.attribute, names[source.query].table
                self._attributes[source.query, source.counter] = found

    def attributes(self) -> list[tuple[str, str]]:
        """Return the attributes that say partitions, each with a table that is placed by it."""
        distinct = {
            (attribute, self._placements[table].method): (attribute, table)
            for attribute, table in self._attributes.values()
        }
        return list(distinct.values())

    def read(self, events: pa.RecordBatch) -> EventParameters:
        """Return the partitions of the attributes of events."""
        values: dict[tuple[str, object], tuple[Numbers | None, Numbers]] = {}
        for attribute, table in self.attributes():
            placement, column = self._placements[table], self._columns[attribute]
            array: Any = events.column(attribute)
            starts = None
            if column.is_list:
                starts = np.asarray(array.offsets.to_numpy(), np.int64)
                array = array.values
            partitions = placement.partitions_of([column], [array])
            if array.null_count:
                partitions = np.where(array.is_valid().to_numpy(zero_copy_only=False), partitions, UNKNOWN)
            values[attribute, placement.method] = starts, partitions
        places = {
            key: (attribute, self._placements[table].method)
            for key, (attribute, table) in self._attributes.items()
        }
        return EventParameters(self._fixed, places, values, events.num_rows)


class EventParameters:
    """The partitions of the attributes of events; see `Parameters.read`."""

    def __init__(
        self,
        fixed: Mapping[int, int],
        places: Mapping[tuple[int, int], tuple[str, object]],
        values: Mapping[tuple[str, object], tuple[Numbers | None, Numbers]],
        events: int,
    ) -> None:
        self._fixed, self._places = fixed, places
        self._numbers = {key: number for number, key in enumerate(values)}
        self._lists = [
            (None if starts is None else starts.tolist(), numbers.tolist())
            for starts, numbers in values.values()
        ]
        self.values = list(values.values())
        self.events = events

    def signature(self, event: int) -> tuple[object, ...]:
        """Return all that estimates read of an event: equal signatures have equal estimates."""
        return tuple(
            numbers[event] if starts is None else tuple(numbers[starts[event] : starts[event + 1]])
            for starts, numbers in self._lists
        )

    def partitions(self, signature: tuple[Any, ...], query: int, counter: int) -> int:
        """Return a bit for each partition that a query accesses; `UNKNOWN` or `IMPOSSIBLE`.

        Parameters
        ----------
        signature : tuple
            That of the event.
        query : int
            The place of the query's name.
        counter : int
            How often the transaction has executed it before.
        """
        if query in self._fixed:
            return self._fixed[query]
        place = self._places.get((query, counter)) or self._places.get((query, ANY_COUNTER))
        if place is None:
            return UNKNOWN
        value = signature[self._numbers[place]]
        if isinstance(value, tuple):
            if counter >= len(value):
                return IMPOSSIBLE
            value = value[counter]
        return 1 << value if value >= 0 else UNKNOWN
