"""The page of benchmarks, and the figures of the README, are those of the files of results."""

import re

from benchmarks.page import PAGE, RESULTS, ROOT, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m benchmarks.page"


def test_the_figures_of_the_readme_stand_in_the_results_beside_their_command() -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(
        r"^\|[^|]*\| ([\d.]+) \| ([\d.]+) \| `(python -m benchmarks\.(\w+)[^`]*)` \|$", text, re.M
    )
    assert len(rows) == 5
    for ours, other, command, name in rows:
        results = (RESULTS / f"{name}.txt").read_text()
        assert command in results
        assert re.search(rf"(?<![\d.]){re.escape(ours)}(?![\d.])", results), ours
        assert re.search(rf"(?<![\d.]){re.escape(other)}(?![\d.])", results), other
