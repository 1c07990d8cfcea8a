"""The cases of a test that run only where long tests do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(cases: Iterable[Any], *short: Any) -> list[Any]:
    """Return `cases` for ``parametrize``, all but those in `short` with the marker ``long``."""
    return [case if case in short else pytest.param(*_values(case), marks=pytest.mark.long) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
