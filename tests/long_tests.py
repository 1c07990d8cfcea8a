"""Leave cases and random examples of a test to the runs with long tests."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = bool(os.environ.get("PENSTOCK_LONG"))


def examples(count: int) -> int:
    """Return how many random examples a test draws: `count` in a long run, else a fifth, at least ten."""
    return count if LONG else max(count // 5, min(count, 10))


def long_but(cases: Iterable[Any], *short: Any) -> list[Any]:
    """Return `cases` for ``parametrize``, all but those in `short` with the marker ``long``."""
    return [case if case in short else pytest.param(*_values(case), marks=pytest.mark.long) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
