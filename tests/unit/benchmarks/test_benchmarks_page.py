"""The page of benchmarks, and the figures of the README, are those of the files of results."""

import re

from benchmarks.page import PAGE, RESULTS, ROOT, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m benchmarks.page"


def test_each_file_of_results_has_a_command_or_none_was_kept() -> None:
    commands = dict(re.findall(r"^\| \[(\w+)\.txt\]\([^)]*\) \| (.*) \|$", PAGE.read_text(), re.M))
    assert commands["contract_soak"] == "`script/soak --contract --minutes 51`"
    assert [name for name, command in commands.items() if command == "``"] == []
    assert commands["design_0003_border"] == "not kept"


def test_the_figures_of_the_readme_stand_in_the_results_beside_their_command() -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(
        r"^\|[^|]*\| ([\d.]+) \| ([\d.]+) \| `(python -m benchmarks\.\w+\.(\w+)[^`]*)` \|$", text, re.M
    )
    assert len(rows) == 5
    for ours, other, command, name in rows:
        results = (RESULTS / f"{name}.txt").read_text()
        assert command in results
        assert re.search(rf"(?<![\d.]){re.escape(ours)}(?![\d.])", results), ours
        assert re.search(rf"(?<![\d.]){re.escape(other)}(?![\d.])", results), other
