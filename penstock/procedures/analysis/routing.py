"""Find the event attribute that determines the bucket of a transaction."""

from __future__ import annotations

from penstock.procedures.compiler.program import PlainProgram, Program
from penstock.procedures.compiler.values import Origin

__all__ = ["attribute_of", "routing_attribute", "routing_obstacle"]


def routing_attribute(program: Program | PlainProgram) -> str | None:
    """Return the attribute of the event that holds the partition of all rows of a transaction.

    Without such an attribute, return None: all transactions must run in one bucket.
    """
    if isinstance(program, PlainProgram) or routing_obstacle(program):
        return None
    return _attributes(program).pop()


def _attributes(program: Program) -> set[str]:
    tables = {spec.name: spec for spec in program.tables}
    attributes = set()
    for access in program.accesses:
        spec = tables[access.table]
        if spec.partition_by is not None:
            attribute = attribute_of(program, access.origins[spec.key.index(spec.partition_by)])
            if attribute is not None:
                attributes.add(attribute)
    return attributes


def attribute_of(program: Program, origin: Origin | None) -> str | None:
    """Return the event attribute that an origin names; None if the origin is no attribute, or a list."""
    names = {column.name for column in program.event if not column.is_list}
    return origin if isinstance(origin, str) and origin in names else None


def routing_obstacle(program: Program | PlainProgram) -> str | None:
    """Return the reason why all transactions must run in one bucket; None if they may run in several."""
    if isinstance(program, PlainProgram):
        return "Python runs it"
    tables = {spec.name: spec for spec in program.tables}
    for access in program.accesses:
        spec = tables[access.table]
        if spec.partition_by is None:
            return spec.why_one_bucket
        place = spec.key.index(spec.partition_by)
        if attribute_of(program, access.origins[place]) is None:
            return f"{access.table}[{', '.join(access.key)}] has a key that is not an attribute of the event"
    attributes = _attributes(program)
    if len(attributes) > 1:
        return f"keys are of several attributes: {', '.join(sorted(attributes))}"
    return None if attributes else "it accesses no table"
