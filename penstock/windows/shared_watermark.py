"""Windows of several streams with a shared watermark, so that windows with the same end close together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.windows.append.time_panes import TimePanes
from penstock.windows.layout import PanesResult, WindowLayout

__all__ = ["SeveralPanes"]


class SeveralPanes:
    """The panes of one bucket for each of several sides. One task at a time uses them.

    One side may be ahead of another. The lowest watermark of all sides closes windows, and no window closes
    before every side has a watermark. So windows with the same end close in one micro-batch.

    Parameters
    ----------
    layouts : sequence of WindowLayout
        The layout of each side's windows. All sides have the same pane length.
    """

    def __init__(self, layouts: Sequence[WindowLayout]) -> None:
        self._sides = [TimePanes(layout) for layout in layouts]
        self._watermarks: list[int | None] = [None] * len(layouts)

    def __len__(self) -> int:
        return sum(map(len, self._sides))

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the state in bytes."""
        return sum(side.size_bytes for side in self._sides)

    def close(self) -> None:
        """Do nothing, because the state is only in memory."""

    def run(
        self, arriving: Sequence[Iterable[pa.RecordBatch]], watermarks: Sequence[int | None]
    ) -> list[PanesResult]:
        """Add the entries of each side, then close windows; see `Panes.run`.

        Parameters
        ----------
        arriving : sequence of iterables of pyarrow.RecordBatch
            The entries of each side, in order of arrival.
        watermarks : sequence of int or None
            Watermark of each side. A value lower than before is ignored.
        """
        pairs = zip(self._watermarks, watermarks, strict=True)
        self._watermarks = [max((time for time in pair if time is not None), default=None) for pair in pairs]
        there = [watermark for watermark in self._watermarks if watermark is not None]
        common = min(there) if len(there) == len(self._sides) else None
        return [side.run(batches, common) for side, batches in zip(self._sides, arriving, strict=True)]

    def delta(self) -> PUnit:
        """Return the needed entries that were added since the last call, to be stored."""
        units = [side.delta() for side in self._sides]
        return PUnit(
            kind="delta",
            meta={
                "rows": len(self),
                "watermarks": self._watermarks,
                "sides": [unit.meta for unit in units],
            },
            blocks={f"entries_{number}": unit.blocks["entries"] for number, unit in enumerate(units)},
            packed=True,
        )

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size."""
        watermarks = list(self._watermarks)
        # Create the units of all sides now, because each side copies its state now.
        made = [list(side.snapshot()) for side in self._sides]
        return chain.from_iterable(
            [_mark_side(number, unit, watermarks) for unit in units] for number, units in enumerate(made)
        )

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply p-units in order."""
        apart: list[list[PUnit]] = [[] for _ in self._sides]
        for unit in units:
            fields, count = unit.fields, len(self._sides)
            watermarks = fields.row("watermarks", count)
            self._watermarks = [watermarks.number_or_none(number) for number in range(count)]
            if unit.kind == "snapshot":
                number = fields.count("side", most=count - 1)
                apart[number].append(PUnit("snapshot", fields.plain("of_side"), unit.blocks))
                continue
            sides = fields.row("sides", count)
            for number in range(count):
                blocks = (
                    {"entries": unit.blocks[name]} if (name := f"entries_{number}") in unit.blocks else {}
                )
                apart[number].append(PUnit(unit.kind, sides.plain(number), blocks))
        for side, theirs in zip(self._sides, apart, strict=True):
            side.restore(theirs)


def _mark_side(number: int, unit: PUnit, watermarks: list[Any]) -> PUnit:
    meta = {"watermarks": watermarks, "side": number, "of_side": unit.meta}
    return PUnit(unit.kind, meta, unit.blocks, packed=unit.packed)
