"""What the documents show runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "concepts"


@pytest.mark.parametrize("name", ["compression.md", "graph.md", "joins-and-unions.md", "p-streams.md"])
def test_the_python_in_a_document_runs(name: str) -> None:
    programs = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert programs
    scope: dict[str, object] = {"__name__": "__main__"}
    for program in programs:  # later ones use what earlier ones made
        exec(compile(program, name, "exec"), scope)
