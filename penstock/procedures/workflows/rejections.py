"""Convert the codes of rejections to their reasons, which are texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._kernels import kernel
from penstock.errors import InternalError
from penstock.procedures.compiler.output import FIRST_REASON
from penstock.procedures.compiler.program import Program

__all__ = ["rejections", "take_texts"]

_MAX_BYTES = (1 << 31) - 1
"""Arrow's offsets of strings have 32 bits."""


def rejections(program: Program, codes: npt.NDArray[np.int64]) -> pa.Array[Any]:
    """Return the reason for each event's rejection; null if the event was not rejected.

    Parameters
    ----------
    program : Program
        The program that ran.
    codes : ndarray
        A code for each event; for a workflow, a code for each event and procedure. A workflow continues after
        a rejection, so an event may have several reasons. The text names all of them.

    Raises
    ------
    InternalError
        If the reasons take more than 2 GiB.
    """
    if not codes.any():
        return pa.nulls(len(codes), pa.string())
    if not program.stages:
        # An event with a code between 0 and the first reason runs again, so no such code is left.
        return take_texts(("",) * (FIRST_REASON - 1) + program.reasons, codes)
    is_rejected = codes > 0
    count = len(program.reasons)
    texts = [f"{name}: {reason}" for name in program.stages for reason in program.reasons]
    rejection_counts = np.count_nonzero(is_rejected, axis=1)
    stage = np.argmax(is_rejected, axis=1)
    places = stage * count + codes[np.arange(len(codes)), stage] - FIRST_REASON
    several = np.flatnonzero(rejection_counts > 1)
    if len(several):
        kinds, inverse = np.unique(codes[several], axis=0, return_inverse=True)
        places[several] = len(texts) + inverse.reshape(-1)
        for kind in kinds:
            stages = np.flatnonzero(kind > 0)
            texts.append(
                "; ".join(texts[stage * count + int(kind[stage]) - FIRST_REASON] for stage in stages)
            )
    return take_texts(texts, np.where(rejection_counts > 0, places + 1, 0))


def take_texts(
    texts: Sequence[str], numbers: npt.NDArray[np.int64], *, most_bytes: int = _MAX_BYTES
) -> pa.Array[Any]:
    """Return a text for each number as an Arrow array: null for 0, the first text for 1, and so on.

    Raises
    ------
    InternalError
        If the texts take more than `most_bytes`; the default, 2 GiB, is the limit of Arrow's offsets.
    """
    encoded = [b"", *(text.encode() for text in texts)]
    sizes = np.array([len(text) for text in encoded])
    offsets = np.empty(len(numbers) + 1, np.int32)
    size_bytes = add_sizes(numbers, sizes, offsets)
    if size_bytes > most_bytes:
        # `InvalidUsageError` would say that the tables are unchanged, but the transactions have run.
        raise InternalError(
            "the reasons for rejections of one batch take more than 2 GiB",
            events=len(numbers),
            size_bytes=size_bytes,
            hint="shorten the texts of abort(), or run fewer events at once",
        )
    data = np.empty(size_bytes, np.uint8)
    copy_texts(numbers, np.frombuffer(b"".join(encoded), np.uint8), np.cumsum(sizes) - sizes, offsets, data)
    exists = np.packbits(numbers > 0, bitorder="little")
    buffers = [pa.py_buffer(array) for array in (exists, offsets, data)]
    return pa.Array.from_buffers(pa.string(), len(numbers), buffers)


@kernel
def add_sizes(numbers: Any, sizes: Any, offsets: Any) -> int:
    """Write the offset of each number's text; return the total size of the texts in bytes.

    If the total size is 2 GiB or more, the offsets are wrong.
    """
    size = 0
    offsets[0] = 0
    for i in range(numbers.shape[0]):
        size += sizes[numbers[i]]
        offsets[i + 1] = size
    return size


@kernel
def copy_texts(numbers: Any, texts: Any, begins: Any, offsets: Any, data: Any) -> None:
    """Copy the text of each number to its offset in `data`."""
    for i in range(numbers.shape[0]):
        begin, place = begins[numbers[i]], offsets[i]
        for k in range(offsets[i + 1] - place):
            data[place + k] = texts[begin + k]
