"""Compute aggregates from combined partials outside of Spark: `Decomposition.assembly` on Arrow columns.

`penstock.sql.evaluate` divides by literals only. The means and deviations of a `Decomposition` divide by
counts, so this module computes them itself. If a count is zero, its sum is null, and null divided by zero is
null, as in Spark. All other divisions by a column are left to Spark, because they must fail as in Spark if
the divisor is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import Decomposition, deviation
from penstock.operators.aggregates.moments import deviation_sources
from penstock.operators.aggregates.quantiles import compute_quantiles
from penstock.operators.aggregates.wide import WIDE, as_floats, fits, to_words
from penstock.operators.update_stream.stream import RESERVED_PREFIX
from penstock.sql.expression import Expression, column, edit
from penstock.sql.syntax.functions import OWN_FUNCTION
from penstock.sql.tree import Tree

__all__ = ["Assembly"]


@dataclass(frozen=True, slots=True)
class Assembly:
    """Compute aggregates from partials. The driver creates an `Assembly`; workers use it.

    Parameters
    ----------
    aggregates : mapping of str to str
        Maps the name of an aggregate to the Spark SQL that computes it from the columns of partials, groups,
        means and deviations.
    means : mapping of str to (str, str)
        Maps the name of a mean to the names of its sum and count.
    deviations : mapping of str to (str, str)
        Maps the name of a deviation to the names of its count and its sum of squared deviations.
    quantiles : mapping of str to (str, float, bool)
        Maps the name of a quantile to the name of its sketch, the fraction, and whether to interpolate.
    own : mapping of str to (str, str)
        Maps the result column of a user-defined aggregate to the column of its states and to the aggregate
        (``module:Class``).
    wraps : bool
        Whether a sum of integers that exceeds 64 bits wraps around, as in Spark without ANSI mode. By default
        such a sum is an error.
    """

    aggregates: Mapping[str, str]
    means: Mapping[str, tuple[str, str]]
    deviations: Mapping[str, tuple[str, str]]
    quantiles: Mapping[str, tuple[str, float, bool]] = field(default_factory=dict)
    own: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    wraps: bool = False

    @classmethod
    def from_decomposition(cls, decomposition: Decomposition, *, wraps: bool = False) -> Assembly:
        """Return the assembly of a decomposition."""
        divisions = _Divisions(decomposition)
        texts: dict[str, str] = {}
        for name, text in decomposition.assembly.items():
            expression = Expression.parse(text)
            texts[name] = edit(expression.text, divisions.find_replacements(expression.text, expression.tree))
        return cls(texts, divisions.means, divisions.deviations, divisions.quantiles, divisions.own, wraps)

    @property
    def derived_names(self) -> tuple[str, ...]:
        """The names of means, deviations, quantiles and user-defined aggregates."""
        return (*self.means, *self.deviations, *self.quantiles, *self.own)

    @property
    def read(self) -> frozenset[str]:
        """The partials that aggregates read directly."""
        texts = self.aggregates.values()
        return frozenset(one for text in texts for one in Expression.parse(text).columns) - {
            *self.derived_names
        }

    def finish(self, values: pa.RecordBatch, kept: Iterable[str]) -> pa.RecordBatch:
        """Return the derived columns, and the partials named in `kept` as Spark represents them.

        Raises
        ------
        InvalidUsageError
            If a sum overflows.
        """
        columns = {name: self.as_spark(name, values.column(name)) for name in kept}
        for name in self.derived_names:
            columns[name] = self.compute(name, [values.column(part) for part in self.parts(name)])
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def as_spark(self, name: str, column: pa.Array[Any]) -> pa.Array[Any]:
        """Return a partial as Spark represents it. Only integer sums are converted.

        Raises
        ------
        InvalidUsageError
            If a sum exceeds 64 bits and `wraps` is false.
        """
        if column.type != WIDE:
            return column
        lows, _ = to_words(column)
        if not self.wraps and not fits(column):
            raise InvalidUsageError(
                "a sum of integers overflows",
                column=name,
                hint="use sum(CAST(x AS DOUBLE)), which cannot overflow; neither can avg and stddev",
            )
        mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return pa.array(lows, mask=mask)

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the names of the partials of a derived column; empty for any other name."""
        if name in self.quantiles:
            return self.quantiles[name][:1]
        if name in self.own:
            return self.own[name][:1]
        return self.means.get(name) or self.deviations.get(name) or ()

    def compute(self, name: str, parts: Sequence[pa.Array[Any]]) -> pa.Array[Any]:
        """Compute a derived column from the columns of its partials (`parts`), row by row."""
        if name in self.own:
            # Imported here, because plans need no compiler.
            from penstock.operators.aggregates.own_states import finish_own

            return finish_own(parts[0], self.own[name][1])
        if name in self.quantiles:
            _, fraction, interpolates = self.quantiles[name]
            return compute_quantiles(parts[0], fraction, interpolates=interpolates)
        return _mean(*parts) if name in self.means else _deviation(*parts)


class _Divisions:
    """Replace divisions, deviations, quantiles and user-defined aggregates by columns with their values."""

    def __init__(self, decomposition: Decomposition) -> None:
        self._places = {
            partial.name: (partial.kind, partial.expression) for partial in decomposition.partials
        }
        sources = deviation_sources(decomposition.partials)
        self._known = {
            deviation(column(count).text, column(name).text): (count, name)
            for name, (count, _) in sources.items()
        }
        self.means: dict[str, tuple[str, str]] = {}
        self.deviations: dict[str, tuple[str, str]] = {}
        self.quantiles: dict[str, tuple[str, float, bool]] = {}
        self.own: dict[str, tuple[str, str]] = {}

    def find_replacements(self, text: str, node: Tree) -> list[tuple[Tree, str]]:
        """Map each division, deviation, quantile and user-defined aggregate to the column of its values."""
        if node.kind == "case" and (parts := self._known.get(text[node.start : node.stop])) is not None:
            return [(node, self._name_column("deviation", self.deviations, parts))]
        if node.kind == "binary" and node.value == "/":
            total, count = node.parts
            divided, by = self._places.get(total.value), self._places.get(count.value)
            columns = total.kind == count.kind == "column"
            if columns and divided is not None and divided[0] == "sum" and by == ("count", divided[1]):
                return [(node, self._name_column("mean", self.means, (total.value, count.value)))]
        if node.kind == "call" and node.value in ("percentile", "approx_percentile"):
            sketch, fraction = node.parts
            quantile = (str(sketch.value), float(fraction.value), node.value == "percentile")
            return [(node, self._name_column("quantile", self.quantiles, quantile))]
        if node.kind == "call" and node.value == OWN_FUNCTION:
            reference, states = node.parts
            return [
                (node, self._name_column("own", self.own, (str(states.value), str(reference.value)[1:-1])))
            ]
        return [edit for part in node.children for edit in self.find_replacements(text, part)]

    @staticmethod
    def _name_column(what: str, known: dict[str, Any], parts: tuple[Any, ...]) -> str:
        same = (name for name, one in known.items() if one == parts)
        name = next(same, f"{RESERVED_PREFIX}{what}_{len(known)}")
        known[name] = parts
        return column(name).text


def _mean(total: pa.Array[Any], count: pa.Array[Any]) -> pa.Array[Any]:
    """Divide sums by counts; null where the count is zero."""
    if total.null_count:
        return pc.divide(_floats(total), count.cast(pa.float64()))
    return pa.array(np.true_divide(as_floats(total), count.to_numpy()))


def _floats(total: pa.Array[Any]) -> pa.Array[Any]:
    """Return a column of sums as floats. Nulls stay null."""
    mask = total.is_null().to_numpy(zero_copy_only=False) if total.null_count else None
    return pa.array(as_floats(total), mask=mask)


def _deviation(count: pa.Array[Any], m2: pa.Array[Any]) -> pa.Array[Any]:
    """Return the sample standard deviation; null for fewer than two values; see `decompose`."""
    n = count.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.sqrt(m2.fill_null(0.0).to_numpy(zero_copy_only=False) / (n - 1.0))
    return pa.array(deviations, mask=~(n > 1))
