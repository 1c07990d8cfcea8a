"""The graph builder: unions and joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self, Unpack

from penstock.conf.arguments import check_keywords
from penstock.dataflow.builder.base import GraphBase, mark_input
from penstock.dataflow.nodes import (
    Join,
    Node,
    Source,
    Union,
    UpdateUnion,
    WindowUnion,
    has_all_windows,
    topological,
    update_time,
)
from penstock.errors import InvalidUsageError
from penstock.operators.scan.spec import TimeUnit
from penstock.operators.types import UNKNOWN
from penstock.operators.update_stream.deletes import delete_conditions
from penstock.operators.update_stream.lives import life_steps
from penstock.operators.update_stream.operator_options import (
    JoinArguments,
    JoinOptions,
    QueueOptions,
    UnionArguments,
    make_options,
)
from penstock.operators.update_stream.options import column_names
from penstock.operators.update_stream.steps import steps_of
from penstock.sql.expression import Expression
from penstock.units import parse_duration_us

__all__ = ["Streams"]


@check_keywords
@dataclass(frozen=True, slots=True)
class Streams(GraphBase):
    """The methods of `Graph` that combine several streams."""

    def union(
        self,
        *others: Self,
        key: str | Sequence[str] = (),
        time: str | None = None,
        prefer: int | str | None = None,
        name: str | None = None,
        **options: Unpack[UnionArguments],
    ) -> Self:
        """Return the union of this and other graphs with the same columns.

        The union of update streams with the same key is an update stream: it holds the newest tuple of each
        key, and at most one tuple per key and time, as in `penstock.update_union`. The union of windows in
        append mode holds every window and is not an update stream.

        Parameters
        ----------
        key, time : str or sequence of str, and str, optional
            Treat the inputs as update streams with this key and time. Both are needless if all inputs already
            are update streams. Windows need both: the time of a window is inside a struct, so first compute a
            column of times, such as ``select("k", at="window.end")``.
        prefer : int or str, optional
            The input that wins ties between update streams: its position (this graph is 0), or the name of
            its last operator or source.
        **options
            For update streams, other arguments of `penstock.update_union`, such as ``nulls="drop"``.

        Raises
        ------
        InvalidUsageError
            If the columns or update keys differ, an update stream has lost its time, or the preferred input
            does not exist.
        """
        node_name = self._open("union", name)
        queue_options = make_options(QueueOptions, options, node=node_name)
        inputs = (self.root, *(self._input_of(other, node_name) for other in others))
        names = column_names("key", key)
        if time is not None:
            column_names("time", time)
        if bool(names) != bool(time):
            raise InvalidUsageError(
                "an update stream needs a key and a time", key=names, time=time, node=node_name
            )
        if time:
            columns = tuple(self._column(column_name, node_name) for column_name in names)
            place = _input(prefer, node_name, inputs)
            return self._add_queue(
                UpdateUnion(node_name, inputs, columns, self._column(time, node_name), place, queue_options)
            )
        plain = (WindowUnion if all(map(has_all_windows, inputs)) else Union)(node_name, inputs)
        if not plain.key:
            if prefer is not None or options:
                raise plain.wrong(
                    "only a union of update streams has options",
                    "declare the inputs with source(key=..., time=...) or update_queue, "
                    "or pass key= and time= here",
                    options=", ".join([*(["prefer"] if prefer is not None else []), *options]),
                )
            return self._append(plain)
        times = [update_time(node) for node in inputs]
        if None in times or len(set(times)) > 1:
            raise plain.wrong(
                "the update streams of a union have no common time",
                "keep the time unchanged in every select; or compute a time, such as at='window.end' for "
                "windows, and pass union(..., key=..., time='at')",
                times=", ".join(str(column_time) for column_time in times),
            )
        place = _input(prefer, node_name, inputs)
        return self._add_queue(UpdateUnion(node_name, inputs, plain.key, str(times[0]), place, queue_options))

    def join(
        self,
        other: Self,
        *,
        on: str | Sequence[str],
        time: str,
        within: str | timedelta,
        condition: str | None = None,
        unit: TimeUnit | None = None,
        updates: bool = False,
        name: str | None = None,
        **options: Unpack[JoinArguments],
    ) -> Self:
        """Join with another graph by columns of the same name; the times differ by at most `within`.

        The output has the columns of both sides; join columns and time appear once, from this graph. Update
        streams are joined by their key. The newest match of each key is emitted, with the greater of both
        times, as in `penstock.update_join`. A graph that joins streams other than update streams cannot run.

        Parameters
        ----------
        on : str or sequence of str
            The join columns; for update streams the key.
        time : str
            The column of times: timestamps, dates, or integers with a `unit`.
        within : str or timedelta
            The maximum difference of two times, inclusive, such as ``"10 s"``.
        condition : str, optional
            A further condition over the columns of the output.
        unit : str, optional
            The unit of an integer time: ``s``, ``ms``, ``us`` or ``ns``.
        updates : bool
            Whether to treat both inputs as update streams with the key `on`; not needed if they already are.
        **options
            Other arguments of `penstock.update_join`, such as ``watermark_delay="1 minute"``.

        Raises
        ------
        InvalidUsageError
            If a join column is missing on one side or its types differ, columns other than the join columns
            and the time share a name, update streams are not joined by their key, or the condition is not
            boolean.
        """
        node_name = self._open("join", name)
        join_options = make_options(JoinOptions, options, node=node_name)
        names, (time,) = column_names("on", on), column_names("time", time)
        conditions = delete_conditions(join_options.delete_when)
        inputs = [
            node if condition is None else mark_input(node, condition, f"{node_name}_{side}_deletes")
            for side, node, condition in zip(
                ("left", "right"), (self.root, self._input_of(other, node_name)), conditions, strict=True
            )
        ]
        join = Join(
            *(node_name, tuple(inputs), names, time, parse_duration_us(within)),
            updates=updates, unit=unit, options=replace(join_options, delete_when=None),
            marked=(conditions[0] is not None, conditions[1] is not None),
        )  # fmt: skip
        if join.key:
            kind = join.schema.field(time).type
            for option, duration in (("within", within), ("watermark_delay", join_options.watermark_delay)):
                if duration is not None and kind != UNKNOWN:
                    steps_of(option, duration, kind, unit)
            if kind != UNKNOWN:
                life_steps("ttl", join_options.ttl, kind, unit)
        if condition is not None:
            predicate = Expression.parse(condition).resolve(join.schema.names, node=node_name)
            join = replace(join, condition=predicate)
        return self._append(join)


def _input(prefer: int | str | None, union: str, inputs: Sequence[Node]) -> int | None:
    """Return the position of the preferred input."""
    names = [
        {node.name, *(source.name for source in topological(node) if isinstance(source, Source))}
        for node in inputs
    ]
    if prefer is None or (type(prefer) is int and 0 <= prefer < len(names)):
        return prefer
    places = [place for place, node_names in enumerate(names) if prefer in node_names]
    if len(places) == 1:
        return places[0]
    raise InvalidUsageError(
        "several inputs have the preferred name" if places else "there is no such input to prefer",
        hint="give its position, or one of " + ", ".join(sorted(set().union(*names))),
        prefer=prefer,
        node=union,
    )
