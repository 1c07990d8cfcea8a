"""Plans: the layout and the cascades that encode a column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from penstock.compression.abc import Cascade
from penstock.compression.codecs.decimals import Quantized
from penstock.compression.layouts import Layout, layouts_of
from penstock.compression.texts.forms import Forms
from penstock.errors import InvalidUsageError

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The layout and the cascades of one column.

    Parameters
    ----------
    dictionary : bool
        Whether distinct texts are stored separately.
    cascades : tuple of Cascade
        The cascade of each stream. `encode_light` encodes streams without a cascade.
    validity : Cascade
        The cascade of the validity stream.
    tokens : bool
        Whether texts are cut into tokens.
    forms : Forms, optional
        The patterns of the texts; by default they are learned from each block.
    """

    dictionary: bool
    cascades: tuple[Cascade, ...]
    validity: Cascade = ()
    tokens: bool = False
    forms: Forms | None = None

    @classmethod
    @lru_cache(maxsize=256)
    def build(cls, kind: pa.DataType, cascade: Cascade) -> Plan:
        """Return the plan that encodes a column of a type by one cascade.

        For text the cascade applies to lengths and bytes; with a dictionary, to the codes; with tokens, to
        all streams of tokens.

        Raises
        ------
        InvalidUsageError
            If the cascade is lossy and the values are not floating-point numbers.
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
