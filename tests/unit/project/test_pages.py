"""Pages of the documents have the form, and the names, that they promise."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "reference" / "python.md").read_text()
MODULES = ["penstock", *re.findall(r"^## `(penstock[\w.]*)`$", REFERENCE, re.M)]


@pytest.mark.parametrize("note", sorted((ROOT / "docs" / "design").glob("*.md")), ids=lambda path: path.stem)
def test_a_design_note_has_a_decision_its_reasons_and_its_invariants(note: Path) -> None:
    assert re.findall("^## (.*)", note.read_text(), re.M) == ["Decision", "Why", "Invariants"]


def test_each_cell_about_the_papers_has_a_link_or_says_why_there_is_none() -> None:
    rows = re.findall(r"^\| (.*) \|$", (ROOT / "docs" / "concepts" / "papers.md").read_text(), re.M)
    assert len(rows) > 100
    assert [row for row in rows if not all(map(str.strip, row.split("|")))] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    sections = re.split(r"^## ", REFERENCE, flags=re.M)
    own = [text for text in sections if text.startswith(f"`{module}`")]
    if module == "penstock":
        own = [text for text in sections if not text.startswith("`")]
    listed = set(re.findall(r"^::: [\w.]+\.(\w+)$", "".join(own), re.M))
    public = set(importlib.import_module(module).__all__) - {"__version__"}
    assert public - listed == set()
