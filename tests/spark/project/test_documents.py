"""Every code block of every document runs, or says why it cannot."""

from __future__ import annotations

import codeop
import json
import os
import subprocess
import sys

import pytest

from tests.documents import CHECKED, ROOT, RUN, SHOWN, Block, blocks, pages
from tests.long_tests import LONG, long_but

ALL = [block for page in pages() for block in blocks(page)]
MAX_NOT_RUN = 3
"""A block more that does not run is a decision, not an accident."""
LONG_PAGES = [
    *(f"docs/concepts/{name}.md" for name in ("p-streams", "transactions")),
    *(
        f"docs/how-to/{name}.md"
        for name in (
            *("design", "inspect", "late-rows", "own-code", "p-streams-spark", "pipelines"),
            *("plan", "predict", "replay", "serve", "simulate", "state", "test-pipelines"),
            *("test-your-own", "upserts", "watch"),
        )
    ),
]
"""Pages whose blocks start many processes."""
RUNNING = sorted({block.page for block in ALL if block.language in RUN})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the blocks of all pages in one process, and give the error of each by its place."""
    place = tmp_path_factory.mktemp("documents")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.documents",
            *(page for page in RUNNING if LONG or page not in LONG_PAGES),
        ],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"place"')]
    slowest = sorted(found, key=lambda result: -float(result["seconds"]))[:8]
    print("slowest:", *(f"{result['place']} {result['seconds']} s" for result in slowest), sep="\n  ")
    return {result["place"]: result["error"] for result in found}


@pytest.mark.spark
@pytest.mark.parametrize("page", long_but(RUNNING, *(page for page in RUNNING if page not in LONG_PAGES)))
def test_the_blocks_of_a_page_run(results: dict[str, str], page: str) -> None:
    meant = [block for block in ALL if block.page == page and block.language in RUN and block.reason is None]
    failed = [f"{block.place}\n{results[block.place]}" for block in meant if results[block.place]]
    assert not failed, "\n\n".join(failed)


@pytest.mark.parametrize("block", [block for block in ALL if block.reason], ids=lambda block: block.place)
def test_a_block_that_does_not_run_says_why(block: Block) -> None:
    assert len(block.reason or "") > 10
    pytest.skip(block.reason or "")


def test_few_blocks_do_not_run() -> None:
    reasons = [f"{block.place}: {block.reason}" for block in ALL if block.reason]
    assert len(reasons) <= MAX_NOT_RUN, "\n".join(reasons)


def test_every_block_has_a_language_that_is_known_and_a_note_that_is_understood() -> None:
    for block in ALL:
        assert block.language in (*RUN, *CHECKED, *SHOWN), block.place
        assert not block.note or block.reason or block.stop_after, block.place


def test_no_fence_is_missed() -> None:
    for page in pages():
        lines = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")]
        assert len(lines) == 2 * sum(1 for _ in blocks(page)), page


PASTED = [block for block in ALL if block.language == "python" and block.file is None]


@pytest.mark.parametrize("block", PASTED, ids=lambda block: block.place)
def test_a_python_block_can_be_pasted_at_the_prompt(block: Block) -> None:
    lines: list[str] = []
    for line in [*block.text.splitlines(), ""]:
        lines.append(line)
        # An empty line ends an indented block.
        if codeop.compile_command("\n".join(lines), block.place, "single") is not None:
            lines = []
    assert not lines
