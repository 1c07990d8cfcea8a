"""Pages of the documents have the form, and the names, that they promise."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("note", sorted((ROOT / "docs" / "design").glob("*.md")), ids=lambda path: path.stem)
def test_a_design_note_has_a_decision_its_reasons_and_its_invariants(note: Path) -> None:
    assert re.findall("^## (.*)", note.read_text(), re.M) == ["Decision", "Why", "Invariants"]


def test_each_cell_about_the_papers_has_a_link_or_says_why_there_is_none() -> None:
    rows = re.findall(r"^\| (.*) \|$", (ROOT / "docs" / "concepts" / "papers.md").read_text(), re.M)
    assert len(rows) > 100
    assert [row for row in rows if not all(map(str.strip, row.split("|")))] == []
