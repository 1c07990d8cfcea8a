"""Without an extra, features that need it raise a one-line error that names it; the rest works."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock._extras import _MODULES, need_extra
from penstock.errors import InvalidUsageError

BLOCKED = """
import sys
sys.modules["matplotlib"] = sys.modules["datasketches"] = None  # no import finds them
from penstock.cli import main
sys.argv[0] = "penstock"
main()
"""
PIPELINE = """
source: {type: files, format: parquet, path: in, schema: "time timestamp, user string"}
window: {time: time, size: 1 minute}
aggregates: {users: "AGGREGATE"}
sink: {type: noop}
"""


def run_penstock(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        ("demo",),
    ],
)
def test_what_draws_asks_for_the_plot_extra_before_it_begins(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = run_penstock(tmp_path, *command)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs matplotlib" in line
    assert "pip install 'penstock[plot]'" in line


def test_an_approximate_count_asks_for_the_sketch_extra(tmp_path: Path) -> None:
    file = tmp_path / "users.yaml"
    file.write_text(PIPELINE.replace("AGGREGATE", "approx_count_distinct(user)"))
    done = run_penstock(tmp_path, "check", "users.yaml")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'penstock[sketch]'" in line


@pytest.mark.parametrize(
    "arguments", [("--help",), ("explain", "users.yaml"), ("check", "market")], ids=lambda given: given[0]
)
def test_all_else_works_without_extras(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "users.yaml").write_text(PIPELINE.replace("AGGREGATE", "count(DISTINCT user)"))
    done = run_penstock(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr


def test_a_worker_without_sketches_says_so() -> None:
    program = """
import sys
sys.modules["datasketches"] = None
import numpy as np, pyarrow as pa
from penstock.errors import InvalidUsageError
from penstock.operators.aggregates.sketches import estimates
try:
    estimates(pa.array([], pa.binary()), np.zeros(0, np.int64), np.zeros(0, np.int64), 5)
except InvalidUsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "penstock[sketch]" in done.stdout


def test_several_missing_packages_are_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._extras.has_extra", lambda extra: False)
    with pytest.raises(InvalidUsageError, match="needs starlette and uvicorn, which are not installed"):
        need_extra("dashboard", "the dashboard")


PACKAGE = Path(penstock.__file__).parent
PROVIDED_BY = {
    "adbc_driver_manager": "adbc-driver-postgresql",
    "google": "grpcio-tools",
    "grpc_tools": "grpcio-tools",
    "llvmlite": "numba",
    "opentelemetry": "opentelemetry-sdk",
    "paho": "paho-mqtt",
    "py4j": "pyspark",
    "pydantic_core": "pydantic",
    "sklearn": "scikit-learn",
    "sqlalchemy": "pyiceberg",
    "venv_pack": "venv-pack2",
    "yaml": "pyyaml",
}
"""The packages that provide the modules of other names; all others are named like their module."""
GUARDED = {"pcodec": "compression/codecs/agnostic.py", "pytest": "testing/"}
"""Modules that only the named places import; these places report a missing module, or are for its users."""


def packages_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", one)[0].lower() for one in requirements}


def undeclared(module: Path, declared: set[str]) -> Iterator[str]:
    """Yield the modules of other packages that a module imports, anywhere in it, and no package provides."""
    place = module.relative_to(PACKAGE).as_posix() if module.is_relative_to(PACKAGE) else module.name
    for node in ast.walk(ast.parse(module.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for top in sorted(
            {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"penstock"}
        ):
            guard = GUARDED.get(top)
            if PROVIDED_BY.get(top, top.replace("_", "-")) not in declared and not (
                guard and place.startswith(guard)
            ):
                yield f"{place} imports {top}"


def declared_packages() -> set[str]:
    """Return what a plain installation has, and the packages of the extras that errors name."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][extra] for extra in _MODULES]
    return packages_of(project["dependencies"]).union(*map(packages_of, extras))


def test_everything_imported_is_a_dependency_or_in_an_extra_that_an_error_names() -> None:
    declared = declared_packages()
    assert [found for path in sorted(PACKAGE.rglob("*.py")) for found in undeclared(path, declared)] == []


def test_an_import_that_only_developers_have_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "import os, yaml\ndef f():\n    from hypothesis.strategies import data\n    import pcodec\n"
    )
    assert list(undeclared(module, declared_packages())) == [
        "module.py imports hypothesis",
        "module.py imports pcodec",
    ]


def test_errors_name_the_packages_of_each_extra() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    for extra, (_, packages) in _MODULES.items():
        assert packages_of(packages.split()) == packages_of(project["optional-dependencies"][extra]), extra
