"""The scripts choose rightly, with a PATH of fakes: no network, no Java, nothing installed."""

import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ["demo", "lint", "setup", "test"]
TOOLS = [
    *("cat", "cksum", "cp", "dirname", "env", "grep", "head", "mkdir", "mktemp", "mv"),
    *("rm", "sed", "sh", "tail", "true"),
]

FAKE_PYTHON = """\
#!/bin/sh
# Answers what the scripts ask of a Python, and makes environments that are copies of itself.
case "$1 $2" in
'-m venv')
    echo "venv" >>"$LOG"
    rm -rf "$4"
    mkdir -p "$4/bin"
    cp "$0" "$4/bin/python"
    exit ;;
'-m pip')
    echo "pip $*" >>"$LOG"
    case $FAKE_PIP in
    fails) echo 'no such version'; exit 1 ;;
    killed) kill -KILL "$PPID" ;;
    esac
    case " $* " in
    *' -e '*) cp "$FAKES/penstock" "${0%/*}/penstock" ;;
    esac
    exit ;;
'-m pytest') shift 2; echo "pytest $*"; exit "${FAKE_PYTEST:-0}" ;;
'-m ruff' | '-m mypy' | '-m mkdocs') exit "${FAKE_LINT:-0}" ;;
'-m tests.every_kernel') echo "kernels"; exit "${FAKE_KERNELS:-0}" ;;
'-m tests.servers.kafka') echo "kafka"; exit "${FAKE_KAFKA:-0}" ;;
esac
case "$2" in
*'version_info <'*) exit "${FAKE_PYTHON_OLD:-0}" ;;
*base_prefix*) exit 0 ;;
*ensurepip*) test ! -e "$FAKES/no-venv"; exit ;;
esac
exec "$REAL_PYTHON" "$@"
"""

FAKE_PENSTOCK = """\
#!/bin/sh
printf 'pid %s\\n' "$$"
for argument; do printf 'argument <%s>\\n' "$argument"; done
env
exit "${FAKE_PENSTOCK:-0}"
"""

FAKE_JAVA = """\
#!/bin/sh
{text}
"""

FAKE_APT_GET = """\
#!/bin/sh
for package; do :; done
case " $* " in
*' -s '*) grep -qx "$package" "$FAKES/candidates"; exit ;;
esac
echo "apt-get $*" >>"$LOG"
for package; do
    case $package in
    *jre-headless) cp "$FAKES/java-of-apt" "$FAKES/java" ;;
    python3*-venv) rm -f "$FAKES/no-venv" ;;
    esac
done
exit "${FAKE_APT:-0}"
"""

FAKE_ID = """\
#!/bin/sh
echo "${FAKE_UID:-1000}"
"""

FAKE_SUDO = """\
#!/bin/sh
test "$1" = -n || exit 99
shift
test "$FAKE_SUDO" = yes || exit 1
test "$1" = true || echo "sudo" >>"$LOG"
exec "$@"
"""


def java_says(version: str) -> str:
    """Return a Java that prints `version` where Java prints it."""
    line = f'openjdk version "{version}" 2025-04-15'
    return FAKE_JAVA.format(text=f"printf '%s\\n' 'Picked up JAVA_TOOL_OPTIONS: -X' '{line}' >&2")


@dataclass
class Result:
    """The outcome of a script."""

    code: int
    out: str
    err: str
    log: list[str]
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """The environment the fake `penstock` saw."""
        return dict(line.split("=", 1) for line in self.out.splitlines() if "=" in line)


class Machine:
    """A copy of the project's scripts, and a PATH on which only fakes and plain tools are."""

    def __init__(self, directory: Path) -> None:
        self.project = directory / "a project"
        self.fakes = directory / "fakes"
        self.log = directory / "log"
        self.elsewhere = directory / "elsewhere"
        self.jvms = directory / "jvms"
        for made in (self.fakes, self.elsewhere, self.jvms, self.project / "penstock"):
            made.mkdir(parents=True)
        for name in ("script", "constraints"):
            shutil.copytree(ROOT / name, self.project / name)
        for name in ("pyproject.toml", "penstock/_version.py"):
            shutil.copy(ROOT / name, self.project / name)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, f"{tool} is needed to run the scripts"
            (self.fakes / tool).symlink_to(found)
        self.fake("python3", FAKE_PYTHON)
        self.fake("penstock", FAKE_PENSTOCK)
        self.fake("java", java_says("17.0.15"))
        self.fake("java-of-apt", java_says("17.0.15"))
        self.fake("id", FAKE_ID)

    def fake(self, name: str, text: str) -> None:
        """Put a fake command on the PATH."""
        self.write(self.fakes / name, text)

    def remove(self, name: str) -> None:
        """Take a command off the PATH."""
        (self.fakes / name).unlink()

    def java_home(self, name: str, version: str) -> Path:
        """Make a Java in the directory where Debian keeps them, and return its home."""
        (self.jvms / name / "bin").mkdir(parents=True)
        self.write(self.jvms / name / "bin" / "java", java_says(version))
        return self.jvms / name

    def debian(self, *candidates: str, sudo: bool = False) -> None:
        """Add apt-get, which can install the candidates."""
        self.fake("apt-get", FAKE_APT_GET)
        if sudo:
            self.fake("sudo", FAKE_SUDO)
        (self.fakes / "candidates").write_text("".join(f"{name}\n" for name in candidates))

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, **environment: str) -> Result:
        """Run a script from another directory, with stdin closed and no home directory."""
        self.log.write_text("")
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" <&-', "sh", self.project / "script" / script, *arguments],
            cwd=self.elsewhere,
            env={
                "PATH": str(self.fakes),
                "FAKES": str(self.fakes),
                "LOG": str(self.log),
                "REAL_PYTHON": sys.executable,
                "PENSTOCK_JVM_DIR": str(self.jvms),
                "TMPDIR": str(self.elsewhere),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = process.communicate(timeout=60)
        log = self.log.read_text().splitlines()
        return Result(process.returncode, out, err, log, process.pid)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def installs(result: Result) -> list[str]:
    return [line for line in result.log if line.startswith("pip")]


def last_line(text: str) -> str:
    return text.splitlines()[-1]


# --------------------------------------------------------------------------------------- the whole


def test_demo_passes_arguments_and_exit_code_through(machine: Machine) -> None:
    result = machine.run("demo", "--rows", "1 000", "", FAKE_PENSTOCK="7")
    assert result.code == 7, result.err
    arguments = [line for line in result.out.splitlines() if line.startswith("argument")]
    assert arguments == [f"argument <{text}>" for text in ("demo", "--rows", "1 000", "")]


def test_demo_becomes_the_demo_so_that_signals_reach_it(machine: Machine) -> None:
    result = machine.run("demo")
    assert f"pid {result.pid}" in result.out.splitlines()


def test_demo_stays_in_the_directory_of_the_caller(machine: Machine) -> None:
    result = machine.run("demo")
    assert result.environment["PWD"] == str(machine.elsewhere)


def test_spark_and_caches_need_no_home_directory(machine: Machine) -> None:
    result = machine.run("demo", SPARK_HOME="/opt/spark", PYTHONPATH="/opt/other")
    seen = result.environment
    venv = machine.project / ".venv"
    assert seen["PYSPARK_PYTHON"] == seen["PYSPARK_DRIVER_PYTHON"] == str(venv / "bin" / "python")
    assert seen["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert seen["MPLCONFIGDIR"].startswith(str(venv))
    assert seen["NUMBA_CACHE_DIR"].startswith(str(venv))
    assert not {"HOME", "SPARK_HOME", "PYTHONPATH"} & seen.keys()


def test_what_the_user_set_for_spark_and_caches_is_kept(machine: Machine) -> None:
    chosen = {"SPARK_LOCAL_IP": "10.0.0.7", "MPLCONFIGDIR": "/a", "NUMBA_CACHE_DIR": "/b"}
    result = machine.run("demo", **chosen)
    assert chosen.items() <= result.environment.items()


def test_setup_installs_pinned_versions_without_naming_an_index(machine: Machine) -> None:
    result = machine.run("setup")
    assert result.code == 0, result.err
    pinned = str(machine.project / "constraints" / "pinned.txt")
    dependencies, itself = installs(result)
    assert f"-c {pinned}" in dependencies
    assert f"--no-deps --no-build-isolation --force-reinstall -e {machine.project}" in itself
    assert "index" not in dependencies + itself
    assert "://" not in dependencies + itself


def test_setup_leaves_no_temporary_file(machine: Machine) -> None:
    machine.run("demo")
    machine.run("demo", JAVA_HOME="/nowhere")
    assert list(machine.elsewhere.iterdir()) == []


# ---------------------------------------------------------------------------------- running again


def test_nothing_is_installed_when_nothing_changed(machine: Machine) -> None:
    machine.run("setup")
    for script in ("setup", "demo", "test"):
        result = machine.run(script)
        assert (result.code, result.log, result.err) == (0, [], "")


def test_the_demo_alone_leaves_the_test_tools_out(machine: Machine) -> None:
    machine.run("demo")
    requirements = machine.project / ".venv" / "penstock-requirements.txt"
    assert "pytest" not in requirements.read_text()
    assert len(installs(machine.run("test", "-q"))) == 2
    assert "pytest" in requirements.read_text()
    assert installs(machine.run("demo")) == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints/pinned.txt"])
def test_a_change_of_what_is_wanted_installs_again(machine: Machine, name: str) -> None:
    machine.run("setup")
    with (machine.project / name).open("a") as file:
        file.write("# changed\n")
    result = machine.run("setup")
    assert "venv" not in result.log
    assert len(installs(result)) == 2


def test_a_project_that_was_moved_is_installed_again(machine: Machine) -> None:
    machine.run("setup")
    machine.project = machine.project.rename(machine.project.with_name("moved"))
    assert len(installs(machine.run("setup"))) == 2


def test_a_failing_pip_shows_its_words_and_is_tried_again(machine: Machine) -> None:
    result = machine.run("demo", FAKE_PIP="fails")
    assert result.code == 1
    assert "no such version" in result.err
    assert last_line(result.err) == "script/demo: pip failed; its last words are above"
    result = machine.run("demo")
    assert result.code == 0
    assert "venv" not in result.log


def test_a_killed_installation_starts_afresh(machine: Machine) -> None:
    assert machine.run("demo", FAKE_PIP="killed").code != 0
    result = machine.run("demo")
    assert result.code == 0, result.err
    assert "venv" in result.log


def test_an_environment_without_a_python_is_made_anew(machine: Machine) -> None:
    machine.run("setup")
    (machine.project / ".venv" / "bin" / "python").unlink()
    result = machine.run("setup")
    assert result.code == 0, result.err
    assert "venv" in result.log


def test_other_versions_get_an_environment_of_their_own(machine: Machine) -> None:
    machine.run("setup")
    result = machine.run("test", PENSTOCK_CONSTRAINTS="constraints/lowest.txt")
    assert result.code == 0, result.err
    assert str(machine.project / "constraints" / "lowest.txt") in installs(result)[0]
    assert (machine.project / ".venv-lowest").is_dir()
    assert machine.run("setup").log == []


def test_another_spark_gets_an_environment_of_its_own(machine: Machine) -> None:
    machine.run("setup")
    result = machine.run("test", PENSTOCK_SPARK="4.0.5")
    assert result.code == 0, result.err
    others = machine.project / ".venv-spark-4.0.5.txt"
    assert str(others) in installs(result)[0]
    pinned = (machine.project / "constraints" / "pinned.txt").read_text()
    assert others.read_text() == re.sub(r"(?m)^pyspark==.*$", "pyspark==4.0.5", pinned)
    assert (machine.project / ".venv-spark-4.0.5").is_dir()


def test_constraints_that_are_not_there_are_refused(machine: Machine) -> None:
    result = machine.run("setup", PENSTOCK_CONSTRAINTS="no.txt")
    assert (result.code, result.log) == (1, [])
    assert result.err == "script/setup: PENSTOCK_CONSTRAINTS=no.txt is not a file\n"


# ------------------------------------------------------------------------------------------ Python


def test_no_python_is_one_clear_line(machine: Machine) -> None:
    machine.remove("python3")
    result = machine.run("demo")
    assert result.code == 1
    assert result.err == (
        "script/demo: no Python 3.11 or newer found: install one, or name it with PYTHON=/path/to/python3\n"
    )


def test_an_old_python_does_not_count(machine: Machine) -> None:
    result = machine.run("demo", FAKE_PYTHON_OLD="1")
    assert result.code == 1
    assert "no Python 3.11 or newer found" in result.err


def test_a_newer_python_is_found_beside_an_old_one(machine: Machine) -> None:
    machine.fake("python3.12", FAKE_PYTHON)
    machine.fake("python3", "#!/bin/sh\nexit 1\n")
    assert machine.run("demo").code == 0


def test_a_named_python_that_is_too_old_is_refused(machine: Machine) -> None:
    machine.fake("old", "#!/bin/sh\nexit 1\n")
    result = machine.run("demo", PYTHON="old")
    assert result.code == 1
    assert result.err == "script/demo: PYTHON=old is not Python 3.11 or newer\n"


def test_a_missing_venv_module_is_installed_by_root(machine: Machine) -> None:
    machine.debian("python3-venv")
    (machine.fakes / "no-venv").touch()
    result = machine.run("demo", FAKE_UID="0")
    assert result.code == 0, result.err
    assert result.log[0] == "apt-get -q update"
    assert result.log[1].endswith(" install python3-venv")


def test_venv_and_java_are_asked_for_in_one_line(machine: Machine) -> None:
    machine.debian("python3-venv", "openjdk-17-jre-headless", sudo=True)
    machine.remove("java")
    (machine.fakes / "no-venv").touch()
    result = machine.run("demo")
    assert (result.code, result.log) == (1, [])
    assert result.err == (
        "script/demo: Python's venv module is missing, and Java 17 or newer is missing; "
        "run this, then try again: sudo apt-get update && "
        "sudo apt-get install -y python3-venv openjdk-17-jre-headless\n"
    )


# -------------------------------------------------------------------------------------------- Java


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.3", "25-ea", "25.0.1", "101"])
def test_a_new_enough_java_is_used(machine: Machine, version: str) -> None:
    machine.fake("java", java_says(version))
    result = machine.run("demo")
    assert result.code == 0, result.err
    assert "JAVA_HOME" not in result.environment


@pytest.mark.parametrize("version", ["1.8.0_392", "9-ea", "11.0.22", "16.0.2", "?"])
def test_an_old_java_does_not_count(machine: Machine, version: str) -> None:
    machine.fake("java", java_says(version))
    result = machine.run("demo")
    assert result.code == 1
    assert "Java 17 or newer is missing" in result.err


def test_a_java_that_says_nothing_does_not_count(machine: Machine) -> None:
    machine.fake("java", FAKE_JAVA.format(text="exit 127"))
    assert machine.run("demo").code == 1


def test_java_home_comes_first(machine: Machine) -> None:
    machine.fake("java", java_says("11.0.22"))
    home = machine.java_home("with space", "21.0.3")
    result = machine.run("demo", JAVA_HOME=str(home))
    assert result.code == 0, result.err
    assert result.environment["JAVA_HOME"] == str(home)


def test_an_old_java_home_gives_way_to_the_java_on_path(machine: Machine) -> None:
    home = machine.java_home("old", "1.8.0_392")
    result = machine.run("demo", JAVA_HOME=str(home))
    assert result.code == 0, result.err
    assert f"JAVA_HOME={home} is not Java 17 or newer" in result.err
    assert "JAVA_HOME" not in result.environment


def test_an_installed_java_that_is_not_on_path_is_found(machine: Machine) -> None:
    machine.fake("java", java_says("11.0.22"))
    machine.java_home("a-java-11", "11.0.22")
    home = machine.java_home("b-java-17", "17.0.15")
    result = machine.run("demo")
    assert result.code == 0, result.err
    assert result.environment["JAVA_HOME"] == str(home)


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        (["default-jre-headless", "openjdk-17-jre-headless"], "openjdk-17-jre-headless"),
        (["default-jre-headless", "openjdk-21-jre-headless"], "openjdk-21-jre-headless"),
        (["default-jre-headless"], "default-jre-headless"),
    ],
)
def test_root_gets_the_java_that_debian_has(machine: Machine, candidates: list[str], chosen: str) -> None:
    machine.debian(*candidates)
    machine.remove("java")
    result = machine.run("demo", FAKE_UID="0")
    assert result.code == 0, result.err
    assert result.log[0] == "apt-get -q update"
    assert result.log[1].startswith("apt-get -q -y --no-install-recommends ")
    assert result.log[1].endswith(f" install {chosen}")


def test_a_user_with_passwordless_sudo_gets_java(machine: Machine) -> None:
    machine.debian("openjdk-17-jre-headless", sudo=True)
    machine.remove("java")
    result = machine.run("demo", FAKE_SUDO="yes")
    assert result.code == 0, result.err
    assert result.log[:3:2] == ["sudo", "sudo"]


def test_a_user_who_may_not_install_gets_the_line_to_run(machine: Machine) -> None:
    machine.debian("openjdk-17-jre-headless", sudo=True)
    machine.remove("java")
    result = machine.run("test")
    assert (result.code, result.log) == (1, [])
    assert result.err == (
        "script/test: Java 17 or newer is missing; run this, then try again: "
        "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless\n"
    )


def test_without_sudo_the_line_to_run_uses_su(machine: Machine) -> None:
    machine.debian("openjdk-17-jre-headless")
    machine.remove("java")
    result = machine.run("demo")
    assert last_line(result.err).endswith(
        "su -c 'apt-get update && apt-get install -y openjdk-17-jre-headless'"
    )


def test_elsewhere_than_debian_the_message_says_what_to_install(machine: Machine) -> None:
    machine.remove("java")
    result = machine.run("demo")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert "Java 17 or newer is missing: install it" in result.err


def test_an_installed_java_that_is_still_too_old_is_an_error(machine: Machine) -> None:
    machine.debian("default-jre-headless")
    machine.remove("java")
    machine.fake("java-of-apt", java_says("11.0.22"))
    result = machine.run("demo", FAKE_UID="0")
    assert result.code == 1
    assert "still missing after installing default-jre-headless" in last_line(result.err)


def test_lint_needs_no_java(machine: Machine) -> None:
    machine.remove("java")
    assert machine.run("lint").code == 0


# ----------------------------------------------------------------------------------- test and lint


ALL_TESTS = "pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=25"


def test_test_checks_the_source_and_then_runs_pytest(machine: Machine) -> None:
    result = machine.run("test")
    assert result.code == 0, result.err
    assert "lint: all 6 checks passed" in result.out
    assert last_line(result.out) == ALL_TESTS


def test_test_with_arguments_only_runs_pytest(machine: Machine) -> None:
    result = machine.run("test", "tests/unit", "-k", "a or b", FAKE_LINT="1")
    assert (result.code, result.out) == (0, "pytest tests/unit -k a or b\n")


def test_tests_run_without_an_archive_of_classes(machine: Machine) -> None:
    result = machine.run("test", FAKE_PENSTOCK="1")
    assert (result.code, last_line(result.out)) == (0, ALL_TESTS)
    assert "setup: JVMs start slowly" in result.err


def test_tests_make_the_archive_of_classes_that_they_use(machine: Machine) -> None:
    assert machine.run("test").code == 0
    said = (machine.project / ".venv" / "warm-up.log").read_text().splitlines()
    assert [line for line in said if "argument" in line] == ["argument <warm-up>", "argument <--if-missing>"]
    assert f"XDG_CACHE_HOME={machine.project}/.venv/cache" in said


def test_tests_compile_every_kernel_first_and_run_if_that_fails(machine: Machine) -> None:
    assert machine.run("test").code == 0
    assert (machine.project / ".venv" / "kernels.log").read_text() == "kernels\n"
    result = machine.run("test", FAKE_KERNELS="1")
    assert (result.code, last_line(result.out)) == (0, ALL_TESTS)
    assert "setup: the tests compile what they need" in result.err


def test_tests_run_without_the_jars_of_kafka(machine: Machine) -> None:
    result = machine.run("test", FAKE_KAFKA="1")
    assert (result.code, last_line(result.out)) == (0, ALL_TESTS)
    assert "setup: the tests of Kafka are skipped" in result.err


def test_the_processes_of_tests_keep_bytecode(machine: Machine) -> None:
    assert machine.run("test", PYTHONDONTWRITEBYTECODE="1").code == 0
    assert "PYTHONDONTWRITEBYTECODE" not in (machine.project / ".venv" / "warm-up.log").read_text()


@pytest.mark.parametrize("code", ["1", "2", "5"])
def test_the_exit_code_of_pytest_is_that_of_test(machine: Machine, code: str) -> None:
    assert machine.run("test", FAKE_PYTEST=code).code == int(code)
    assert machine.run("test", "-q", FAKE_PYTEST=code).code == int(code)


def test_test_fails_when_lint_fails_but_still_runs_the_tests(machine: Machine) -> None:
    result = machine.run("test", FAKE_LINT="1")
    assert result.code == 1
    assert "lint: FAILED: ruff check, ruff format, mypy, site (of 6 checks)" in result.out
    assert last_line(result.out) == ALL_TESTS
    assert last_line(result.err) == "script/test: FAILED: script/lint (see above the tests)"


@pytest.mark.parametrize("call", ["path.unlink()", "Path(a).rename(b)", "Path(a).replace(b)"])
def test_lint_finds_deletes_and_renames_outside_their_door(machine: Machine, call: str) -> None:
    machine.run("setup")
    door = machine.project / "penstock" / "_durable"
    door.mkdir(exist_ok=True)
    (door / "__init__.py").write_text(f"{call}\n")
    assert machine.run("lint").code == 0
    (machine.project / "penstock" / "other.py").write_text(f"{call}\n")
    result = machine.run("lint")
    assert result.code == 1
    assert "lint: FAILED: doors (of 6 checks)" in result.out


@pytest.mark.parametrize("path", [*(f"script/{name}" for name in SCRIPTS), "script/servers", ".ci/run"])
def test_scripts_are_executable_posix_sh(path: str) -> None:
    text = (ROOT / path).read_text()
    assert text.startswith("#!/bin/sh\n")
    assert "\r" not in text
    assert (ROOT / path).stat().st_mode & stat.S_IXUSR
    subprocess.run(["/bin/sh", "-n", ROOT / path], check=True)
