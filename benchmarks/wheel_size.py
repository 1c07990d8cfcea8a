"""Measure the wheel, and wheels that are built differently: ``python -m benchmarks.wheel_size``.

Builds the wheel of this tree and packs its files again, for each design. `deflate` is what the wheel has;
`level 9` is its best level, and `bzip2` and `lzma` are the other compressions of zip archives. `core` leaves
databases, transactions, designs, predictions and speculation to a second distribution. `one archive`
compresses all files together; Python cannot import it.
"""

from __future__ import annotations

import ast
import io
import lzma
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import REPOSITORY

SECOND = tuple(f"penstock/{name}/" for name in ("procedures", "predicting", "designing", "speculating"))
Files = Mapping[str, bytes]


def built() -> tuple[int, Files]:
    """Return the size of the wheel and its files."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return wheel.stat().st_size, {name: archive.read(name) for name in archive.namelist()}


def zipped(files: Files, compression: int = zipfile.ZIP_DEFLATED, level: int | None = None) -> int:
    """Return the size of a zip archive of the files."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compression, compresslevel=level) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return len(written.getvalue())


def without_docstrings(source: bytes) -> bytes:
    """Return a module without its docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_text(one)] or [ast.Pass()]
    return ast.unparse(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def main() -> None:
    """Print the size of each design."""
    size, files = built()
    stripped = {
        name: without_docstrings(content) if name.endswith(".py") else content
        for name, content in files.items()
    }
    core = {name: content for name, content in files.items() if not name.startswith(SECOND)}
    together = lzma.compress(b"".join(files.values()), preset=9 | lzma.PRESET_EXTREME)
    designs: dict[str, Callable[[], int]] = {
        "deflate": lambda: zipped(files),
        "level 9": lambda: zipped(files, level=9),
        "bzip2": lambda: zipped(files, zipfile.ZIP_BZIP2),
        "lzma": lambda: zipped(files, zipfile.ZIP_LZMA),
        "no docstrings": lambda: zipped(stripped),
        "core": lambda: zipped(core),
        "core, no docstrings": lambda: zipped({name: stripped[name] for name in core}),
        "one archive": lambda: len(together),
    }
    total = sum(map(len, files.values()))
    print(f"{len(files)} files with {total / 1e6:.2f} MB; the wheel has {size / 1e6:.2f} MB\n")
    print(f"{'design':20} {'MB':>5}")
    for name, measure in designs.items():
        print(f"{name:20} {measure() / 1e6:5.2f}")


if __name__ == "__main__":
    main()
