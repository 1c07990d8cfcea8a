"""A few seeded cases of each subject of `script/fuzz`, and the runner itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fuzz.case import Case
from tests.fuzz.run import Fuzzer, subjects
from tests.long_tests import long_but

pytestmark = pytest.mark.spark

_SEED = 24


@pytest.mark.parametrize("subject", long_but(subjects(), "power_cuts", "unions"))
def test_seeded_cases_do_not_differ(spark: SparkSession, tmp_path: Path, subject: str) -> None:
    fuzzer = Fuzzer([subject], tmp_path, lambda: spark)
    for found in fuzzer.run(_SEED, seconds=600, cases=2):
        pytest.fail(f"{found.text}replay: {found.replay}")
    assert fuzzer.cases == {subject: 2}


def test_a_case_that_differs_is_reported_with_its_replay(tmp_path: Path) -> None:
    def check(case: Case) -> None:
        assert case.seed != 8, "eight is not nine"

    fuzzer = Fuzzer([], tmp_path, lambda: pytest.fail("no session is needed"))
    fuzzer.checks["numbers"] = check
    fuzzer.cases["numbers"] = fuzzer.seconds["numbers"] = 0
    (found,) = fuzzer.run(7, seconds=60, cases=3)
    assert "eight is not nine" in found.text
    assert found.replay == "script/fuzz --seed 8 --cases 1 numbers"
