"""The helpers that find and run the code blocks of the documents."""

import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidUsageError
from tests.documents import CHECKED, Block, blocks, check, pages, run

PIPELINES = [block for page in pages() for block in blocks(page) if block.language in CHECKED]
PAGE = """
# A page

```python
# job.py
print("not run, but saved")
```

<!-- not run: needs a cluster -->
```sh
spark-submit job.py
```

<!-- stop after: ready -->
```sh
echo ready; sleep 100
```
"""


def block(language: str, text: str, note: str = "") -> Block:
    return Block("page.md", 1, language, text, note)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_blocks_are_found_with_their_places_and_notes(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    program, submitted, stopped = blocks(tmp_path / "page.md", tmp_path)
    assert (program.place, program.language, program.reason) == ("page.md:4", "python", None)
    assert submitted.reason == "needs a cluster"
    assert stopped.stop_after == "ready"
    run(program, {})
    assert (tmp_path / "job.py").read_text() == program.text


def test_python_that_fails_is_raised_and_names_are_shared() -> None:
    scope: dict[str, object] = {}
    run(block("python", "x = 1\n"), scope)
    run(block("python", "assert x == 1\n"), scope)
    with pytest.raises(AssertionError):
        run(block("python", "assert x == 2\n"), scope)


@pytest.mark.parametrize("text", ["false\n", "false; true\n", "echo $nothing_of_that_name\n"])
def test_a_shell_block_fails_with_its_first_failing_command(text: str) -> None:
    with pytest.raises(AssertionError, match="exit code"):
        run(block("sh", text), {})


def test_a_shell_block_that_goes_on_is_stopped_after_its_text() -> None:
    run(block("sh", "echo ready\nexec sleep 100\n", "stop after: ready"), {})


def test_a_shell_block_that_ends_before_its_text_fails() -> None:
    with pytest.raises(AssertionError, match="stopped: False"):
        run(block("sh", "echo other\n", "stop after: ready"), {})


def part(text: str) -> Block:
    """Return a part of a pipeline, as in a page without files."""
    return Block("CHANGELOG.md", 1, "yaml", text, "")


def test_a_part_of_a_pipeline_is_checked_like_a_whole_one() -> None:
    check(part("queue: {key: symbol, time: time, budget: 5}\n"))
    with pytest.raises(InvalidUsageError, match="budgt"):
        check(part("queue: {key: symbol, time: time, budgt: 5}\n"))
    with pytest.raises(InvalidUsageError, match=r"queue\.key.*did you mean 'symbol'"):
        check(part("queue: {key: symbl, time: time, budget: 5}\n"))


@pytest.mark.parametrize("block", PIPELINES, ids=lambda block: block.place)
def test_the_pipelines_of_a_page_pass_the_checks(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    check(block)
