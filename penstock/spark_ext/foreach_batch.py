"""``foreachBatch`` with Spark Connect: pass the micro-batch's ids to an operator's tasks.

In a classic session the function runs in the query's thread, whose jobs carry the ids of query and
micro-batch. A Spark Connect server runs the function in a separate process, whose jobs carry no ids, so an
operator would not find its state. But every job carries Spark's settings. So while the function runs, a
setting holds the ids. The name of the setting contains the operator's name in Spark's plans.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark import TaskContext
from pyspark.sql import DataFrame

from penstock.checkpointing.files import open_files
from penstock.checkpointing.spark_checkpoint import local_path
from penstock.errors import InvalidUsageError

__all__ = ["batch_of_setting", "note_function", "tell_batches"]

_PREFIX: Final = "spark.penstock.batch."
_FUNCTION: Final = "_penstock_function"
"""The attribute of a writer that holds the user's function."""

BatchFunction: TypeAlias = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class _ToldBatches:
    """Calls a function of ``foreachBatch``, in a Python process of the server.

    Parameters
    ----------
    function : callable
        The user's function.
    operators : tuple of str
        The names of the operators in Spark's plans.
    checkpoint : str
        The query's checkpoint, which holds its id.
    name : str, optional
        The query's name.
    """

    function: BatchFunction
    operators: tuple[str, ...]
    checkpoint: str
    name: str | None

    def __call__(self, batch: DataFrame, number: int) -> None:
        settings = batch.sparkSession.conf
        files = open_files(local_path(self.checkpoint) or self.checkpoint)
        query = json.loads(bytes(files.read("metadata")))["id"]
        for operator in self.operators:
            settings.set(_PREFIX + operator, json.dumps([query, str(number), self.name]))
        try:
            self.function(batch, number)
        finally:
            for operator in self.operators:
                settings.unset(_PREFIX + operator)


def note_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a writer's ``foreachBatch`` so that it also keeps the function, for `tell_batches`."""

    @functools.wraps(method)
    def keep_function(writer: Any, func: BatchFunction) -> Any:
        vars(writer)[_FUNCTION] = func
        return method(writer, func)

    return keep_function


def tell_batches(writer: Any, operators: Iterable[str], checkpoint: str | None, name: str | None) -> None:
    """Before a writer starts, make its function pass the micro-batch's ids to its operators' tasks.

    Raises
    ------
    InvalidUsageError
        If the writer has a function but no checkpoint.
    """
    function = vars(writer).get(_FUNCTION)
    if function is None:
        return
    if checkpoint is None:
        raise InvalidUsageError(
            "foreachBatch with an operator needs a checkpoint behind Spark Connect",
            hint="set the option checkpointLocation",
        )
    told = _ToldBatches(function, tuple(operators), checkpoint, name)
    type(writer).foreachBatch.__wrapped__(writer, told)


def batch_of_setting(context: TaskContext | None, operator: str) -> tuple[str | None, str | None, str | None]:
    """Return the query's id, the micro-batch's number and the query's name from the setting."""
    told = context and context.getLocalProperty(_PREFIX + operator)
    query, number, name = json.loads(told) if told else (None, None, None)
    return query, number, name
