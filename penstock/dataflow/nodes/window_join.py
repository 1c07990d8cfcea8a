"""The join of windows that end together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from penstock.dataflow.nodes.base import Node, distinct, find_column, infer
from penstock.dataflow.nodes.stateless import Select, Where
from penstock.dataflow.nodes.window import (
    WINDOW,
    Aggregate,
    Assemble,
    Window,
    check_window_kept,
)
from penstock.sql.expression import Expression
from penstock.units import duration_text

__all__ = ["WindowJoin"]


@dataclass(frozen=True, slots=True)
class WindowJoin(Node):
    """Join windows of two aggregates, if the windows end at the same time, by columns of the same name.

    The join runs in tumbling windows whose length is the slide. Each tumbling window joins the windows of
    both sides that end when it ends. The output has the left side's columns, with the tumbling window as
    `WINDOW`, and the right side's columns except the join columns.
    """

    stateful: ClassVar[bool] = True
    label: ClassVar[str] = "join of windows"

    on: tuple[str, ...] = ()
    condition: Expression | None = None

    def _schema(self) -> pa.Schema:
        left, right = (above.schema for above in self.inputs)
        left_window, right_window = (self.window_of(above) for above in self.inputs)
        for side in (left_window, right_window):
            if side.separate is not None:
                raise self.wrong(
                    f"{side.separate} cannot be joined",
                    f"use windows of time; {side.separate} do not end together",
                    window=side.describe(),
                )
            if side.by_key:
                raise self.wrong(
                    "only windows in append mode can be joined",
                    "use mode='append'",
                    mode=side.options.mode,
                )
            if side.options.delete_when is not None:
                raise self.wrong("windows with deletes cannot be joined", "filter the deletes out instead")
        if (
            left_window.slide_ms != right_window.slide_ms
            or (left_window.size_ms - right_window.size_ms) % left_window.slide_ms
        ):
            raise self.wrong(
                "windows that end at different times cannot be joined",
                "give both the same slide",
                left=left_window.describe(),
                right=right_window.describe(),
            )
        if WINDOW in self.on:
            raise self.wrong(f"{WINDOW} is always part of the join", "name the other columns only")
        for name in self.on:
            if find_column(self, name, left).type != find_column(self, name, right).type:
                raise self.wrong("a column has different types on the two sides", "cast it", column=name)
        fields = [*left, *(field for field in right if field.name not in (WINDOW, *self.on))]
        schema = distinct(self, pa.schema(fields))
        if self.condition is not None:
            infer(self, self.condition, schema)
        return schema

    def _key(self) -> tuple[str, ...]:
        # The output has the columns of both sides, so both keys are needed.
        left, right = (above.key for above in self.inputs)
        return (*left, *(name for name in right if name not in left))

    def aggregate_of(self, above: Node) -> Aggregate | Assemble:
        """Return the aggregate that makes the windows of a side.

        Raises
        ------
        InvalidUsageError
            If the side has no aggregate of windows, or other operators stand between it and the join.
        """
        at = above
        while _keeps_windows(at) and WINDOW in at.schema.names:
            check_window_kept(self, at)
            at = at.inputs[0]
        makes_windows = isinstance(at, Assemble) or (
            isinstance(at, Aggregate) and isinstance(at.inputs[0], Window)
        )
        if not makes_windows or not isinstance(at, Aggregate | Assemble):
            raise self.wrong(
                "an operator between windows and their join is not allowed",
                "between agg and join_windows use only where, group_by('window') or select with window",
                after=at.name,
            )
        return at

    def window_of(self, above: Node) -> Window:
        """Return the windows of a side.

        Raises
        ------
        InvalidUsageError
            If the side has no aggregate of windows, or other operators stand between it and the join.
        """
        at = self.aggregate_of(above)
        window = at.window if isinstance(at, Assemble) else at.inputs[0]
        assert isinstance(window, Window)  # noqa: S101  # aggregate_of checked it
        return window

    @property
    def slide_ms(self) -> int:
        """The length of the tumbling windows of the join."""
        return self.window_of(self.inputs[0]).slide_ms

    def needs(self, required: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Return the required columns of each side, the join columns and the window."""
        used = required | {*self.on, WINDOW} | set(self.condition.columns if self.condition else ())
        return tuple(used & set(above.schema.names) for above in self.inputs)

    def describe(self) -> str:
        """Return the join columns, the length of the tumbling windows, and the condition."""
        names = ", ".join((*self.on, WINDOW))
        suffix = f" and {self.condition.text}" if self.condition else ""
        return f"on {names} of {duration_text(self.slide_ms)}{suffix}"


def _keeps_windows(node: Node) -> bool:
    """Return whether a node's output has the windows of its input."""
    return isinstance(node, Where | Select) or (
        isinstance(node, Aggregate) and not isinstance(node.inputs[0], Window)
    )
