"""Name the arrays of a kernel, and generate the code that accesses them.

Arrays and numbers of table 0, column 1::

    t0_c1       values of a column
    t0_n1       mask of its nulls, if it may have any
    t0_entries  the hash index of the key
    t0_live     which slots hold a row
    t0_dirty    which rows have changed
    t0_free     a stack of free slots
    t0_gone     deleted keys
    t0_facts    the numbers `FACTS`, then the roots of the ordered indexes
    t0_i1       the nodes of an ordered index (`penstock.procedures.indexes.trees`)

Stream 0 has columns such as ``s0_c1`` and masks such as ``s0_n1``. A variable of the kernel counts the rows
of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import ClassVar

from penstock.procedures.compiler.operations import decimal
from penstock.procedures.compiler.values import Value
from penstock.procedures.schema import MAX_WIDE_DIGITS, Column, Kind, RelationSpec, TableSpec, digits_of
from penstock.procedures.texts import wide_bytes
from penstock.procedures.workflows.dependencies import Dependencies

__all__ = [
    "FACTS",
    "FREE",
    "GONE",
    "LIVE",
    "SHIFT",
    "TEXT_BYTES",
    "USED",
    "Layout",
    "StreamCode",
    "TableCode",
]

FACTS = ("used", "free", "live", "gone", "shift")
"""The names of the numbers in ``t0_facts``.

The first four count, in this order, the slots that hold or have held a row, the free slots, the rows, and the
deleted keys. The last number is the shift of the hash index.
"""

USED, FREE, LIVE, GONE, SHIFT = range(len(FACTS))

TEXT_BYTES = ("text_offsets", "text_bytes")
"""The last arguments of a kernel with indexes: the bytes of all texts. The indexes order texts by bytes."""


@dataclass(frozen=True)
class RelationCode:
    """A table or a stream in generated code.

    Parameters
    ----------
    spec : RelationSpec
        The table or stream.
    number : int
        The position among the tables or the streams of the program.
    """

    letter: ClassVar[str]
    """The prefix of the variables' names, before the number."""

    spec: RelationSpec
    number: int

    def array(self, name: str) -> str:
        """Return the name of an array, or of another variable."""
        return f"{self.letter}{self.number}_{name}"

    def column(self, name: str) -> str:
        """Return the name of a column's array."""
        return self.array(f"c{self.spec.names.index(name)}")

    def null(self, name: str) -> str:
        """Return the name of the mask of a column's nulls."""
        return self.array(f"n{self.spec.names.index(name)}")

    @property
    def arrays(self) -> list[str]:
        """The names of all arrays, in the order of the kernel's arguments."""
        names = []
        for column in self.spec.columns:
            names.append(self.column(column.name))
            if column.nullable:
                names.append(self.null(column.name))
        return names


@dataclass(frozen=True)
class TableCode(RelationCode):
    """A table in generated code."""

    letter = "t"
    spec: TableSpec

    def fact(self, place: int) -> str:
        """Return the code of one of the numbers `FACTS`."""
        return f"{self.array('facts')}[{place}]"

    @property
    def arrays(self) -> list[str]:
        """See `RelationCode.arrays`."""
        table_arrays = [self.array(name) for name in ("entries", "live", "dirty", "free", "gone", "facts")]
        indexes = [self.array(f"i{number}") for number, _ in enumerate(self.spec.indexes)]
        return [*super().arrays, *table_arrays, *indexes]

    def find(self, key: Sequence[str]) -> str:
        """Return the code that looks up a key."""
        columns = [self.column(name) for name in self.spec.key] if len(key) > 1 else []
        words = [f"np.int64({word})" for word in key]
        return f"find_{len(key)}({', '.join([self.array('entries'), self.fact(SHIFT), *words, *columns])})"

    def word(self, key: Sequence[str]) -> str:
        """Return the code of the word that the hash index has for a key."""
        words = [f"np.int64({word})" for word in key]
        return words[0] if len(key) == 1 else f"word_{len(key)}({', '.join(words)})"

    def key_at(self, slot: str) -> list[str]:
        """Return the code of the key columns of the row at a slot."""
        return [f"{self.column(name)}[{slot}]" for name in self.spec.key]


@dataclass(frozen=True)
class StreamCode(RelationCode):
    """A stream in generated code."""

    letter = "s"

    @property
    def used(self) -> str:
        """The variable that holds the number of the stream's rows."""
        return self.array("used")

    @property
    def mark(self) -> str:
        """The variable that holds the number of the stream's rows at the start of the transaction."""
        return self.array("mark")


@dataclass
class Layout:
    """The arrays of a kernel.

    Parameters
    ----------
    tables : dict
        The program's tables by name.
    streams : dict
        The streams by name.
    dependencies : Dependencies
        The dependencies of the program's procedures.
    event : tuple of Column
        The attributes of the event.
    results : tuple of Column
        The columns that the program returns.
    texts : list of str or bytes
        The literal texts in the program.
    """

    tables: dict[str, TableCode]
    streams: dict[str, StreamCode]
    dependencies: Dependencies
    event: tuple[Column, ...]
    results: tuple[Column, ...]
    texts: list[str | bytes] = field(default_factory=list)

    @staticmethod
    def build(dependencies: Dependencies, event: tuple[Column, ...], results: tuple[Column, ...]) -> Layout:
        """Return the layout of a program."""
        tables = {
            name: TableCode(spec, number) for number, (name, spec) in enumerate(dependencies.tables.items())
        }
        streams = {
            name: StreamCode(spec, number) for number, (name, spec) in enumerate(dependencies.streams.items())
        }
        return Layout(tables, streams, dependencies, event, results)

    def text(self, text: str | bytes) -> int:
        """Return the position of a literal text, or of literal bytes, in `texts`; add a new text."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def decimal(self, value: Decimal) -> Value | None:
        """Return a decimal as a constant; None if no constant can hold it."""
        constant = decimal(value)
        if constant is not None or not value.is_finite():
            return constant
        digits, scale = digits_of(value)
        if scale > MAX_WIDE_DIGITS or abs(digits) >= 10**MAX_WIDE_DIGITS:
            return None
        return self._wide(Kind(f"decimal({MAX_WIDE_DIGITS}, {scale})"), value)

    def as_wide(self, value: Value, kind: Kind) -> Value:
        """Convert a value to a kind of wide decimals if it always fits; otherwise return it unchanged."""
        if kind.wide is None:
            return value
        digits, scale = kind.wide
        if value.decimal is not None:
            constant_digits, constant_scale = digits_of(value.decimal)
            fits = constant_scale == scale and abs(constant_digits) < 10**digits
            return self._wide(kind, value.decimal) if fits else value
        fits = value.kind.wide is not None and value.kind.wide[1] == scale and value.kind.wide[0] <= digits
        return replace(value, kind=kind) if fits else value

    def as_comparable(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Convert two values to one kind of wide decimals if one of them is a wide decimal."""
        return self.as_wide(a, b.kind), self.as_wide(b, a.kind)

    def _wide(self, kind: Kind, value: Decimal) -> Value:
        return Value(kind, f"texts[{self.text(wide_bytes(digits_of(value)[0]))}]", decimal=value)

    @property
    def arguments(self) -> list[str]:
        """The names of the kernel's arguments that follow the range of events."""
        names = ["codes", "control", "texts", "u_op", "u_slot", "u_integer", "u_float", "u_null"]
        for number, column in enumerate(self.event):
            names.append(f"e{number}")
            if column.is_list:
                names.append(f"e{number}_offsets")
            if column.nullable:
                names.append(f"e{number}_null")
            if column.is_list:
                names.append(f"e{number}_nulls")
        for number, _ in enumerate(self.results):
            names += [f"r{number}", f"r{number}_null"]
        for table in self.tables.values():
            names += table.arrays
        for stream in self.streams.values():
            names += stream.arrays
        if any(table.spec.indexes for table in self.tables.values()):
            names += TEXT_BYTES
        return names
