"""Modules beside a pipeline's file: check, run and pack find them, and check says what is wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PIPELINE = """\
source: {{type: market, rows: 200, real_time: false}}
queue: {{key: symbol, time: time, apply: "{apply}", output_schema: "symbol STRING"}}
sink: {sink}
query: {{trigger: available_now}}
"""
NOOP = "{type: noop}"
HINT = (
    "Hint: the module must be installed, beside the pipeline's file, on PYTHONPATH, or passed to "
    "spark-submit with --py-files.\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory below which a pipeline's file has modules beside it."""
    (tmp_path / "jobs").mkdir()
    files = {
        "jobs/mine_steps.py": "import mine_helper\ndef keep(rows): return mine_helper.keep(rows)\n",
        "jobs/mine_helper.py": "def keep(rows): return rows.select(['symbol'])\n",
        "jobs/broken_steps.py": "value = 1 / 0\n",
        "jobs/exiting_steps.py": "import sys\nsys.exit(3)\n",
        "own.yaml": PIPELINE.format(apply="mine_steps:keep", sink=NOOP),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def penstock(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, because it changes what the process can import."""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(Path(sys.executable).with_name("penstock")), *arguments]
    return subprocess.run(command, cwd=project, env=without, capture_output=True, text=True, check=False)


def write(project: Path, apply: str = "mine_steps:keep", sink: str = NOOP) -> str:
    (project / "jobs/own.yaml").write_text(PIPELINE.format(apply=apply, sink=sink))
    return "jobs/own.yaml"


def test_check_run_and_pack_find_modules_beside_the_pipelines_file(project: Path) -> None:
    file = write(project)
    assert penstock(project, "check", file).stdout.startswith(f"{file}: valid")
    ran = penstock(project, "run", file, "--engine", "local", "--no-progress")
    assert ran.returncode == 0, ran.stderr
    assert "200 rows in" in ran.stderr
    packed = penstock(project, "pack", file, "--out", "own.zip")
    assert packed.returncode == 0, packed.stderr
    assert {"mine_steps.py", "mine_helper.py"} <= set(zipfile.ZipFile(project / "own.zip").namelist())


def test_python_workers_that_a_command_starts_find_the_modules(project: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "from penstock.conf.pipeline import load_pipeline\n"
        "from penstock.jobs.cluster.modules import import_beside\n"
        f"import_beside(load_pipeline({write(project)!r}), {write(project)!r})\n"
        "subprocess.run([sys.executable, '-c', 'import mine_steps; print(mine_steps.__file__)'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{project}/jobs/mine_steps.py\n", done.stderr


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"apply": "mine_stepss:keep"}, f"2: queue: apply: No module named 'mine_stepss'. {HINT}"),
        (
            {"apply": "mine_steps:kep"},
            "2: queue: apply: the module mine_steps has no 'kep'. Hint: did you mean 'keep'?\n",
        ),
        (
            {"apply": "exiting_steps:keep"},
            "2: queue: apply: the module exiting_steps fails: SystemExit: 3.\n",
        ),
        (
            {"apply": "broken_steps:keep"},
            "2: queue: apply: the module broken_steps fails: ZeroDivisionError: division by zero.\n",
        ),
        (
            {"sink": '{type: foreach_batch, function: "mine_sink:write"}'},
            f"3: sink: function: No module named 'mine_sink'. {HINT}",
        ),
    ],
)
def test_check_says_what_is_wrong_with_a_function(project: Path, wrong: dict[str, str], problem: str) -> None:
    checked = penstock(project, "check", write(project, **wrong))
    assert checked.stderr == f"jobs/own.yaml:{problem}"
    assert checked.returncode != 0


def test_a_module_elsewhere_is_not_found_and_pack_says_where_it_may_be(project: Path) -> None:
    packed = penstock(project, "pack", "own.yaml", "--out", "own.zip")
    assert packed.stderr == (
        "there is no module 'mine_steps'. Hint: the module must be installed, beside the pipeline's YAML or "
        "Python file, or on PYTHONPATH.\n"
    )
