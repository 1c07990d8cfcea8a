"""States of each kind of operator, changed behind their checksums."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fuzz.subjects.hostile_bytes import STATES, check_states


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", STATES, ids=lambda make: make.__name__.strip("_"))
def test_a_state_is_refused_by_an_error_of_ours_or_does_no_harm(
    make: Callable[[random.Random], Any], seed: int
) -> None:
    with np.errstate(all="ignore"):
        check_states(random.Random(seed), make)
