"""Use the compiler, or a trace, to find the event attributes from which the keys of queries come.

This is the parameter mapping of H-Store §5.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.designing.traces.queries import QueryName
from penstock.designing.traces.recording import ProcedureTrace, key_numbers
from penstock.designing.traces.trace import column_numbers
from penstock.predicting.models.parameters import ANY_COUNTER, Bound, Limit, Source, read_digits
from penstock.procedures.compiler.program import Program
from penstock.procedures.compiler.values import AccessMode
from penstock.procedures.schema import Column, Kind
from penstock.procedures.texts import Numbers

__all__ = ["MIN_COEFFICIENT", "base_attribute", "find_bounds", "find_sources"]

MIN_COEFFICIENT = 0.9
"""An attribute is a source only if it equals the key in this share of comparisons."""

_MIN_COMPARISONS = 10
"""A counter gets its own source only after this many comparisons; in fewer, values may be equal by chance."""
_MODES = {
    "read": AccessMode.READ,
    "write": AccessMode.WRITE,
    "insert": AccessMode.INSERT,
    "delete": AccessMode.DELETE,
}
Booleans = npt.NDArray[np.bool_]


def find_sources(trace: ProcedureTrace) -> tuple[Source, ...]:
    """Return a procedure's parameter mapping: the best attribute for each query and each column of its key.

    A source is exact if all accesses of the query's kind to the table, in the procedure's text, use the
    attribute. Otherwise the attribute with the greatest coefficient is the source. The counter of an
    invocation is the number of earlier invocations of the query in the transaction. For each counter, there
    is the share of invocations in which attribute and key were equal; the coefficient is the geometric mean
    of these shares. If no attribute is good enough for all counters, each counter has its own source. A text
    of digits is compared as a number, as in TATP's subscriber numbers (departure from H-Store §5.3.1).
    """
    counters = trace.counters()
    owner = np.repeat(np.arange(trace.transactions), np.diff(trace.starts))
    sources: list[Source] = []
    for place, name in enumerate(trace.names):
        chosen = trace.query == place
        spec = trace.tables[name.table]
        for number, column in enumerate(spec.key_columns):
            if (exact := _exact(trace.program, name, number)) is not None:
                sources.append(Source(place, column.name, exact, ANY_COUNTER, 1.0, is_exact=True))
                continue
            values, known = key_numbers(trace, place, number)
            if not known.any():
                continue
            equal = {
                attribute: _equal(trace.events, attribute, column, owner[chosen], counters[chosen], values)
                & known
                for attribute in trace.program.event
                if attribute.kind is column.kind or _may_be_digits(attribute, column)
            }
            sources += _best(place, column, equal, counters[chosen])
    return tuple(sources)


def find_bounds(trace: ProcedureTrace) -> tuple[Bound, ...]:
    """Return how the event limits the number of times that a transaction executes each query.

    A limit holds if no transaction of the trace exceeds it. There are three kinds of limits:

    - A list limits a query if most committed transactions execute the query once for each element.
    - An attribute excludes a query if the query never runs when the attribute is null, or when it is not
      null.
    - Some queries run only after all queries for elements of lists (departure from H-Store §5.3.1).
    """
    count = trace.transactions
    owner = np.repeat(np.arange(count), np.diff(trace.starts))
    bounds: list[Bound] = []
    for place in range(len(trace.names)):
        times = np.bincount(owner[trace.query == place], minlength=count)
        for attribute in trace.program.event:
            values: Any = trace.events.column(attribute.name)
            is_valid = values.is_valid().to_numpy(zero_copy_only=False)
            if attribute.is_list:
                offsets = np.asarray(values.offsets.to_numpy(), np.int64)
                lengths = np.where(is_valid, np.diff(offsets), 0)
                ended = ~trace.aborted
                is_varied = len(np.unique(lengths[ended])) > 1
                equal = times[ended] == lengths[ended]
                if is_varied and (times <= lengths).all() and equal.mean() >= MIN_COEFFICIENT:
                    is_reached = bool(equal.all())
                    bounds.append(Bound(place, attribute.name, Limit.LENGTH, is_reached))
            for limit, excludes in ((Limit.NULL, ~is_valid), (Limit.VALUE, is_valid)):
                others = times[~excludes]
                if excludes.sum() >= _MIN_COMPARISONS and not times[excludes].any() and others.any():
                    bounds.append(Bound(place, attribute.name, limit))
    required = sorted({bound.query for bound in bounds if bound.is_reached})
    return (*bounds, *(Bound(place, "", Limit.LAST) for place in _last_queries(trace, owner, required)))


def _last_queries(trace: ProcedureTrace, owner: Numbers, required: Sequence[int]) -> Iterator[int]:
    """Yield the queries that transactions execute only after all of their required queries."""
    ends = np.full(trace.transactions, -1)
    is_required = np.isin(trace.query, required)
    np.maximum.at(ends, owner[is_required], np.flatnonzero(is_required))
    for place in range(len(trace.names)) if required else ():
        chosen = np.flatnonzero(trace.query == place)
        if place not in required and len(chosen) and (chosen > ends[owner[chosen]]).all():
            yield place


def _may_be_digits(attribute: Column, column: Column) -> bool:
    return attribute.kind is Kind.TEXT and pa.types.is_integer(column.type)


def _exact(program: Program, name: QueryName, column: int) -> str | None:
    """Return the attribute that all accesses of the query's kind use as a key column; None if they differ."""
    mode = _MODES.get(name.verb)
    origins = {
        access.origins[column]
        for access in program.accesses
        if access.table == name.table and access.mode is mode
    }
    scalars = {one.name for one in program.event if not one.is_list}
    (origin,) = origins if len(origins) == 1 else (None,)
    return origin if isinstance(origin, str) and origin in scalars else None


def _equal(
    events: pa.RecordBatch,
    attribute: Column,
    column: Column,
    owner: Numbers,
    counter: Numbers,
    values: Numbers,
) -> Booleans:
    """Return, for each query, whether the value in its key equals the event's attribute.

    If the attribute is a list, the query's counter is the position of the element to compare. If the
    attribute is a text and the key column has integers, the text's digits are compared as a number.
    """
    array = events.column(attribute.name)
    places = owner
    there = np.ones(len(owner), np.bool_)
    if attribute.is_list:
        offsets = np.asarray(array.offsets.to_numpy(), np.int64)
        places = offsets[owner] + counter
        there = places < offsets[owner + 1]
        array = array.values
        places = np.where(there, places, 0)
    if not len(array):
        return np.zeros(len(owner), np.bool_)
    if _may_be_digits(attribute, column):
        array = read_digits(array)
        numbers = np.asarray(array.fill_null(0).to_numpy(), np.int64)
    else:
        numbers = column_numbers(attribute, array)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    result: Booleans = there & valid[places] & (numbers[places] == values)
    return result


def _best(place: int, column: Column, equal: dict[Column, Booleans], counters: Numbers) -> Iterator[Source]:
    def source(attribute: Column, counter: int, coefficient: float) -> Source:
        digits = _may_be_digits(attribute, column)
        return Source(
            place, column.name, attribute.name, counter, coefficient, is_exact=False, is_digits=digits
        )

    counts = np.bincount(counters)
    shares = {name: np.bincount(counters, one) / np.maximum(counts, 1) for name, one in equal.items()}
    means = {name: _geometric_mean(share[counts > 0]) for name, share in shares.items()}
    best = max(means, key=means.__getitem__, default=None)
    if best is None:
        return
    if means[best] >= MIN_COEFFICIENT:
        yield source(best, ANY_COUNTER, float(means[best]))
        return
    for counter in np.flatnonzero(counts >= _MIN_COMPARISONS).tolist():
        best = max(shares, key=lambda name: shares[name][counter])
        if (share := float(shares[best][counter])) >= MIN_COEFFICIENT:
            yield source(best, counter, share)


def _geometric_mean(shares: npt.NDArray[np.float64]) -> float:
    return float(np.exp(np.log(np.maximum(shares, 1e-12)).mean()))


def base_attribute(trace: ProcedureTrace, sources: tuple[Source, ...]) -> str | None:
    """Return the attribute that determines the partitions of most queries; None if no attribute does."""
    counts = np.bincount(trace.query, minlength=len(trace.names))
    weights: dict[str, int] = {}
    lists = {one.name for one in trace.program.event if one.is_list}
    for source in sources:
        placed = trace.tables[trace.names[source.query].table].partition_by
        if source.column == placed and source.attribute not in lists and not source.is_digits:
            weights[source.attribute] = weights.get(source.attribute, 0) + int(counts[source.query])
    return max(weights, key=weights.__getitem__, default=None)
