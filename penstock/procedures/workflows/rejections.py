"""The reasons for rejections as texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.procedures.compiler.output import FIRST_REASON
from penstock.procedures.compiler.program import Program

__all__ = ["rejections"]


def rejections(program: Program, codes: npt.NDArray[np.int64]) -> pa.Array[Any]:
    """Return the reason for each event's rejection; null if it was not rejected.

    Parameters
    ----------
    program : Program
        The program that ran.
    codes : ndarray
        A code for each event; for a workflow, a code for each event and procedure. A workflow continues after
        a rejection, so an event may have several reasons, which are all named.
    """
    is_rejected = codes > 0
    if not is_rejected.any():
        return pa.nulls(len(codes), pa.string())
    count = len(program.reasons)
    if not program.stages:
        return _take(program.reasons, codes - FIRST_REASON, is_rejected)
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
    return _take(texts, places, rejection_counts > 0)


def _take(
    texts: list[str] | tuple[str, ...], places: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]
) -> pa.Array[Any]:
    return pa.array(texts, pa.string()).take(pa.array(np.where(mask, places, 0), mask=~mask))
