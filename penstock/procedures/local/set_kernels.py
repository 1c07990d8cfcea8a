"""Sets of integers for generated kernels, which hold them in variables and release them."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._kernels import kernel

__all__ = ["add", "contains", "new_set", "size"]


@kernel
def new_set() -> Any:
    """Return an empty set."""
    made = {np.int64(0)}  # numba finds the set's type from an element
    made.clear()
    return made


@kernel
def add(elements: Any, element: int) -> None:
    """Add an element to a set."""
    elements.add(element)


@kernel
def contains(elements: Any, element: int) -> bool:
    """Return whether a set has an element."""
    return element in elements


@kernel
def size(elements: Any) -> int:
    """Return the number of elements of a set."""
    return len(elements)
