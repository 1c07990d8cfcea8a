"""States of user-defined aggregates: rows of float64 numbers, stored as little-endian binary values."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import UNCOMPILABLE, kernel, users_kernel
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError, users_code_error
from penstock.operators.aggregates.own import Aggregate, find_aggregate, parameter_names
from penstock.operators.update_stream.stream import Integers

__all__ = ["OwnStates", "check_own_images", "finish_own", "unite_own"]

_States = npt.NDArray[np.float64]
_WORD = np.dtype("<f8")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NUMBA_FRAMES = ("Failed in nopython mode", "During:", "- ", "[", "#")
"""The beginnings of lines that say where Numba was, not what is wrong."""


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The compiled functions of an aggregate.

    Numba compiles the kernels at their first call in each process. They are not cached on disk, because Numba
    would not notice changes in modules that the methods call.
    """

    words: int
    values: int
    init: Callable[[_States, int], None]
    add: Callable[[npt.NDArray[np.int32], npt.NDArray[np.float64], _States], None]
    merge: Callable[[npt.NDArray[np.int32], _States, _States], None]
    unite: Callable[[_States, Integers, Integers, _States, _States], None]
    finish: Callable[[_States, _States, npt.NDArray[np.bool_]], None]


@kernel
def _copy(source: Any, target: Any) -> None:
    for at in range(len(source)):
        target[at] = source[at]


def _compiled(reference: str) -> _Kernels:
    aggregate: Any = find_aggregate(reference)  # mypy does not accept a class of this type as hashable
    return _compile(aggregate)


@functools.lru_cache(maxsize=256)
def _compile(aggregate: Any) -> _Kernels:
    methods = (aggregate.init, aggregate.add, aggregate.merge, aggregate.finish)
    init, add, merge, finish = (users_kernel(method, checks_bounds=True) for method in methods)
    words, count = aggregate.words, len(parameter_names(aggregate))

    @users_kernel
    def check_words(states: Any) -> None:
        # The compiler then knows the length of a state, and removes the checks of constant indexes.
        if states.shape[1] != words:
            raise ValueError("a state has another number of words")

    # Numba cannot pass a variable number of arguments, so the text lists all of them.
    arguments = ", ".join(f"values[{number}, at]" for number in range(count))
    text = f"lambda state, values, at: add(state, {arguments})"
    add_row = users_kernel(eval(text, {"add": add}))  # noqa: S307  # the text has only numbers

    @users_kernel
    def init_states(states, begin):  # type: ignore[no-untyped-def]  # compiled
        check_words(states)
        for at in range(begin, len(states)):
            init(states[at])

    @users_kernel
    def add_values(slots, values, states):  # type: ignore[no-untyped-def]  # compiled
        check_words(states)
        for at in range(len(slots)):
            if slots[at] > 0:
                add_row(states[slots[at]], values, at)

    @users_kernel
    def merge_states(slots, others, states):  # type: ignore[no-untyped-def]  # compiled
        check_words(states)
        check_words(others)
        for at in range(len(slots)):
            if slots[at] > 0:
                merge(states[slots[at]], others[at])

    @users_kernel
    def unite_ranges(states, low, high, suffix, out):  # type: ignore[no-untyped-def]  # compiled
        check_words(states)
        check_words(suffix)
        check_words(out)
        # Two stacks: `suffix` merges the states up to `middle`, and `back` those from `middle` to `end`.
        middle = end = 0
        back = np.empty(words)  # rows are copied by `_copy`: an assignment compiles for seconds
        for at in range(len(low)):
            begin, until = low[at], high[at]
            if begin >= middle:
                _copy(states[until - 1], suffix[until - 1])
                for place in range(until - 2, begin - 1, -1):
                    _copy(states[place], suffix[place])
                    merge(suffix[place], suffix[place + 1])
                middle = end = until
            for place in range(end, until):
                if place == middle:
                    _copy(states[place], back)
                else:
                    merge(back, states[place])
            end = max(end, until)
            _copy(suffix[begin], out[at])
            if end > middle:
                merge(out[at], back)

    @users_kernel
    def finish_states(states, results, valid):  # type: ignore[no-untyped-def]  # compiled
        check_words(states)
        for at in range(len(states)):
            result = finish(states[at])
            if result is None:
                valid[at] = False
            else:
                valid[at] = True
                results[at] = result

    states, slots, none = np.zeros((2, words)), np.zeros(1, np.int32), np.zeros(0, np.int64)
    empty = states[:0]
    return _Kernels(
        words,
        count,
        _compiled_kernel(aggregate, "init", init_states, states, 2),
        _compiled_kernel(aggregate, "add", add_values, slots, np.zeros((count, 1)), states),
        _compiled_kernel(aggregate, "merge", merge_states, slots, states[:1].copy(), states),
        _compiled_kernel(aggregate, "merge", unite_ranges, states, none, none, states.copy(), empty.copy()),
        _compiled_kernel(aggregate, "finish", finish_states, empty, np.zeros(0), np.zeros(0, np.bool_)),
    )


def _compiled_kernel(
    aggregate: type[Aggregate], method: str, run: Callable[..., None], *samples: Any
) -> Callable[..., None]:
    """Compile a kernel that calls a method of an aggregate; return a function whose errors name the method.

    Parameters
    ----------
    samples
        Arguments of the types that the kernel takes. With these arguments the kernel calls no method.
    """
    context = {"aggregate": f"{aggregate.__module__}:{aggregate.__qualname__}", "method": method}
    try:
        run(*samples)
    except UNCOMPILABLE as error:
        raise InvalidUsageError(
            "a user-defined aggregate cannot be compiled",
            **context,
            **_numba_context(str(error), getattr(aggregate, method).__code__.co_filename),
            hint="use numbers, arrays and math only, and return a number or None from finish",
        ) from error

    def run_checked(*arguments: Any) -> None:
        try:
            run(*arguments)
        except IndexError as error:
            raise InvalidUsageError(
                "a user-defined aggregate uses an index outside its state", **context, words=aggregate.words
            ) from error
        except Exception as error:  # users' code may raise any exception
            raise users_code_error("a user-defined aggregate raised an error", error, **context) from error

    return run_checked


def _numba_context(message: str, file: str) -> dict[str, str]:
    """Return the reason in a message of Numba, and the last line of `file` that the message names."""
    message = _COLOURS.sub("", message)
    lines = [line.strip() for line in message.splitlines()]
    reasons = (line for line in lines if line and not line.startswith(_NUMBA_FRAMES))
    places = re.findall(rf'File "[^"]*{re.escape(Path(file).name)}", line (\d+)', message)
    return {
        **({"at": f"{Path(file).name}:{places[-1]}"} if places else {}),
        "reason": next(reasons, "none").removesuffix("."),
    }


class OwnStates:
    """An accumulator with a state of a user-defined aggregate for each slot.

    It adds values to the states, or merges stored states into them.

    Parameters
    ----------
    kind : pyarrow.DataType
        The type of the values; a struct if the aggregate takes several values; binary for stored states.
    reference : str
        The aggregate, as ``module:Class``.

    Raises
    ------
    InvalidUsageError
        If the aggregate cannot be imported or compiled.
    """

    def __init__(self, kind: pa.DataType, reference: str) -> None:
        self._of_states = pa.types.is_binary(kind)
        self._kernels = _compiled(reference)
        self._states = np.empty((0, self._kernels.words))

    def _reserve(self, count: int) -> None:
        before = len(self._states)
        if count > before:
            grown = np.zeros((max(count, 2 * before), self._kernels.words))
            grown[:before] = self._states
            self._kernels.init(grown, before)
            self._states = grown

    def add(
        self, slots: npt.NDArray[Any], times: npt.NDArray[Any], values: pa.Array[Any] | None, count: int
    ) -> None:
        """Add values, or merge states; see `penstock.operators.scan.fragments.accumulators.Accumulator`."""
        if values is None:
            raise InternalError("a user-defined aggregate has no values")
        self._reserve(count)
        slots = slots.astype(np.int32, copy=False)
        # The fields of a null struct are null as well.
        columns = values.flatten() if pa.types.is_struct(values.type) else [values]
        # The kernel reads one column for each value that the aggregate takes, and checks no bounds.
        if not self._of_states and len(columns) != self._kernels.values:
            raise InternalError(
                "a user-defined aggregate gets another number of values",
                values=len(columns),
                takes=self._kernels.values,
            )
        for column in columns:
            if column.null_count:
                slots = np.where(column.is_valid().to_numpy(zero_copy_only=False), slots, np.int32(0))
        if self._of_states:
            self._kernels.merge(slots, _states_in(values, self._kernels.words), self._states)
        else:
            numbers = [one.fill_null(0) if one.null_count else one for one in columns]
            stacked = np.array([one.to_numpy() for one in numbers], np.float64)
            self._kernels.add(slots, stacked, self._states)

    def add_runs(self, runs: Any, values: pa.Array[Any] | None, count: int) -> bool:
        """Return False, so that `add` adds the rows."""
        return False

    def result(self, count: int) -> pa.Array[Any]:
        """Return the states of slots 1 to `count` - 1."""
        self._reserve(count)
        return _images_of(self._states[1:count])


def _images_of(states: _States) -> pa.Array[Any]:
    count, words = states.shape
    offsets = np.arange(count + 1, dtype=np.int32) * (8 * words)
    content = np.ascontiguousarray(states, _WORD)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(content.tobytes())]
    )


def _states_in(images: pa.Array[Any], words: int) -> _States:
    if not len(images):
        return np.empty((0, words))
    begin = int(np.frombuffer(images.buffers()[1], np.int32)[images.offset])
    content = np.frombuffer(images.buffers()[2], np.uint8)[begin : begin + 8 * words * len(images)]
    return np.frombuffer(content.tobytes(), _WORD).reshape(len(images), words).astype(np.float64)


def check_own_images(images: pa.Array[Any], reference: str) -> None:
    """Check the stored states of an aggregate.

    Raises
    ------
    CorruptDataError
        If a state is null or has the wrong number of words.
    """
    size = 8 * find_aggregate(reference).words
    if images.null_count:
        raise CorruptDataError("a stored state of a user-defined aggregate is null", aggregate=reference)
    offsets = np.frombuffer(images.buffers()[1], np.int32)[images.offset :][: len(images) + 1]
    sizes = np.diff(offsets)
    if (sizes != size).any():
        raise CorruptDataError(
            "a stored state of a user-defined aggregate has another size",
            aggregate=reference,
            words=float(sizes[sizes != size][0] / 8),
            now=size // 8,
            hint="words is fixed for the life of a checkpoint; set it back, or start with a new checkpoint",
        )


def unite_own(images: pa.Array[Any], low: Integers, high: Integers, reference: str) -> pa.Array[Any]:
    """Return the merged states of ranges; see `penstock.operators.aggregates.sketches.unite_ranges`.

    Parameters
    ----------
    images : pyarrow.BinaryArray of n
    low, high : int64 arrays of m
    """
    kernels = _compiled(reference)
    states = _states_in(images, kernels.words)
    united = np.empty((len(low), kernels.words))
    kernels.unite(states, low, high, np.empty_like(states), united)
    return _images_of(united)


def finish_own(images: pa.Array[Any], reference: str) -> pa.Array[Any]:
    """Compute the result of each state.

    Parameters
    ----------
    images : pyarrow.BinaryArray of n

    Returns
    -------
    pyarrow.DoubleArray of n
    """
    kernels = _compiled(reference)
    results, valid = np.zeros(len(images)), np.empty(len(images), np.bool_)
    kernels.finish(_states_in(images, kernels.words), results, valid)
    return pa.array(results, mask=None if valid.all() else ~valid)
