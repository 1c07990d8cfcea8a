"""Pages of the documents have the form, and the names, that they promise."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("note", sorted((ROOT / "docs" / "design").glob("*.md")), ids=lambda path: path.stem)
def test_a_design_note_has_a_decision_its_reasons_and_its_invariants(note: Path) -> None:
    assert re.findall("^## (.*)", note.read_text(), re.M) == ["Decision", "Why", "Invariants"]
