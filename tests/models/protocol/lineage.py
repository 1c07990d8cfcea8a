"""P-units of streams in the protocol, and their dependencies.

The clock of a p-unit of stream ``o`` says from where everything can start again that is needed to make the
tuples of ``o`` *after* this p-unit:

=========  ================================================================================
``o``      the offset in stream ``o`` at which its operator goes on
``s>o``    what operator ``o`` has consumed of its input ``s``: it makes no output of tuples before
``s<o``    what it needs of ``s`` to make its state again, which is at most what it has consumed
``...|o``  the clock of its input ``s`` there, each component of it, also for all before ``s``
=========  ================================================================================

All of them only grow along a stream. An offset counts the tuples of the stream before it. A source to which
several paths lead has a component for each: one path may be durable on its way where another is not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import InternalError
from tests.models.protocol.vector_clock import VectorClock

__all__ = ["Extent", "Lineage", "StreamUnit", "consumed", "needed", "of_input", "passed_on"]


def consumed(stream: str, reader: str) -> str:
    """Return the name of the component for what `reader` has consumed of `stream`."""
    return f"{stream}>{reader}"


def needed(stream: str, reader: str) -> str:
    """Return the name of the component for what `reader` needs of `stream`."""
    return f"{stream}<{reader}"


def passed_on(clock: VectorClock, operator: str) -> dict[str, int]:
    """Return the components of the clock of an input as they stand in the clocks of `operator`."""
    return {f"{name}|{operator}": at for name, at in clock.items()}


def of_input(clock: VectorClock, operator: str, origin: VectorClock) -> VectorClock:
    """Return the clock that was `passed_on` of the input that has this origin."""
    return VectorClock({name: clock[f"{name}|{operator}"] for name in origin})


@dataclass(frozen=True, slots=True)
class Extent:
    """The place of a p-unit in its stream, from `offset` up to `end`, and its clock."""

    stream: str
    offset: int
    end: int
    clock: VectorClock


@dataclass(frozen=True, slots=True)
class StreamUnit:
    """A p-unit of a stream: tuples that follow each other, and what they depend on.

    One without tuples says how far its operator has come where it had nothing to write; it is never durable.
    """

    stream: str
    offset: int
    rows: tuple[Any, ...]
    clock: VectorClock

    @property
    def end(self) -> int:
        """The offset of the next tuple after this p-unit."""
        return self.offset + len(self.rows)

    @property
    def extent(self) -> Extent:
        """The p-unit without its tuples."""
        return Extent(self.stream, self.offset, self.end, self.clock)

    def since(self, clock: VectorClock) -> StreamUnit:
        """Return this p-unit with a clock that is not before one from further up the stream.

        A place from which the tuples after an earlier offset can be made is also one for those after this
        p-unit. It may be later, since p-units that are made again may be longer, and their clocks coarser.
        """
        return replace(self, clock=self.clock.merge(clock))

    def after(self, offset: int) -> StreamUnit:
        """Return the part of this p-unit that does not lie before `offset`."""
        if offset <= self.offset:
            return self
        start = min(offset, self.end)
        return replace(self, offset=start, rows=self.rows[start - self.offset :])


class Lineage:
    """The clocks of the p-units of one input, by their ends: what an operator's state depends on.

    Parameters
    ----------
    entries : iterable of (int, VectorClock)
        Ends and clocks in the order of the stream. The first is where reading began.
    """

    def __init__(self, entries: Iterable[tuple[int, VectorClock]]) -> None:
        self._entries = list(entries)

    @property
    def entries(self) -> Sequence[tuple[int, VectorClock]]:
        """The remembered clocks, oldest first."""
        return tuple(self._entries)

    def add(self, end: int, clock: VectorClock) -> None:
        """Remember that the p-unit before `end` has this clock, or a later one if one before has."""
        last, at = self._entries[-1]
        if end >= last:
            self._entries.append((end, clock.merge(at)))

    def at(self, offset: int) -> VectorClock:
        """Return the clock from which the stream can be made again from `offset` on.

        Raises
        ------
        InternalError
            If nothing so early is remembered.
        """
        found = bisect_right(self._entries, offset, key=lambda entry: entry[0]) - 1
        if found < 0:
            raise InternalError("the lineage of an input was forgotten too early", offset=offset)
        return self._entries[found][1]

    def forget(self, offset: int) -> None:
        """Forget the clocks on which no tuple from `offset` on depends."""
        del self._entries[: max(bisect_right(self._entries, offset, key=lambda entry: entry[0]) - 1, 0)]
