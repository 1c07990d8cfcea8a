"""Transactions over a stream: a stored procedure that runs for each tuple."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from penstock.dataflow.nodes.base import Node, find_column
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.types import UNKNOWN
from penstock.operators.update_stream.operator_options import TransactionOptions
from penstock.procedures.analysis.columns import (
    ANY_ORDER,
    batch_column,
    program_for,
    transaction_schema,
)
from penstock.procedures.analysis.routing import routing_attribute
from penstock.procedures.compiler.program import event_schema
from penstock.procedures.procedure import Procedure
from penstock.procedures.workflows.workflow import Workflow

__all__ = ["Transactions"]


@dataclass(frozen=True, slots=True)
class Transactions(Node):
    """Run a transaction for each tuple (S-Store §2); emit its results, or the reason for its rejection.

    Parameters
    ----------
    procedure, time, keep
        As in `penstock.transactions`.
    initial : tuple of str
        The tables that get initial rows when the graph starts.
    options : TransactionOptions
        Other arguments of `penstock.transactions`.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "transactions"

    procedure: Procedure | Workflow
    time: str | None = None
    keep: tuple[str, ...] = ()
    initial: tuple[str, ...] = ()
    options: TransactionOptions = field(default_factory=TransactionOptions)

    def _schema(self) -> pa.Schema:
        schema = self.inputs[0].schema
        for name in (*self.keep, *([self.time] if self.time is not None else [])):
            find_column(self, name, schema)
        unknown = [column.name for column in schema if column.type == UNKNOWN]
        procedures: tuple[Procedure, ...] = ()
        if isinstance(self.procedure, Workflow):
            procedures = self.procedure.border
        elif isinstance(self.procedure, Procedure):
            procedures = (self.procedure,)
        attributes = {
            name for procedure in procedures if procedure.event is None for name in procedure.attributes
        }
        if attributes & set(unknown):
            raise self.wrong(
                "only Spark knows the type of an attribute",
                'declare it: @database.procedure(event="name type, ..."), or CAST it in SQL',
                attribute=next(name for name in unknown if name in attributes),
            )
        try:
            missing = [name for name in self.initial if name not in self.procedure.tables]
            if missing:
                hint = did_you_mean(missing[0], self.procedure.tables, "tables")
                raise InvalidUsageError("there is no such table", table=missing[0], hint=hint)
            program = program_for(self.procedure, schema)
            batch_column(program, schema, self.options.batch)
            return transaction_schema(program, schema, self.keep, self.time, self.options.order)
        except InvalidUsageError as error:
            raise self.wrong(error.fact, error.hint, **error.context) from error

    def _key(self) -> tuple[str, ...]:
        # The output rows are results of transactions, and no result replaces another.
        return ()

    @property
    def event(self) -> pa.Schema:
        """The attributes of the procedure's event."""
        return event_schema(program_for(self.procedure, self.inputs[0].schema).event)

    @property
    def buckets(self) -> int | None:
        """The number of buckets; None means Spark's number of shuffle partitions."""
        if self.options.buckets is None:
            program = program_for(self.procedure, self.inputs[0].schema)
            return 1 if self.options.batch is not None or routing_attribute(program) is None else None
        return self.options.buckets

    @property
    def identity(self) -> str:
        """The program's digest, or the digest of an earlier program that is declared compatible."""
        program = program_for(self.procedure, self.inputs[0].schema)
        return self.options.compatible_with or program.digest

    @property
    def forwards(self) -> bool:
        """Return whether one transaction may need rows of several buckets."""
        program = program_for(self.procedure, self.inputs[0].schema)
        return self.buckets != 1 and routing_attribute(program) is None

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the event's attributes, the time, and the columns to keep."""
        optional_columns = {name for name in (self.time, self.options.batch) if isinstance(name, str)}
        return (frozenset({*self.event.names, *self.keep, *optional_columns}),)

    def describe(self) -> str:
        """Return the procedure, the order of its transactions, and whether clients may send requests."""
        order = "" if self.time is None else f" by {self.time}"
        order += " in any order" if self.options.order == ANY_ORDER else ""
        requests = "" if self.options.requests is None else " beside requests"
        batches = "" if self.options.batch is None else f" in batches by {self.options.batch}"
        return f"{self.procedure.name}{order}{batches}{requests}"
