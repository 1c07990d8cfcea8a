"""Archives for workers: their content, and a Python elsewhere that runs from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.errors import InvalidUsageError
from penstock.jobs.cluster.archive import RUN_SCRIPT, pack_pipeline
from penstock.jobs.cluster.modules import find_modules, pipeline_modules

PIPELINE = """\
source: {type: market}
queue: {key: symbol, time: time, apply: "pack_steps.newest:keep", output_schema: "symbol STRING"}
sink: {type: foreach_batch, function: "pack_sink:write"}
"""
DATABASE = """\
source: {type: market}
database: {file: procedures/bank.py, procedure: note}
sink: {type: noop}
"""
BANK = """\
import penstock
import pack_beside

bank = penstock.database("bank")
bank.table("notes", "symbol string, price double", key="symbol", partition_by="symbol")


@bank.procedure(returns="price double")
def note(e, notes):
    return e.price
"""
FILES = {
    "mine.yaml": PIPELINE,
    "bank.yaml": DATABASE,
    "procedures/bank.py": BANK,
    "procedures/pack_beside.py": "",
    "lib/pack_steps/__init__.py": "import pack_spaces.inner\n",
    "lib/pack_steps/newest.py": "import json, numpy\nfrom . import words\nkeep = print\n",
    "lib/pack_steps/words/list.txt": "a\n",
    "lib/pack_steps/__pycache__/old.pyc": "",
    "lib/pack_sink.py": "def write(rows, batch):\n    import pack_missing\n",
    "lib/pack_spaces/inner.py": "",
    "lib/pack_spaces/notes.txt": "not a module",
    "lib/pack_unused.py": "",
}
OWN = {
    "pack_steps/__init__.py", "pack_steps/newest.py", "pack_steps/words/list.txt", "pack_sink.py",
    "pack_spaces/inner.py",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        file = tmp_path / "here" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here" / "lib")


def names_in(archive: Path) -> set[str]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as file:
            return set(file.namelist())
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def run_python(python: Path, program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory, without the modules of these tests."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-c", program]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_has_penstock_the_pipeline_and_its_modules(tmp_path: Path, kind: str) -> None:
    packed = pack_pipeline(tmp_path / f"mine.{kind}", "mine.yaml")
    names = names_in(packed.path)
    assert {name for name in names if not name.startswith("penstock/")} == OWN | {RUN_SCRIPT, "mine.yaml"}
    assert {"penstock/cli.py", "penstock/conf/log4j2.properties", "penstock/py.typed"} <= names
    assert not any("__pycache__" in name for name in names)
    assert packed.modules.installed == {"numpy"}


def test_a_database_comes_with_its_file_and_what_is_beside_it(tmp_path: Path) -> None:
    names = names_in(pack_pipeline(tmp_path / "bank.zip", "bank.yaml").path)
    assert {name for name in names if not name.startswith("penstock/")} == {
        RUN_SCRIPT, "bank.yaml", "procedures/bank.py", "pack_beside.py",
    }  # fmt: skip


def test_where_it_is_unpacked_python_runs_the_pipeline_from_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    with zipfile.ZipFile(pack_pipeline(tmp_path / "bank.zip", "bank.yaml").path) as archive:
        archive.extractall(elsewhere)
    program = "import penstock.cli; print(penstock.__file__); penstock.cli.app(['check', 'bank.yaml'])"
    done = run_python(Path(sys.executable), program, elsewhere)
    assert done.stdout.startswith(str(elsewhere)), done.stderr
    assert "valid: market -> transactions of note -> noop" in done.stdout, done.stderr


def test_an_environment_has_the_modules_beside_its_packages(tmp_path: Path) -> None:
    pytest.importorskip("venv_pack")
    venv.create(tmp_path / "venv", symlinks=True)
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    jar = tmp_path / "venv" / packages / "pyspark/jars/spark.jar"
    jar.parent.mkdir(parents=True)
    jar.write_text("large")
    packed = pack_pipeline(tmp_path / "environment.tar.gz", "mine.yaml", prefix=tmp_path / "venv")
    moved = tmp_path / "moved"
    with tarfile.open(packed.path) as archive:
        archive.extractall(moved, filter="fully_trusted")
    program = "import json, sys, pack_steps; print(json.dumps([sys.prefix, pack_steps.__file__]))"
    told = run_python(moved / "bin/python", program, moved)
    assert json.loads(told.stdout) == [str(moved), str(moved / packages / "pack_steps/__init__.py")], (
        told.stderr
    )
    assert (moved / "mine.yaml").exists()
    assert (moved / RUN_SCRIPT).exists()
    assert not list(moved.rglob("*.jar"))


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="no module 'pack_nowhere'"):
        find_modules(["pack_nowhere.inner"])
    with pytest.raises(InvalidUsageError, match=r"a name that ends in \.zip or \.tar\.gz"):
        pack_pipeline(tmp_path / "mine.whl", "mine.yaml")
    with pytest.raises(InvalidUsageError, match="the environment cannot be packed"):
        pack_pipeline(tmp_path / "mine.tar.gz", "mine.yaml", prefix=tmp_path)
    Path("bank.yaml").write_text(DATABASE.replace("procedures", "../here/procedures"))
    with pytest.raises(InvalidUsageError, match=r"database\.file is not below the current directory"):
        pack_pipeline(tmp_path / "bank.zip", "bank.yaml")
    Path("lib/pack_sink.py").write_text("def write(rows, batch) return")
    with pytest.raises(InvalidUsageError, match=r"a Python file cannot be read: file=.*pack_sink\.py"):
        pack_pipeline(tmp_path / "mine.zip", "mine.yaml")
    Path("lib/pack_sink.py").write_text("")
    Path("lib/pack_steps/fast.abi3.so").write_text("")
    with pytest.raises(InvalidUsageError, match=r"a compiled module from an archive: module=pack_steps/fast"):
        pack_pipeline(tmp_path / "mine.zip", "mine.yaml")


def test_the_command_says_what_it_packed_and_how_to_submit_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["pack", "mine.yaml", "--out", "mine.zip", "--module", "pack_unused"])
    assert done.exit_code == 0, done.output
    assert "mine.yaml, pack_sink, pack_spaces, pack_steps, pack_unused" in done.stdout
    assert "workers need these modules: numpy" in done.stderr
    assert "first take its program out: unzip mine.zip run_pipeline.py\n" in done.stderr
    assert "spark-submit --py-files mine.zip run_pipeline.py mine.yaml" in done.stderr
    assert "pack_unused.py" in names_in(Path("mine.zip"))


def test_penstock_alone_is_packed_without_a_pipeline() -> None:
    done = CliRunner().invoke(app, ["pack"])
    assert (done.exit_code, done.stderr) == (
        0,
        "run it by: spark-submit --py-files penstock.zip PROGRAM.py\n",
    )
    package = Path(penstock.__file__).parent
    files = (file.relative_to(package) for file in package.rglob("*.py"))
    sources = {f"penstock/{file}" for file in files if "__pycache__" not in file.parts}
    assert {name for name in names_in(Path("penstock.zip")) if name.endswith(".py")} == sources | {RUN_SCRIPT}


def test_a_packaged_example_needs_no_modules() -> None:
    from penstock.conf.pipeline import load_pipeline

    assert pipeline_modules(load_pipeline("market")).files == {}
