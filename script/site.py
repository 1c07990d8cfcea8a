"""Hooks of MkDocs: README and its neighbours become pages, and links out of docs/ keep working.

A page may link to any file of the project, as it would on a forge. The file is copied to the site, as text.
Warnings are errors (``strict``): a link to a file that is not there, and a list that only some renderers see.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Pages of the site that are no pages of docs/.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
FENCE = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
LIST_WITHOUT_BLANK_LINE = re.compile(r"^(?![-*] |\d+\. |\s|$|#)[^\n]*\n(?=[-*] \S|1\. \S)", re.MULTILINE)
log = get_plugin_logger("site")


def site_path(file: Path) -> str:
    """Return where a file of the project is on the site."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    name = file.relative_to(ROOT).as_posix()
    if name in PAGES:
        return PAGES[name]
    return f"source/{name}" if name.endswith((".txt", ".csv", ".svg", ".png")) else f"source/{name}.txt"


def source_path(page: str) -> Path:
    """Return the file of the project that a page of the site comes from."""
    return next((ROOT / name for name, path in PAGES.items() if path == page), DOCS / page)


def targets(source: Path, text: str) -> list[Path]:
    """Return the files that a page links to."""
    found = (Path(os.path.normpath(source.parent / link)) for link in LINK.findall(FENCE.sub("", text)))
    return [target for target in found if target.is_relative_to(ROOT)]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the files outside docs/ that pages link to."""
    for name, path in PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text()))
    linked: set[Path] = set()
    for page in files.documentation_pages():
        source = source_path(page.src_uri)
        linked.update(target for target in targets(source, source.read_text()) if target.is_file())
    for target in sorted(linked):
        if files.get_file_from_path(site_path(target)) is None:
            files.append(File.generated(config, site_path(target), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Turn links from paths of the project into paths of the site."""
    source = source_path(page.file.src_uri)
    for found in LIST_WITHOUT_BLANK_LINE.finditer(FENCE.sub("", markdown)):
        log.warning("%s: a list needs a blank line before it: %r", source.relative_to(ROOT), found.group())

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match.group()))
        if not target.is_file():
            log.warning("%s: no such file: %s", source.relative_to(ROOT), match.group())
            return match.group()
        return os.path.relpath(site_path(target), Path(page.file.src_uri).parent)

    return LINK.sub(moved, markdown)
