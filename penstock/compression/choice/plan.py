"""Plans: the layout and the cascades that code a column."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.compression.abc import Cascade
from penstock.compression.codecs.decimals import Quantized
from penstock.compression.layouts import Layout, layouts_of
from penstock.compression.texts.forms import Forms
from penstock.errors import InvalidUsageError

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The layout and the cascades that code a column.

    Parameters
    ----------
    dictionary : bool
        Whether distinct texts are kept apart.
    cascades : tuple of Cascade
        One for each stream; what is missing is coded by `encode_light`.
    validity : Cascade
        For where nulls are.
    tokens : bool
        Whether texts are cut into tokens.
    forms : Forms, optional
        What these texts look like; learned from each block unless given.
    """

    dictionary: bool
    cascades: tuple[Cascade, ...]
    validity: Cascade = ()
    tokens: bool = False
    forms: Forms | None = None

    @classmethod
    def of(cls, kind: pa.DataType, cascade: Cascade) -> Plan:
        """Return the plan that codes a column of a type by one cascade.

        Of text it is that of lengths and bytes, with a dictionary that of the codes, and with tokens that of
        forms, codes, numbers and others.

        Raises
        ------
        InvalidUsageError
            If it would change values that are no floating-point numbers.
        """
        for place, name in enumerate(cascade):
            exact = pa.types.is_floating(kind) and set(cascade[:place]) <= {"run_length"}
            if name.startswith(Quantized.prefix) and not exact:
                raise InvalidUsageError(
                    "only floating-point numbers have an error bound",
                    codec=name,
                    after=">".join(cascade[:place]) or None,
                    type=str(kind),
                )
        if Layout.TEXT in layouts_of(kind) and cascade[0] == "dictionary":
            return cls(True, (cascade[1:],))
        if cascade[0] == "tokens":
            if Layout.TEXT not in layouts_of(kind):
                raise InvalidUsageError("only text has tokens", type=str(kind))
            light: Cascade = ()
            return cls(False, (*(cascade[1:],) * 3, *(light,) * 5, cascade[1:]), tokens=True)
        return cls(False, (cascade, cascade), cascade if len(cascade) == 1 else ())
