"""A release has a greater version, a dated changelog, and a README that a package index can show."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("release", ROOT / "script" / "release.py")
assert SPEC is not None
assert SPEC.loader is not None
release = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(release)

CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- A thing.\n\n## 0.1.0 - 2026-11-24\n\n- All.\n"


def test_unreleased_lines_go_under_the_version_and_a_new_section_begins() -> None:
    changed = release.with_release(CHANGELOG, "0.2.0", "2027-01-02")
    headings = re.findall(r"^## (.*)$", changed, re.M)
    assert headings == ["Unreleased", "0.2.0 - 2027-01-02", "0.1.0 - 2026-11-24"]
    assert changed.index("A thing.") > changed.index("0.2.0")


@pytest.mark.parametrize("text", [CHANGELOG.replace("- A thing.", ""), CHANGELOG.replace("Added", "Poems")])
def test_a_changelog_without_lines_or_with_unknown_headings_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"CHANGELOG\.md has"):
        release.with_release(text, "0.2.0", "2027-01-02")


def test_the_project_s_changelog_can_be_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## 0\.1\.0 - \d{4}-\d\d-\d\d$", text, re.M)
    unreleased = re.search(r"^## Unreleased\n(.*?)^## ", text, re.M | re.S)
    assert unreleased is not None
    assert set(re.findall(r"^### (.*)$", unreleased[1], re.M)) <= set(release.HEADINGS)


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "1.0", "v0.2.0"])
def test_a_version_that_is_no_later_one_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"version|later"):
        release.with_version('__version__ = "0.1.0"\n', version)


def test_a_later_version_is_written() -> None:
    assert release.with_version('x\n__version__ = "0.1.0"\n', "0.10.0") == 'x\n__version__ = "0.10.0"\n'


URL = "https://example.org/penstock"


def test_the_readme_of_a_package_index_has_no_relative_links() -> None:
    absolute = release.for_indexes((ROOT / "README.md").read_text(), f"{URL}/", "0.2.0")
    assert f"]({URL}/raw/v0.2.0/docs/figures/demo.png)" in absolute
    assert f"]({URL}/blob/v0.2.0/docs/concepts/update-queue.md#freshest)" in absolute
    assert not re.findall(r"\]\((?![a-z]+:|#)", absolute)


def test_the_addresses_of_the_project_lie_below_one() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    changed = tomllib.loads(release.with_urls(text, f"{URL}/", "0.2.0"))
    assert changed["project"].pop("urls") == {
        "Homepage": URL,
        "Documentation": f"{URL}/tree/v0.2.0/docs",
        "Source": URL,
        "Changelog": f"{URL}/blob/v0.2.0/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    }
    assert changed == tomllib.loads(text)


@pytest.mark.parametrize("text", ["[project]\n", "[project.urls]\n[project.scripts]\n"])
def test_a_project_with_addresses_or_without_a_place_for_them_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no \[project\.urls\]"):
        release.with_urls(text, URL, "0.2.0")


def test_a_release_needs_an_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(release, "build")
    with pytest.raises(SystemExit, match="2"):
        release.main(["0.2.0", "--go"])
    assert "--go needs --url" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        release.main(["0.2.0", "--url", "example.org"])
    assert "https://" in capsys.readouterr().err
