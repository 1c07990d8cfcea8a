"""Unions and joins, in a graph that is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self, Unpack

from penstock.errors import InvalidUsageError
from penstock.operators.graph.builder.written import Written
from penstock.operators.graph.nodes import (
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
from penstock.operators.graph.types import UNKNOWN
from penstock.operators.scan.spec import TimeUnit
from penstock.operators.sql.expression import Expression
from penstock.operators.update_stream.operator_options import (
    JoinArguments,
    JoinOptions,
    QueueOptions,
    UnionArguments,
    make_options,
)
from penstock.operators.update_stream.steps import steps_of
from penstock.units import parse_duration_us

__all__ = ["Streams"]


@dataclass(frozen=True, slots=True)
class Streams(Written):
    """The methods of `Graph` that are about several streams."""

    def union(
        self,
        *others: Self,
        key: str | Sequence[str] = (),
        time: str | None = None,
        prefer: int | str | None = None,
        name: str | None = None,
        **options: Unpack[UnionArguments],
    ) -> Self:
        """Return all tuples of this and other graphs, which have the same columns.

        Of update streams, which all have the same key, it is an update stream: the newest tuple of each key,
        and at most one of each key and time, as `penstock.update_union` says. Of windows in append mode it
        has all, as all come out, and is no update stream.

        Parameters
        ----------
        key, time : str or sequence of str, and str, optional
            Take the inputs for update streams of this key, ordered by this time; needless for those that are,
            but for windows, whose time is in a struct: compute one, such as ``select("k", at="window.end")``.
        prefer : int or str, optional
            Of update streams, whose truth wins a tie: by position, this graph being 0; or the name of an
            input's last operator or of its source.
        **options
            Of update streams: other arguments of `penstock.update_union`, such as ``nulls="drop"``.

        Raises
        ------
        InvalidUsageError
            If the columns or the update keys differ, the time of an update stream is gone, or there is no
            such input to prefer.
        """
        own = self._open("union", name)
        made = make_options(QueueOptions, options, (*UnionArguments.__annotations__, "prefer"), node=own)
        inputs = (self.root, *(other._ready() for other in others))
        names = (key,) if isinstance(key, str) else tuple(key)
        if bool(names) != bool(time):
            raise InvalidUsageError("an update stream has a key and a time", key=names, time=time, node=own)
        if time:
            columns = tuple(self._column(each, own) for each in names)
            place = _input(prefer, own, inputs)
            return self._with(UpdateUnion(own, inputs, columns, self._column(time, own), place, made))
        plain = (WindowUnion if all(map(has_all_windows, inputs)) else Union)(own, inputs)
        if not plain.key:
            if prefer is not None or options:
                raise plain.wrong(
                    "only a union of update streams has options",
                    "say what the streams are with source(key=..., time=...) or update_queue, "
                    "or give key= and time= here",
                    options=", ".join([*(["prefer"] if prefer is not None else []), *options]),
                )
            return self._with(plain)
        times = [update_time(node) for node in inputs]
        if None in times or len(set(times)) > 1:
            raise plain.wrong(
                "the update streams of a union have no time in common",
                "keep it, as it is, in every select; or compute one, of windows such as at='window.end', "
                "and say union(..., key=..., time='at')",
                times=", ".join(str(each) for each in times),
            )
        place = _input(prefer, own, inputs)
        return self._with(UpdateUnion(own, inputs, plain.key, str(times[0]), place, made))

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
        """Join with another graph by columns of the same name, within an interval of a time that both have.

        The output has the columns of both, those of the join and the time once, from this graph. Update
        streams are joined by their key: of each key the newest match comes out, with the greater of both
        times, as `penstock.update_join` says; other streams cannot be joined in a graph that runs.

        Parameters
        ----------
        on : str or sequence of str
            The columns; of update streams the key.
        time : str
            A timestamp, a date, or an integer with a `unit`.
        within : str or timedelta
            How far two times may be apart, such as ``"10 s"``; both ends are included.
        condition : str, optional
            What else must be true, over the columns of the output.
        unit : str, optional
            Of a time of integers: ``s``, ``ms``, ``us`` or ``ns``.
        updates : bool
            Whether to take both for update streams whose key is `on`; needless for those that are.
        **options
            Other arguments of `penstock.update_join`, such as ``watermark_delay="1 minute"``.

        Raises
        ------
        InvalidUsageError
            If a column is not on both sides or of other types there, others have the same name, update
            streams are not joined by their key, or the condition is none.
        """
        own = self._open("join", name)
        known = (*JoinArguments.__annotations__, "condition", "unit", "updates")
        made = make_options(JoinOptions, options, known, node=own)
        names = (on,) if isinstance(on, str) else tuple(on)
        inputs = (self.root, other._ready())
        joined = Join(
            *(own, inputs, names, time, parse_duration_us(within)),
            updates=updates, unit=unit, options=made,
        )  # fmt: skip
        if joined.key:
            kind = joined.schema.field(time).type
            for option, duration in (("within", within), ("watermark_delay", made.watermark_delay)):
                if duration is not None and kind != UNKNOWN:
                    steps_of(option, duration, kind, unit)
        if condition is not None:
            predicate = Expression.parse(condition).resolve(joined.schema.names, node=own)
            joined = replace(joined, condition=predicate)
        return self._with(joined)


def _input(prefer: int | str | None, union: str, inputs: Sequence[Node]) -> int | None:
    """Return the position of the input whose truth wins."""
    names = [
        {node.name, *(one.name for one in topological(node) if isinstance(one, Source))} for node in inputs
    ]
    if prefer is None or (type(prefer) is int and 0 <= prefer < len(names)):
        return prefer
    found = [place for place, some in enumerate(names) if prefer in some]
    if len(found) == 1:
        return found[0]
    raise InvalidUsageError(
        "several inputs have the name to prefer" if found else "there is no such input to prefer",
        hint="say its position, or one of " + ", ".join(sorted(set().union(*names))),
        prefer=prefer,
        node=union,
    )
