"""Migrate the state of windows to wider columns of their input.

Windows store only the key columns of their input, and partials of the values that are the arguments of
aggregates. So a new column changes nothing. If a column becomes wider, so do the values that are computed
from it, in partials and in waiting rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.checkpointing import PUnit
from penstock.ddl import parse_schema
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.decomposition import sketch_argument
from penstock.operators.aggregates.moments import from_settings
from penstock.operators.scan.spec import Fragments, Partial
from penstock.operators.types import UNKNOWN, expression_type
from penstock.spark_ext.border.spark_versions import as_arrow_schema
from penstock.spark_ext.border.window_packing import row_fragmenter
from penstock.spark_ext.state_copy.keyed_units import WrittenState
from penstock.spark_ext.state_copy.query_copy import QueryCopy
from penstock.spark_ext.state_copy.served_windows import window_buckets
from penstock.spark_ext.state_copy.wider_types import check_wider
from penstock.spark_ext.worker.stateful import columns_of
from penstock.spark_ext.worker.window_plan import partials_of_values, value_names
from penstock.sql.expression import Expression

__all__ = ["WidenedWindows", "convert_windows", "widen_windows"]

_PLACE = "place"


@dataclass(frozen=True, slots=True)
class WidenedWindows:
    """The changes to the stored columns of windows.

    Attributes
    ----------
    schema : list of str
        Names and types of the columns from which fragments are made, as in the specification.
    arguments : tuple of str
        The arguments of aggregates that are widened.
    types : mapping of str to pyarrow.DataType
        The new types of the stored columns whose type changes.
    """

    schema: list[str]
    arguments: tuple[str, ...]
    types: Mapping[str, pa.DataType]


def widen_windows(specification: Mapping[str, Any], columns: StructType) -> WidenedWindows:
    """Compare the stored columns of windows with the columns that a new input makes.

    Parameters
    ----------
    specification : mapping
        The specification of the windows.
    columns : StructType
        The columns of the new input.

    Raises
    ------
    InvalidUsageError
        If a column is missing, or the type of a key or an argument has changed and is not wider.
    """
    partials = [from_settings(one) for one in specification["aggregates"]]
    names, keys = value_names(partials), specification["key"]
    schema, lower = list(specification["schema"]), [name.lower() for name in columns.names]
    expressions = {text: Expression.parse(text) for text in names}
    needed = {*keys, *(name for one in expressions.values() for name in one.columns)}
    if missing := sorted(name for name in needed if name.lower() not in lower):
        raise InvalidUsageError("columns are missing in the new schema", columns=missing, hint="keep them")
    _check_keys(keys, schema, columns)
    arrow = as_arrow_schema(columns)
    was: dict[str, pa.DataType] = {}
    now: dict[str, pa.DataType] = {}
    for text, name in names.items():
        kind = expression_type(expressions[text].resolve(columns.names), arrow)
        place = next(at for at, column in enumerate(schema) if column.startswith(f"{name} "))
        # Spark checks the other types when the query starts.
        if kind == UNKNOWN or schema[place] == (column := _describe_column(name, kind)):
            continue
        was[name], now[name] = parse_schema(schema[place]).field(name).type, kind
        check_wider(text, was[name], kind, in_structs=True)
        schema[place] = column
    arguments = tuple(text for text, name in names.items() if name in now)
    _check_sketches(partials, {name for text in arguments for name in expressions[text].columns})
    before = _stored_types(partials, was)
    types = {name: kind for name, kind in _stored_types(partials, now).items() if kind != before[name]}
    return WidenedWindows(schema, arguments, types)


def _describe_column(name: str, kind: pa.DataType) -> str:
    """Return a column in the form that specifications use."""
    return columns_of(from_arrow_schema(pa.schema([(name, kind)]), prefer_timestamp_ntz=True))[0]


def _check_keys(keys: Iterable[str], schema: Iterable[str], columns: StructType) -> None:
    given = {one.name.lower(): one.dataType.simpleString() for one in columns}
    for key in keys:
        was = next(text.removeprefix(f"{key} ") for text in schema if text.startswith(f"{key} "))
        if was != given[key.lower()]:
            raise InvalidUsageError(
                "the type of a key column cannot change",
                column=key,
                was=was,
                now=given[key.lower()],
                hint="set it back, or start with a new checkpoint",
            )


def _check_sketches(partials: Iterable[Partial], widened: set[str]) -> None:
    """Refuse wider values for sketches of hashes, because Spark's hash of a value depends on its type."""
    for partial in partials:
        if partial.kind == "sketch" and widened & {*sketch_argument(partial).columns}:
            raise InvalidUsageError(
                "values of approx_count_distinct cannot become wider",
                expression=sketch_argument(partial).text,
                hint="Spark's hash depends on the type: keep it, or start with a new checkpoint",
            )


def _stored_types(partials: Iterable[Partial], kinds: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types with which these values, and the partials over them, are stored."""
    found = tuple(one for one in partials_of_values(list(partials)) if one.expression in kinds)
    rows = pa.schema([(_PLACE, pa.int64()), *kinds.items()])
    made = row_fragmenter(rows, Fragments(1, _PLACE, "us", (), found)).schema
    return {**kinds, **{one.name: made.field(one.name).type for one in found}}


def convert_windows(
    copy: QueryCopy, specification: Mapping[str, Any], types: Mapping[str, pa.DataType]
) -> Callable[[int], WrittenState | None]:
    """Return a function that reads a bucket and returns it with wider columns."""
    old = window_buckets(copy, specification)

    def state_of(bucket: int) -> WrittenState | None:
        state = old.rescale(bucket, old.buckets)
        return None if state is None else WrittenState([_convert(unit, types) for unit in state.parts])

    return state_of


def _convert(unit: PUnit, types: Mapping[str, pa.DataType]) -> PUnit:
    blocks = {}
    for name, block in unit.blocks.items():
        fields = [one.with_type(types[one.name]) if one.name in types else one for one in block.schema]
        blocks[name] = block.cast(pa.schema(fields))
    return replace(unit, blocks=blocks)
