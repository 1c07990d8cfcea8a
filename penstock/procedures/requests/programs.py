"""The procedures of a database that requests may call."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import InvalidUsageError, did_you_mean
from penstock.procedures.analysis.routing import routing_attribute
from penstock.procedures.compiler.program import PlainProgram, Program, event_schema, result_schema

if TYPE_CHECKING:
    from penstock.procedures.workflows.catalog import Catalog

__all__ = ["RequestPrograms", "request_program", "result_columns"]

NO_PROCEDURE = "no such procedure"
NOT_FOR_REQUESTS = "not for requests"
SEVERAL_BUCKETS = "several buckets"


@dataclass(frozen=True)
class RequestPrograms:
    """The procedures that requests may call. The driver makes this object, and workers use it.

    Parameters
    ----------
    programs : mapping of str to Program
        The programs, by the names of procedures.
    refusals : mapping of str to str
        The reasons to reject requests for all other procedures, by the names of these procedures.
    """

    programs: Mapping[str, Program | PlainProgram]
    refusals: Mapping[str, str]

    @staticmethod
    def collect(catalog: Catalog, buckets: int, route: pa.DataType | None = None) -> RequestPrograms:
        """Return the procedures of a database that requests may call.

        Parameters
        ----------
        catalog : Catalog
            The declarations of the database.
        buckets : int
            The number of buckets. With several buckets, a request runs in the bucket of its event, like the
            stream's events.
        route : pyarrow.DataType, optional
            The type of the attribute that determines the bucket of the stream's events, if there are several
            buckets.
        """
        programs: dict[str, Program | PlainProgram] = {}
        refusals: dict[str, str] = {}
        for name in catalog.procedures:
            try:
                program = request_program(catalog, name)
            except InvalidUsageError:
                refusals[name] = NOT_FOR_REQUESTS
                continue
            if buckets > 1 and not _has_route(program, route):
                refusals[name] = SEVERAL_BUCKETS
            else:
                programs[name] = program
        return RequestPrograms(programs, refusals)

    @property
    def digest(self) -> str:
        """A text that identifies this set of programs."""
        digests = sorted((name, program.digest) for name, program in self.programs.items())
        return hashlib.sha256(repr((digests, sorted(self.refusals.items()))).encode()).hexdigest()

    def types(self, procedures: Iterable[str]) -> dict[bytes, bytes]:
        """Return the columns of the procedures' results, as metadata of a table of answers."""
        called = {name: self.programs[name] for name in {*procedures} if name in self.programs}
        return {
            name.encode(): result_columns(program).serialize().to_pybytes()
            for name, program in called.items()
        }

    def route(self, procedure: str) -> str | None:
        """Return the attribute that determines a request's bucket; None if there is no such program."""
        program = self.programs.get(procedure)
        return None if program is None else routing_attribute(program)

    def why_not(self, procedure: str) -> str:
        """Return the reason to reject a procedure without a program."""
        return self.refusals.get(procedure, NO_PROCEDURE)


def _has_route(program: Program | PlainProgram, route: pa.DataType | None) -> bool:
    """Return whether a program has a routing attribute that can be cast to the stream's `route`."""
    attribute = routing_attribute(program)
    if attribute is None or route is None:
        return False
    try:
        pa.nulls(0, event_schema(program.event).field(attribute).type).cast(route)
    except pa.ArrowNotImplementedError:  # only Arrow can tell whether a cast exists
        return False
    return True


def request_program(catalog: Catalog, name: str) -> Program | PlainProgram:
    """Return the program for requests of a procedure.

    Raises
    ------
    InvalidUsageError
        If there is no such procedure, or only a stream may run it.
    """
    procedure = catalog.procedures.get(name)
    if procedure is None:
        hint = did_you_mean(name, catalog.procedures, "procedures")
        raise InvalidUsageError("there is no such procedure", procedure=name, hint=hint)
    if procedure.event is None:
        raise InvalidUsageError(
            "a request needs to know the attributes of the event",
            procedure=name,
            hint='declare them: @database.procedure(event="name type, ...")',
        )
    windows = catalog.find_dependencies([procedure.text]).windows
    if procedure.stream is not None or windows:
        private = procedure.stream.name if procedure.stream is not None else next(iter(windows))
        raise InvalidUsageError(
            "requests call procedures that access tables only",
            procedure=name,
            accesses=private,
            hint="streams and windows belong to the workflow; let it write a table that the request reads",
        )
    return procedure.program()


def result_columns(program: Program | PlainProgram) -> pa.Schema:
    """Return the columns of a program's results, without `rejected`."""
    return result_schema(program).remove(len(program.results))
