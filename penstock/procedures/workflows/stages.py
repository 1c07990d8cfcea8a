"""The procedures of a workflow in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.schema import Column

__all__ = ["Stage", "transactions_of"]


@dataclass(frozen=True)
class Stage:
    """A procedure of a workflow.

    Parameters
    ----------
    text : ProcedureText
        The text of the procedure.
    stream : str, optional
        The stream that the procedure takes; None for a border procedure, which takes the event.
    results : tuple of Column
        The columns that the procedure returns.
    transaction : int
        The number of the procedure's transaction. The procedures of a nested transaction follow each other.
    """

    text: ProcedureText
    stream: str | None
    results: tuple[Column, ...]
    transaction: int


def transactions_of(stages: Sequence[Stage]) -> list[range]:
    """Return the stages of each transaction."""
    numbers = [stage.transaction for stage in stages]
    begins = [place for place, number in enumerate(numbers) if place == 0 or numbers[place - 1] != number]
    return [range(begin, end) for begin, end in zip(begins, [*begins[1:], len(stages)], strict=True)]
