"""Compute the partitions that queries will access from the attributes of events (H-Store §5.3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.designing.traces.queries import QueryName
from penstock.predicting.models.walk_kernels import FIXED, UNKNOWN, AttributeValues
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.schema import Column, Kind
from penstock.procedures.texts import Numbers

__all__ = [
    "ANY_COUNTER",
    "AttributeKey",
    "AttributePartitions",
    "Bound",
    "EventParameters",
    "Limit",
    "Parameters",
    "Source",
    "read_digits",
]

ANY_COUNTER = -1
AttributeKey = tuple[str, bool, object]
"""The name of an attribute, `Source.is_digits`, and `Placement.method`."""
AttributePartitions = tuple[Numbers | None, Numbers]
"""The start of each event's list (None if the attribute is not a list), and the partitions of all values."""


@dataclass(frozen=True, slots=True)
class Source:
    """The event attribute from which a key column of a query takes its value.

    Attributes
    ----------
    query : int
        The position of the query's name.
    column : str
        The key column's name.
    attribute : str
        The attribute's name. If the attribute is a list, invocation n of the query uses element n.
    counter : int
        The invocation of the query, from 0, for which the source is valid; `ANY_COUNTER` for all invocations.
    coefficient : float
        The share of invocations in the trace in which attribute and key column were equal.
    is_exact : bool
        Whether the compiler derived the source, so that it holds in every transaction.
    is_digits : bool
        Whether the attribute is a text of digits, which stands for a number in the key.
    """

    query: int
    column: str
    attribute: str
    counter: int
    coefficient: float
    is_exact: bool
    is_digits: bool = False


class Limit(StrEnum):
    """The ways in which an attribute limits the number of times that a query is executed."""

    LENGTH = "length"
    """The query is executed at most once for each element of the list."""
    NULL = "null"
    """The query is not executed if the attribute is null."""
    VALUE = "value"
    """The query is not executed if the attribute has a value."""
    LAST = "last"
    """The query is executed only after all queries that are executed for each element of a list."""


class Bound(NamedTuple):
    """A limit of how often a query is executed.

    Attributes
    ----------
    query : int
        The position of the query's name.
    attribute : str
        The attribute's name; empty for `Limit.LAST`.
    limit : Limit
        The kind of limit.
    is_reached : bool
        Whether transactions that commit execute the query as often as the limit allows.
    """

    query: int
    attribute: str
    limit: Limit
    is_reached: bool = False


def read_digits(texts: pa.Array[Any]) -> pa.Array[Any]:
    """Convert texts of digits to numbers; null for a text that is not a number below 10 ** 18."""
    is_number = pc.match_substring_regex(texts, "^[0-9]{1,18}$")
    return pc.if_else(is_number, texts, pa.scalar(None, texts.type)).cast(pa.int64())


class Parameters:
    """Computes the partitions of queries from the attributes of events, for one placement of the tables.

    Parameters
    ----------
    names : sequence of QueryName
        The names of queries.
    sources : sequence of Source
        The sources of the queries' keys.
    event : sequence of Column
        The attributes of an event.
    placements : mapping
        The placements of partitioned tables.
    partitions : int
        The number of partitions.
    bounds : sequence of Bound
        Limits of how often queries are executed.
    """

    def __init__(
        self,
        names: Sequence[QueryName],
        sources: Sequence[Source],
        event: Sequence[Column],
        placements: Mapping[str, Placement],
        partitions: int,
        bounds: Sequence[Bound] = (),
    ) -> None:
        self._bounds = list(bounds)
        self.everywhere = (1 << partitions) - 1
        self._columns = {column.name: column for column in event}
        self._fixed: dict[int, int] = {}
        self._attributes: dict[tuple[int, int], tuple[str, bool, str]] = {}
        self._placements = dict(placements)
        for place, name in enumerate(names):
            placement = placements.get(name.table)
            if placement is None:
                self._fixed[place] = self.everywhere if name.writes else 0
            elif name.columns and placement.names[0] not in name.columns:
                self._fixed[place] = self.everywhere
        for source in sources:
            placement = placements.get(names[source.query].table)
            if placement is not None and source.column == placement.names[0]:
                found = source.attribute, source.is_digits, names[source.query].table
                self._attributes[source.query, source.counter] = found

    def attributes(self) -> list[tuple[str, bool, str]]:
        """Return the name of each attribute that determines partitions, `Source.is_digits`, and a table."""
        return list({self._key(one): one for one in self._attributes.values()}.values())

    def _key(self, attribute: tuple[str, bool, str]) -> AttributeKey:
        name, is_digits, table = attribute
        return name, is_digits, self._placements[table].method

    def read(
        self, events: pa.RecordBatch, known: dict[AttributeKey, AttributePartitions] | None = None
    ) -> EventParameters:
        """Return the partitions of the attributes of events; `known` caches them for further calls."""
        values = {} if known is None else known
        keys = {self._key(attribute): attribute for attribute in self.attributes()}
        for key in keys.keys() - values.keys():
            name, is_digits, table = keys[key]
            placement, column = self._placements[table], self._columns[name]
            array: Any = events.column(name)
            starts = None
            if column.is_list:
                starts = np.asarray(array.offsets.to_numpy(), np.int64)
                array = array.values
            if is_digits:
                column, array = replace(column, kind=Kind.INTEGER), read_digits(array)
            partitions = placement.partitions_of([column], [array])
            if array.null_count:
                partitions = np.where(array.is_valid().to_numpy(zero_copy_only=False), partitions, UNKNOWN)
            values[key] = starts, partitions
        limits = [_read_limit(events.column(name), limit) for name, limit in self._limits()]
        return EventParameters([*(values[key] for key in keys), *limits], events.num_rows)

    def _limits(self) -> list[tuple[str, Limit]]:
        """Return the attribute and the kind of each limit, in the order of the pairs in `EventParameters`."""
        limits = ((bound.attribute, bound.limit) for bound in self._bounds if bound.attribute)
        return list(dict.fromkeys(limits))

    def limits(self, names: int) -> tuple[Numbers, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return `Graph.bounds`, `Graph.required` and `Graph.last`."""
        first = len(self.attributes())
        places = {limit: first + number for number, limit in enumerate(self._limits())}
        of_query: list[list[int]] = [[] for _ in range(names)]
        required, last = np.zeros((2, names), np.bool_)
        for bound in self._bounds:
            if bound.limit is Limit.LAST:
                last[bound.query] = True
                continue
            of_query[bound.query].append(places[bound.attribute, bound.limit])
            required[bound.query] |= bound.is_reached
        found = np.full((names, max(map(len, of_query), default=0)), -1)
        for query, limits in enumerate(of_query):
            found[query, : len(limits)] = limits
        return found, required, last

    def sources(self, names: int) -> tuple[npt.NDArray[np.uint64], Numbers]:
        """Return `Graph.fixed` and `Graph.source`, with the attributes in the order of `EventParameters`."""
        fixed = np.zeros(names, np.uint64)
        width = max((counter for _, counter in self._attributes), default=ANY_COUNTER) + 2
        source = np.full((names, width), UNKNOWN)
        keys = {self._key(attribute): number for number, attribute in enumerate(self.attributes())}
        for any_counter in (True, False):
            for (query, counter), attribute in self._attributes.items():
                if (counter == ANY_COUNTER) is any_counter:
                    source[query, slice(None) if any_counter else counter] = keys[self._key(attribute)]
        for query, mask in self._fixed.items():
            fixed[query], source[query] = mask, FIXED
        return fixed, source


def _read_limit(values: pa.Array[Any], limit: Limit) -> AttributePartitions:
    """Return the values of a limit for `AttributeValues`.

    `Limit.LENGTH` has lists, whose numbers are unused. Other limits have a number for each event; a negative
    number means that the query is not executed.
    """
    if limit is Limit.LENGTH:
        starts = np.asarray(values.offsets.to_numpy(), np.int64)
        return starts, np.zeros(len(values.values), np.int64)
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    return None, np.where(is_valid == (limit is Limit.NULL), 0, UNKNOWN)


class EventParameters:
    """The partitions that the attributes of events determine; see `Parameters.read`.

    Attributes
    ----------
    values : list
        A pair for each attribute: the position at which each event's list starts (None if the attribute is
        not a list), and the partition numbers of the attribute's values. Pairs for limits follow.
    events : int
        The number of events.
    """

    def __init__(self, values: Sequence[tuple[Numbers | None, Numbers]], events: int) -> None:
        self.values, self.events = list(values), events

    @cached_property
    def arrays(self) -> AttributeValues:
        """The values of all attributes, concatenated into arrays for kernels."""
        nothing = [np.zeros(0, np.int64)]
        all_starts = [nothing[0] if starts is None else starts for starts, _ in self.values]
        begins = np.cumsum([0, *map(len, all_starts)])
        lists = [
            -1 if one[0] is None else int(begin) for one, begin in zip(self.values, begins, strict=False)
        ]
        numbers = [numbers for _, numbers in self.values]
        return AttributeValues(
            np.array(lists, np.int64),
            np.concatenate(all_starts or nothing),
            np.cumsum([0, *map(len, numbers)]),
            np.concatenate(numbers or nothing).astype(np.int64, copy=False),
        )

    @cached_property
    def _lists(self) -> list[tuple[list[int] | None, list[int]]]:
        return [
            (None if starts is None else starts.tolist(), numbers.tolist()) for starts, numbers in self.values
        ]

    def signature(self, event: int) -> tuple[object, ...]:
        """Return all values of an event that estimates use; equal signatures lead to equal estimates."""
        return tuple(
            numbers[event] if starts is None else tuple(numbers[starts[event] : starts[event + 1]])
            for starts, numbers in self._lists
        )
