"""Accumulate the rows of a pane and group into partials, inside a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.scan.fragments import Fragmenter
from penstock.operators.scan.spec import Fragments, Partial

__all__ = ["RunAccumulator"]

_RUN = "run"


class RunAccumulator:
    """Accumulates runs of rows. One task at a time uses it.

    Parameters
    ----------
    partials : sequence of Partial
        The partials; their expressions are columns of `rows`, or ``*``.
    rows : pyarrow.Schema
        The columns of rows.
    """

    def __init__(self, partials: Sequence[Partial], rows: pa.Schema) -> None:
        self._partials = tuple(partials)
        types: dict[str, Any] = {
            partial.name: pa.int64() if partial.expression == "*" else rows.field(partial.expression).type
            for partial in partials
        }
        self._fragmenter = Fragmenter(
            Fragments(1, _RUN, "ms", (), self._partials), {_RUN: pa.int64(), **types}
        )

    def accumulate(self, rows: pa.RecordBatch, starts: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """Return the partials of each run; `starts` marks the first row of each run."""
        columns = [
            None if partial.expression == "*" else rows.column(partial.expression)
            for partial in self._partials
        ]
        # The numbers of runs increase, so the fragmenter needs no hash table.
        self._fragmenter.add(pa.array(np.cumsum(starts)), [], columns)
        return self._fragmenter.finish().select([partial.name for partial in self._partials])
