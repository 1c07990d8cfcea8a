"""The page of combinations, made from what tests recorded: ``python -m tests.combinations [RECORD ...]``.

With ``PENSTOCK_RECORD=FILE``, pytest adds a line of JSON to the file for each test of `FOLDERS` that ran;
see `record`. The command takes such files into `RESULTS`, and writes `PAGE` from it. Recorded outcomes
replace older ones of the same case, or the same file of tests, of a version, a kind of session and a Python.
Of a test that ran more than once in the files of one command, the last outcome counts.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = ["CASES", "FOLDERS", "PAGE", "RESULTS", "merge", "record", "render"]

_HERE: Final = Path(__file__).parent
RESULTS: Final = _HERE / "spark" / "combinations.json"
PAGE: Final = _HERE.parent / "docs" / "reference" / "combinations.md"
CASES: Final = "spark/pipelines/test_combinations.py"
"""The file whose parameters are a source and a sink."""

_UNIT: Final = "unit/"
FOLDERS: Final = ("tests/spark/", "tests/conformance/", "tests/crash/", f"tests/{_UNIT}")
"""The directories of the tests that `script/versions` runs."""

_VARIABLE: Final = "PENSTOCK_RECORD"
_SPARK: Final = version("pyspark") if _VARIABLE in os.environ else ""
"""Spark's version, read before any test changes where modules are found."""

_NOT_RUN: Final = "not run"
_PYTHON: Final = "3.11"
"""The Python of the runs that name none."""
_HEAD: Final = """\
# Combinations

This page shows which sources, sinks, versions of Spark and kinds of session were tested together.
`python -m tests.combinations` writes it from the records of test runs, which `script/versions` makes.
"not run" means that there is no record. Results are of Python {python}, unless the head of a column names
another version.

## Sources and sinks

Each row is one case of `tests/{cases}`: a pipeline from the source through an
update queue to the sink, which must end with the newest row of each key. The source `spark` is
`rate-micro-batch`, the sink `spark` writes JSON files, and `upsert` writes SQLite. Cases with `kafka` are
skipped where Spark's connector could not be fetched.

"""
_FILES: Final = """
## Tests of each part

The table shows the outcomes of whole files of tests. `12+1` means that 12 tests passed and one was skipped.
A test is skipped if this version or kind of session lacks something, or if the test takes long.

"""
_UNITS: Final = """
## Unit tests

The table shows how many files of `tests/{folder}` a run recorded, and the outcomes of their tests.

"""


def record(report: pytest.TestReport) -> None:
    """Add the outcome of a test to the file that ``PENSTOCK_RECORD`` names, if it is set."""
    file = os.environ.get(_VARIABLE)
    if file is None or not (report.when == "call" or (report.when == "setup" and not report.passed)):
        return
    if not report.nodeid.startswith(FOLDERS):
        return
    kind = "Connect" if os.environ.get("PENSTOCK_CONNECT") == "1" else "classic"
    python = "{}.{}".format(*sys.version_info)
    run = f"{_SPARK} {kind}" + ("" if python == _PYTHON else f", Python {python}")
    entry = {"run": run, "test": report.nodeid}
    with Path(file).open("a") as lines:
        lines.write(json.dumps(entry | {"outcome": report.outcome}) + "\n")


def merge(results: dict[str, Any], lines: Iterable[str], day: str) -> None:
    """Take recorded lines into the results."""
    outcomes: dict[tuple[str, str], dict[str, str]] = {}
    for entry in map(json.loads, lines):
        run = results.setdefault(entry["run"], {"cases": {}, "files": {}})
        run["day"] = day
        path, _, test = entry["test"].partition("::")
        name = path.removeprefix("tests/")
        if name == CASES:
            if "[" in test:
                run["cases"][test.partition("[")[2].removesuffix("]")] = entry["outcome"]
        else:
            outcomes.setdefault((entry["run"], name), {})[test] = entry["outcome"]
    for (run_name, name), of_file in outcomes.items():
        results[run_name]["files"][name] = dict(sorted(Counter(of_file.values()).items()))


def _order(run: str) -> tuple[Any, ...]:
    name, _, python = run.partition(", Python ")
    version, kind = name.split()
    return python, *(-int(part) for part in version.split(".")), kind == "Connect"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _count(outcomes: dict[str, int] | None) -> str:
    if outcomes is None:
        return _NOT_RUN
    text = str(outcomes.get("passed", 0))
    text += f"+{outcomes['skipped']}" if "skipped" in outcomes else ""
    return text + (f", {outcomes['failed']} failed" if "failed" in outcomes else "")


def render(results: dict[str, Any]) -> str:
    """Return the page."""
    runs = sorted(results, key=_order)
    cases = sorted({case for run in results.values() for case in run["cases"]})
    files = sorted({file for run in results.values() for file in run["files"] if not file.startswith(_UNIT)})
    marks = {"passed": "✓", None: _NOT_RUN}
    text = _HEAD.format(python=_PYTHON, cases=CASES)
    text += _table(
        ["Source", "Sink", *runs],
        (
            [f"`{part}`" for part in case.split("-")]
            + [marks.get(found, found) for run in runs for found in [results[run]["cases"].get(case)]]
            for case in cases
        ),
    )
    text += _FILES + _table(
        ["File below `tests`", *runs],
        ([f"`{file}`", *(_count(results[run]["files"].get(file)) for run in runs)] for file in files),
    )
    units = {
        run: [outcomes for file, outcomes in results[run]["files"].items() if file.startswith(_UNIT)]
        for run in runs
    }
    text += _UNITS.format(folder=_UNIT.rstrip("/")) + _table(
        ["Run", "Files", "Tests"],
        (
            [run, str(len(found)), _count(dict(sum(map(Counter, found), Counter())))]
            for run, found in units.items()
            if found
        ),
    )
    days = _table(["Run", "Recorded"], ([run, results[run]["day"]] for run in runs))
    return f"{text}\n## When\n\n{days}"


def main() -> None:
    """Take the records of the given files into the results, and write the page."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for file in sys.argv[1:]:
        merge(results, Path(file).read_text().splitlines(), f"{datetime.now(UTC):%Y-%m-%d}")
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(render(results))


if __name__ == "__main__":
    main()
