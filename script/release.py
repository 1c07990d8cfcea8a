"""Build and check a release; `script/release` prepares the environment."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = ("On-disk format", "Added", "Changed", "Fixed", "Removed")


def version_of(text: str) -> tuple[int, int, int]:
    """Return a version such as 1.2.3 as numbers.

    Raises
    ------
    ValueError
        If it is none.
    """
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise ValueError(f"not a version such as 1.2.3: {text}")
    return int(found[1]), int(found[2]), int(found[3])


def with_version(text: str, version: str) -> str:
    """Return penstock/_version.py with another version.

    Raises
    ------
    ValueError
        If the version is no later than the present one.
    """
    found = re.search(r'__version__ = "(.*?)"', text)
    if found is None or version_of(found[1]) >= version_of(version):
        raise ValueError(f"{version} is not later than {found and found[1]}")
    return text[: found.start(1)] + version + text[found.end(1) :]


def with_release(changelog: str, version: str, date: str) -> str:
    """Return the changelog with its unreleased lines under the version, and an empty section above.

    Raises
    ------
    ValueError
        If nothing is unreleased, or a heading is unknown.
    """
    found = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None or not re.search(r"^- ", found[1], re.M):
        raise ValueError("CHANGELOG.md has no lines under Unreleased")
    unknown = set(re.findall(r"^### (.*)$", found[1], re.M)) - set(HEADINGS)
    if unknown:
        raise ValueError(f"CHANGELOG.md has unknown headings: {', '.join(sorted(unknown))}")
    section = f"## Unreleased\n\n## {version} - {date}\n{found[1]}"
    return changelog[: found.start()] + section + changelog[found.end() :]


def for_indexes(readme: str, url: str, version: str) -> str:
    """Return the README for a package index, which knows no file of the project: all links are absolute."""
    files = f"{url.rstrip('/')}/{{}}/v{version}/"
    with_images = re.sub(r"(?<=\]\()(?=[\w/.-]+\.(?:png|svg)\))", files.format("raw"), readme)
    return re.sub(r"(?<=\]\()(?![a-z]+:|#)", files.format("blob"), with_images)


def with_urls(project: str, url: str, version: str) -> str:
    """Return pyproject.toml with the addresses that a package index shows.

    Raises
    ------
    ValueError
        If the file has such addresses, or no place for them.
    """
    place = "[project.scripts]\n"
    if "[project.urls]" in project or place not in project:
        raise ValueError("pyproject.toml must have [project.scripts], and no [project.urls]")
    url = url.rstrip("/")
    urls = {
        "Homepage": url,
        "Documentation": f"{url}/tree/v{version}/docs",
        "Source": url,
        "Changelog": f"{url}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    lines = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    return project.replace(place, f"[project.urls]\n{lines}\n{place}")


def build(version: str, url: str | None, out: Path) -> None:
    """Build wheel and sdist from a copy of the files that git knows, and check them."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "penstock")
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        prepare(copy, version)
        if url is not None:
            for name, changed in {"README.md": for_indexes, "pyproject.toml": with_urls}.items():
                (copy / name).write_text(changed((copy / name).read_text(), url, version))
        python = sys.executable
        subprocess.run([python, "-m", "hatchling", "build", "-d", str(out.resolve())], cwd=copy, check=True)
        files = sorted(str(path) for path in out.glob(f"penstock-{version}*"))
        subprocess.run([python, "-m", "twine", "check", "--strict", *files], check=True)


def prepare(root: Path, version: str) -> None:
    """Write the version and the changelog of a release."""
    file = root / "penstock" / "_version.py"
    changelog = root / "CHANGELOG.md"
    texts = {
        file: with_version(file.read_text(), version),
        changelog: with_release(changelog.read_text(), version, time.strftime("%Y-%m-%d")),
    }
    for path, text in texts.items():
        path.write_text(text)


def main(argv: list[str] | None = None) -> None:
    """Make a release, or try it."""
    parser = argparse.ArgumentParser(prog="script/release", description=__doc__)
    parser.add_argument("version", help="the new version, such as 0.2.0")
    parser.add_argument(
        "--go", action="store_true", help="change the tree and write dist/; else all is only tried"
    )
    parser.add_argument(
        "--url",
        help="the repository's address, for [project.urls] and the README's links: "
        "it shows files of a tag below /blob/TAG; --go needs it",
    )
    arguments = parser.parse_args(argv)
    if arguments.go and arguments.url is None:
        parser.error("--go needs --url, because a package index shows the project's links")
    if arguments.url is not None and not arguments.url.startswith("https://"):
        parser.error("--url must begin with https://")
    try:
        if not arguments.go:
            with tempfile.TemporaryDirectory() as out:
                build(arguments.version, arguments.url, Path(out))
            print(f"release: {arguments.version} can be made; nothing changed. Do it with --url and --go.")
            return
        (ROOT / "dist").mkdir(exist_ok=True)
        build(arguments.version, arguments.url, ROOT / "dist")
        prepare(ROOT, arguments.version)
    except (ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"release: {error}")
    print(
        f"release: dist/ has {arguments.version}. What is left:\n"
        f'  git commit -am "Release {arguments.version}" && git tag v{arguments.version}\n'
        f"  python -m twine upload dist/penstock-{arguments.version}*"
    )


if __name__ == "__main__":
    main()
