"""The code blocks of the documents, and a process that runs them all.

``python -m tests.documents`` runs every block of every page in the current directory, and writes one line of
JSON for each. All Python shares one Spark session, and the blocks of a page share their names. Shell blocks
are run by ``sh -eu``. A block that begins with a comment that is a file's name is saved as that file. A
Python block with such a name is not run itself: a shell block does that. YAML blocks are pipelines or parts
of one; `check` checks them without Spark, in the unit tests.

A comment in the line before a block may say more about the block:

- ``<!-- not run: REASON -->``: the block cannot be run here;
- ``<!-- stop after: TEXT -->``: it goes on for ever, so Ctrl-C is sent once TEXT was printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["CHECKED", "ROOT", "RUN", "SHOWN", "Block", "blocks", "check", "pages", "run"]

ROOT: Final = Path(__file__).resolve().parents[1]
RUN: Final = ("python", "sh")
"""The languages of blocks that run."""
CHECKED: Final = ("yaml",)
"""The language of pipelines."""
SHOWN: Final = ("text", "json")
"""The languages of blocks that show what a program prints."""

_BLOCK: Final = re.compile(
    r"^(?:<!-- (?P<note>.*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_FILE: Final = re.compile(r"# (\S+\.(?:py|yaml))\n")
_TIMEOUT_S: Final = 180.0
_SECTIONS: Final = {
    "source": {"type": "market"},
    "queue": {"key": "symbol", "time": "time"},
    "sink": {"type": "noop"},
}
_STEPS: Final = ("queue", "union", "join", "window", "database", "operator")
_BORROWED: Final = {"docs/how-to/pipelines.md": ("docs/how-to/serve.md", "bank.py")}
"""By page, the page and name of a file that its pipelines need and the page only links to."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def place(self) -> str:
        """Page and line, as compilers print them."""
        return f"{self.page}:{self.line}"

    @property
    def reason(self) -> str | None:
        """Why the block cannot run, if it cannot."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else None

    @property
    def stop_after(self) -> str | None:
        """The output after which it is stopped, if it does not end by itself."""
        return self.note.removeprefix("stop after: ") if self.note.startswith("stop after: ") else None

    @property
    def file(self) -> str | None:
        """The file that it is saved as, if any."""
        found = _FILE.match(self.text)
        return found[1] if found else None


def pages() -> list[Path]:
    """Return all documents."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, root: Path = ROOT) -> Iterator[Block]:
    """Give the blocks of a page in their order."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        name = page.relative_to(root).as_posix()
        yield Block(name, line, found["language"], found["text"], found["note"] or "")


def _run_python(block: Block, scope: dict[str, Any]) -> None:
    text = "\n" * block.line + block.text
    # Procedures are compiled from their text.
    linecache.cache[block.page] = (len(text), None, text.splitlines(keepends=True), block.page)
    exec(compile(text, block.page, "exec"), scope)


def _run_shell(block: Block) -> str:
    """Run a block by ``sh -eu`` and return what it prints."""
    process = subprocess.Popen(
        ["sh", "-euc", block.text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    killer = threading.Timer(_TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
    killer.start()
    printed = []
    stopped = False
    with process:
        for line in process.stdout:
            printed.append(line)
            if block.stop_after and block.stop_after in line and not stopped:
                stopped = True
                os.killpg(process.pid, signal.SIGINT)
        code = process.wait()
    killer.cancel()
    text = "".join(printed)
    if stopped != bool(block.stop_after) or code not in ((0, 130, -signal.SIGINT) if stopped else (0,)):
        raise AssertionError(f"exit code {code}, stopped: {stopped}\n{text}")
    return text


def run(block: Block, scope: dict[str, Any]) -> None:
    """Run a block; `scope` has the names of its page. Failures are raised."""
    if block.file:
        Path(block.file).write_text(block.text)
    if block.language == "sh":
        _run_shell(block)
    elif block.language == "python" and block.file is None:
        _run_python(block, scope)


def check(block: Block) -> None:
    """Check a pipeline as ``penstock check`` does, in the current directory.

    The modules that the pipeline names come from the blocks of its page. Sections that a pipeline must have
    and the block does not show are added.
    """
    from penstock.jobs.checks.checking import check_pipeline

    lender, name = _BORROWED.get(block.page, (block.page, None))
    for other in blocks(ROOT / lender):
        if other.file and (name is None or other.file == name):
            Path(other.file).write_text(other.text)
    shown = yaml.safe_load(block.text)
    missing = {
        name: section
        for name, section in _SECTIONS.items()
        if name not in shown and not (name in _STEPS and any(step in shown for step in _STEPS))
    }
    file = Path("checked.yaml")
    file.write_text(block.text + yaml.safe_dump(missing) if missing else block.text)
    check_pipeline(str(file), [])


def main() -> None:
    """Run all blocks and write one line of JSON for each."""
    from tests.spark.conftest import lean_session

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    out = sys.stdout
    names = sys.argv[1:]
    chosen = [page for page in pages() if not names or page.relative_to(ROOT).as_posix() in names]
    spark = lean_session(Path.cwd())
    import penstock

    penstock.register(spark)
    for page in chosen:
        scope: dict[str, Any] = {"__name__": "__main__", "spark": spark, "penstock": penstock}
        for block in blocks(page):
            if block.language in SHOWN or block.reason:
                continue
            started = time.monotonic()
            printed = io.StringIO()
            error = ""
            try:
                with contextlib.redirect_stdout(printed):
                    run(block, scope)
            except BaseException:
                error = traceback.format_exc(limit=-3) + printed.getvalue()
            found = {"place": block.place, "error": error, "seconds": round(time.monotonic() - started, 2)}
            print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
