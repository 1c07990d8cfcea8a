"""The examples in docstrings give the results that they show."""

import doctest
import importlib
import tempfile
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parents[1]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "penstock").rglob("*.py"))
    if "__pycache__" not in path.parts and ">>> " in path.read_text()
]
TESTS = {
    test.name: test
    for module in map(importlib.import_module, MODULES)
    for test in doctest.DocTestFinder().find(module, extraglobs={"penstock": penstock})
    if test.examples
}
MAX_SKIPPED = 21
"""Most need a session of Spark. One more that does not run is a decision, not an accident."""


@pytest.mark.parametrize("name", [*TESTS])
def test_an_example_gives_its_results(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert doctest.DocTestRunner().run(TESTS[name]).failed == 0, capsys.readouterr().out


def test_few_lines_are_skipped() -> None:
    skipped = [
        f"{test.name}: {example.source}"
        for test in TESTS.values()
        for example in test.examples
        if doctest.SKIP in example.options
    ]
    assert len(skipped) <= MAX_SKIPPED, "".join(skipped)
