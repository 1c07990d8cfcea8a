"""`update_union`: merge several update streams into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Unpack

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ByteType, StructType

from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.update_stream.operator_options import QueueOptions, UnionArguments, make_options
from penstock.operators.update_stream.stream import SOURCE_COLUMN
from penstock.spark_ext.api.update_queue import run_queue
from penstock.spark_ext.declared import Schema, declare_columns, with_column

__all__ = ["run_union", "update_union"]


@check_keywords
def update_union(
    *dfs: DataFrame | Mapping[str, DataFrame],
    key: str | Iterable[str],
    time: str,
    prefer: int | str | None = None,
    schema: Schema | None = None,
    name: str = "update_union",
    **options: Unpack[UnionArguments],
) -> DataFrame:
    """Merge several update streams into one, in order of time for each key; no input waits for another.

    The newest available tuple of each key is delivered, from any input. A tuple that arrives after a
    delivered tuple of its key is *late* if it is older, and a *duplicate* if its time is equal; both are
    dropped and counted. So the times of a key strictly increase, with one tuple for each time (UpStream
    §3.2).

    The union is also an update queue: one stateful operator does the work of both.

    Parameters
    ----------
    *dfs : DataFrame
        Two or more streaming DataFrames with the same columns, in any order; or one mapping of names to
        DataFrames.
    key : str or iterable of str
        The update key's columns.
    time : str
        The column that orders the updates of a key.
    prefer : int or str, optional
        The input that wins a tie, by position (from 0) or name. Two tuples of equal key and time are a tie if
        they arrive in one micro-batch, or if one of them still waits. A delivered tuple is not retracted. By
        default the first tuple to arrive wins; within a micro-batch, the tuple of the input that comes first
        in `dfs` wins.
    schema : StructType or str, optional
        The columns of each input, or their DDL; see `penstock.update_queue`.
    name : str
        The operator's name in metrics and state, unique within a query and the same at a restart.
    **options
        ``policy``, ``budget``, ``apply``, ``output_schema``, ``buckets``, ``arrival``, ``cost``, ``weight``,
        ``nulls``, ``combine``, ``staleness_column``, ``delete_when``, ``ttl``, ``delete_ttl``,
        ``on_silent``, ``working_copy``, ``late_to``, ``state_location`` and ``retain_versions``, as for
        `penstock.update_queue`.

    Returns
    -------
    DataFrame
        A streaming DataFrame with the columns of the first input.

    Raises
    ------
    InvalidUsageError
        If the inputs differ in their columns, or the preferred input does not exist. Also as for
        `penstock.update_queue`.

    Examples
    --------
    >>> quotes = penstock.update_union(
    ...     {"fast": fast, "sure": sure}, key="symbol", time="time", prefer="sure",
    ...     state_location="/var/lib/penstock",
    ... )  # doctest: +SKIP
    """
    return run_union(dfs, key, time, prefer, make_options(QueueOptions, options), name, schema)


def run_union(
    dfs: Sequence[DataFrame | Mapping[str, DataFrame]],
    key: str | Iterable[str],
    time: str,
    prefer: int | str | None,
    options: QueueOptions,
    name: str,
    schema: Schema | None = None,
) -> DataFrame:
    """Return the output of a union; see `update_union`."""
    inputs = _inputs(dfs)
    winner = _position(prefer, inputs)
    given = {name: declare_columns(df, schema) for name, df in inputs.items()}
    inputs = {name: df for name, (df, _) in given.items()}
    declared = any(known for _, known in given.values())
    first_name, first = next(iter(inputs.items()))
    for other_name, other in inputs.items():
        if not declared and not other.isStreaming:
            raise InvalidUsageError(
                "the DataFrame is not streaming", input=other_name, hint="use spark.readStream"
            )
        _check_same_columns(first_name, first.schema, other_name, other.schema)
    marked = [
        df.withColumn(SOURCE_COLUMN, sf.lit(int(winner is not None and place != winner)).cast("tinyint"))
        for place, df in enumerate(inputs.values())
    ]
    if declared:
        marked = [df.to(with_column(first.schema, SOURCE_COLUMN, ByteType())) for df in marked]
    united = reduce(DataFrame.unionByName, marked)
    return run_queue(united, key, time, options, name, SOURCE_COLUMN, declared=declared)


def _inputs(dfs: Sequence[DataFrame | Mapping[str, DataFrame]]) -> dict[str, DataFrame]:
    """Return the inputs by name, or by number."""
    if len(dfs) == 1 and isinstance(dfs[0], Mapping):
        inputs: dict[str, Any] = dict(dfs[0])
    else:
        inputs = {str(place): df for place, df in enumerate(dfs)}
    wrong = [name for name, df in inputs.items() if not isinstance(df, DataFrame)]
    if wrong:
        raise InvalidUsageError(
            "an input is not a DataFrame",
            input=wrong[0],
            hint="pass DataFrames, or one mapping of names to DataFrames",
        )
    if len(inputs) < 2:
        raise InvalidUsageError("a union needs at least two inputs", inputs=len(inputs))
    return inputs


def _position(prefer: Any, inputs: Mapping[str, DataFrame]) -> int | None:
    names = list(inputs)
    if prefer is None:
        return None
    if isinstance(prefer, str):
        if prefer in names:
            return names.index(prefer)
        raise InvalidUsageError(
            "there is no such input to prefer", prefer=prefer, hint=did_you_mean(prefer, names, "inputs")
        )
    if isinstance(prefer, bool) or not isinstance(prefer, int) or not 0 <= prefer < len(names):
        raise InvalidUsageError(
            "there is no such input to prefer",
            prefer=repr(prefer),
            hint=f"the inputs are 0 to {len(names) - 1}",
        )
    return prefer


def _check_same_columns(first: str, ours: StructType, other: str, theirs: StructType) -> None:
    types = {column.name: column.dataType for column in theirs}
    missing = [name for name in ours.names if name not in types]
    more = [name for name in theirs.names if name not in ours.names]
    differ = [
        f"{column.name} is {types[column.name].simpleString()}, not {column.dataType.simpleString()}"
        for column in ours
        if column.name in types and types[column.name] != column.dataType
    ]
    if missing or more or differ:
        raise InvalidUsageError(
            "the inputs of a union differ in their columns",
            first=first,
            other=other,
            missing=", ".join(missing) or "none",
            additional=", ".join(more) or "none",
            types="; ".join(differ) or "same",
            hint="make the same columns with select",
        )
