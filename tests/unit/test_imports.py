"""Imports stay light and go one way; fail points are where the list says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import penstock
from penstock import _failpoints

PACKAGE = Path(penstock.__file__).parent
# Numba keeps generated text beside compiled modules.
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
HEAVY = ("pyspark", "numba", "pandas", "numpy", "pyarrow", "matplotlib", "pydantic", "sqlglot")

# A package imports from lower levels and its own; what is not named here may be read by all.
LEVELS = {
    "cli": 8,
    "jobs": 7,
    "testing": 7,
    "local_engine": 6,
    "predicting": 6,
    "spark_ext": 6,
    "dataflow": 5,
    "designing": 5,
    "windows": 4,
    "monitoring": 4,
    "procedures": 4,
    "speculating": 4,
    "upserts": 3,
    "operators": 3,
    "state_store": 3,
    "sql": 2,
    "checkpointing": 2,
    "compression": 1,
    "records": 1,
}
# The scripts that start the command line. No module imports them.
SCRIPTS = tuple(PACKAGE / "jobs" / name for name in ("command_line.py", "spark_submit.py"))
SPARK_SIDE = ("jobs", "cli", "local_engine", "spark_ext")


def _package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


# Names that everybody gives to modules of others.
USUAL_ALIASES = {"np", "npt", "pa", "pc", "pq", "ds", "pd", "sf", "mpl", "plt"}
MAX_FILES, MAX_LINES, MAX_SHARE = 12, 450, 1 / 5


def _without_type_checks(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those that only a type checker reads."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        yield from _without_type_checks(node)


def _imports(path: Path, *, typed: bool = True) -> Iterator[str]:
    """Yield the absolute names of what a module imports, anywhere in it."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if typed else _without_type_checks(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next and the last the first; empty if there are none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        found = next(filter(None, (visit(one, [*path, module]) for one in sorted(imports[module]))), [])
        done.add(module)
        return found

    return next(filter(None, (visit(module, []) for module in sorted(imports))), [])


@pytest.mark.parametrize("module", ["penstock", "penstock.errors", "penstock.units"])
def test_importing_the_library_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "penstock" in loaded.stdout.split()
    assert not set(HEAVY) & set(loaded.stdout.split())


def test_the_layers_below_spark_do_not_load_it() -> None:
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in MODULES
        if _package_of(path) in LEVELS and _package_of(path) not in SPARK_SIDE
    ]
    program = f"import sys, {', '.join(names)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "penstock.operators.scheduling.serve" in loaded.stdout.split()
    assert not {"pyspark", "py4j", "pandas"} & set(loaded.stdout.split())


def test_the_architecture_lists_the_levels() -> None:
    text = (PACKAGE.parent / "docs" / "concepts" / "architecture.md").read_text()
    drawn = re.search(r"^```text\n(jobs,.*?)```", text, re.M | re.S)
    assert drawn is not None
    levels = [line.split(", ") for line in drawn.group(1).splitlines()]
    found = {name: len(levels) - number for number, names in enumerate(levels) for name in names}
    assert found == {name: level for name, level in LEVELS.items() if name != "cli"}


@pytest.mark.parametrize("page", ["docs/concepts/architecture.md", "CONTRIBUTING.md"])
def test_each_package_is_in_the_tables(page: str) -> None:
    listed = set(re.findall(r"`penstock/(\w+)/`", (PACKAGE.parent / page).read_text()))
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - listed == set()


def test_who_plans_and_commits_for_spark_loads_no_compiler(tmp_path: Path) -> None:
    # Spark starts a process for each query of a p-stream, and one for each micro-batch that goes into one.
    program = """
import sys
from pathlib import Path
from penstock.spark_ext.border.spark_versions import ReadAllAvailable
from pyspark.sql.types import LongType, StructType
from penstock.spark_ext.sources.p_stream_source import PStreamDataSource
path, schema = Path(sys.argv[1], "p"), StructType().add("v", LongType())
source = PStreamDataSource({"path": str(path), "writer": "w"})
source.streamWriter(schema, overwrite=False).commit([], 0)
reader = PStreamDataSource({"path": str(path), "reader": "r"}).streamReader(schema)
start = reader.initialOffset()
stop = reader.latestOffset(start, ReadAllAvailable())
assert reader.partitions(start, stop) == [], "nothing was written"
reader.commit(stop)
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert "penstock.checkpointing.p_stream.log" in loaded.stdout.split()
    assert not {"numba", "pandas", "pyarrow.compute"} & set(loaded.stdout.split())


def test_the_local_engine_loads_no_other_engine(tmp_path: Path) -> None:
    # Time to the first row: pandas, scipy's linear algebra and the planner of Spark queries are not needed.
    rows = tmp_path / "rows.json"
    rows.write_text('{"k": "a", "t": 1}\n')
    (tmp_path / "p.yaml").write_text(
        f"engine: local\nsource: {{type: files, format: json, path: '{rows}', schema: 'k STRING, t LONG'}}\n"
        "queue: {key: k, time: t}\nsink: {type: console}\nquery: {trigger: available_now}\n"
    )
    program = """
import sys
from penstock.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*sys.modules)
import pyarrow as pa
assert pa.table({"a": [1]}).to_pandas()["a"].tolist() == [1], "it loads later"
assert pa.array(sys.modules["pandas"].Series([float("nan")])).null_count == 1
"""
    command = [sys.executable, "-c", program, "run", str(tmp_path / "p.yaml"), "--no-progress"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "penstock.local_engine.query" in loaded
    others = {"pandas", "scipy.linalg", "penstock.spark_ext.graph.runner", "penstock.windows.update.windows"}
    assert not others & set(loaded)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    own = _package_of(path)
    level = LEVELS["cli"] if path in SCRIPTS else LEVELS.get(own, 0)
    for name in _imports(path):
        assert not re.match(r"penstock\.jobs\.(command_line|spark_submit)\b", name), f"{own} imports a script"
        top, _, rest = name.partition(".")
        if top in ("pyspark", "py4j"):
            assert own in SPARK_SIDE, f"{own} imports {name}"
        if top != "penstock":
            continue
        imported = rest.partition(".")[0]
        if path.name == "__init__.py" and own == "__init__":
            # The package itself offers the Spark side, and loads it when it is used.
            continue
        assert imported == own or LEVELS.get(imported, 0) <= level, f"{own} imports {name}"
        if own in ("operators", "state_store"):
            # Operators use states, never the other way round.
            assert (own, imported) != ("state_store", "operators")


def test_no_files_import_each_other_in_a_circle() -> None:
    # Imports inside functions count; the package's names of a package are those of its modules.
    known = {_module_of(path) for path in MODULES}
    imports: dict[str, set[str]] = {}
    for path in MODULES:
        module = _module_of(path)
        found = set()
        for name in _imports(path, typed=False):
            parts = name.split(".")
            while parts and ".".join(parts) not in known:
                parts.pop()
            found.add(".".join(parts))
        imports[module] = found - {"", module}
    assert _circle(imports) == []


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert _circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_an_import_of_a_function_counts_and_one_of_the_type_checker_does_not(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("if TYPE_CHECKING:\n    import a\ndef f():\n    import b\n")
    assert list(_imports(module, typed=False)) == ["b"]
    assert list(_imports(module)) == ["a", "b"]


def test_no_folder_package_or_module_is_too_large() -> None:
    beside = [path for part in ("tests", "benchmarks") for path in (PACKAGE.parent / part).rglob("*.py")]
    files = Counter(path.parent for path in [*MODULES, *beside])
    assert {folder: count for folder, count in files.items() if count > MAX_FILES} == {}
    lines = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
    packages: Counter[str] = Counter()
    for path, count in lines.items():
        packages[_package_of(path)] += count
    most = MAX_SHARE * packages.total()
    assert {package: count for package, count in packages.items() if count > most} == {}


def test_names_of_our_own_are_imported_as_they_are() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                own = isinstance(node, ast.ImportFrom) and str(node.module).startswith("penstock")
                aliases = {alias.asname for alias in node.names} - {None}
                assert aliases <= (set() if own else USUAL_ALIASES), f"{path}: {aliases}"


# Private names of other libraries that modules use.
PRIVATE_ELSEWHERE = {
    "jobs/commands/serve.py": {"_exit"},
    "jobs/session.py": {"_ensure_initialized", "_gateway", "_jsc"},
    "jobs/signals.py": {"_exit"},
    "local_engine/records/kafka.py": {
        "_ALL_BROKERS_DOWN", "_PARTITION_EOF", "_RESOLVE", "_TIMED_OUT", "_TRANSPORT",
    },
    "procedures/analysis/sql_statements.py": {"_fields"},  # nodes of `ast`
    "procedures/machine_code/lowering.py": {"_getvalue"},  # Numba's structures
    "spark_ext/border/connection.py": {
        "_child", "_columns", "_df", "_explain_string", "_format", "_is_streaming", "_jdf", "_jsc", "_jsq",
        "_jvm", "_options", "_paths", "_plan", "_session", "_spark", "_write_proto", "_write_stream",
    },
    "speculating/in_process/stall_batches.py": {"_replace"},  # named tuples
    "speculating/scheduler.py": {"_replace"},
}  # fmt: skip


def _private_elsewhere(source: str) -> set[str]:
    """Return the private members that a module uses, but neither defines nor has in `self`."""
    used, own = set[str](), set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
            is_own = of_super or ast.unparse(node.value) in ("self", "cls")
            (own if is_own else used).add(node.attr)
    return used - own


def test_no_module_uses_private_members_of_another() -> None:
    found = {str(path.relative_to(PACKAGE)): _private_elsewhere(path.read_text()) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == PRIVATE_ELSEWHERE


def test_a_private_member_of_another_module_is_found() -> None:
    source = "class A:\n def _f(self, b): self._g(b); b._f(); b._g; super()._h(); self.b._i.c; b.__name__\n"
    assert _private_elsewhere(source) == {"_i"}


def test_one_module_compiles_kernels_four_have_what_python_lacks_and_three_write_machine_code() -> None:
    users = {path.name for path in MODULES for name in _imports(path) if name.partition(".")[0] == "numba"}
    lacking = {"atomics.py", "byte_vectors.py", "instructions.py", "integer_vectors.py"}
    machine_code = {path.name for path in PACKAGE.glob("procedures/machine_code/[!_]*.py")}
    assert users == {"_kernels.py", *lacking, *machine_code}


def _fail_points(path: Path) -> Iterator[ast.expr]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) == "failpoint"
        ):
            yield node.args[0]


def test_every_fail_point_is_in_the_code_once_and_no_other_is() -> None:
    used: Counter[str] = Counter()
    for path in MODULES:
        for name in _fail_points(path):
            assert isinstance(name, ast.Constant), f"{path} has a fail point whose name is computed"
            used[str(name.value)] += 1
    assert used == Counter(_failpoints.FAILPOINTS)


def test_a_fail_point_does_nothing_until_it_is_armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _failpoints.failpoint("state.before_write")
    marker = tmp_path / "marker"
    monkeypatch.setattr(_failpoints, "_ARMED", _failpoints._parse_armed(f"state.before_write=error@{marker}"))
    _failpoints.failpoint("state.after_write")
    with pytest.raises(_failpoints.InjectedError, match=r"state\.before_write"):
        _failpoints.failpoint("state.before_write")
    assert marker.exists()
    _failpoints.failpoint("state.before_write")


def test_a_fail_point_without_a_marker_fires_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_failpoints, "_ARMED", _failpoints._parse_armed("state.after_write=error;"))
    for _ in range(2):
        with pytest.raises(_failpoints.InjectedError):
            _failpoints.failpoint("state.after_write")


def test_an_unknown_fail_point_is_refused() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        _failpoints._parse_armed("nowhere=kill")


# Constants of modules that tests replace but that are no thresholds: caches, registries, a logger, modules.
REPLACED = {"_ARMED", "_CACHE", "_CHECKED", "_CHOICES", "_LOGGER", "_NEEDED", "_RELEASES"}


def _names_patched(node: ast.AST) -> list[str]:
    """Return the names that a statement or a call may replace in another module."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    if not isinstance(node, ast.Call):
        return []
    *owners, called = ast.unparse(node.func).split(".")
    if called in ("setattr", "patch", "_patch") or (
        called in ("object", "dict") and owners[-1:] == ["patch"]
    ):
        return [str(one.value).rpartition(".")[2] for one in node.args if isinstance(one, ast.Constant)]
    return []


def test_no_test_or_benchmark_changes_a_constant() -> None:
    patched = {}
    paths = [path for part in ("tests", "benchmarks") for path in (PACKAGE.parent / part).rglob("*.py")]
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text())):
            for name in _names_patched(node):
                if re.fullmatch("_?[A-Z][A-Z0-9_]+", name) and name not in REPLACED:
                    patched[f"{path.name}:{getattr(node, 'lineno', 0)}"] = name
    assert patched == {}, "pass the threshold in"


@pytest.mark.parametrize(
    "text",
    [
        'monkeypatch.setattr(run, "MOST_COPIED", 3)',
        'patch.setattr("penstock.x.MOST_COPIED", 3)',
        'mock.patch.object(run, "MOST_COPIED", 3)',
        'mock.patch("penstock.x.MOST_COPIED", 3)',
        "run.MOST_COPIED = 3",
    ],
)
def test_a_change_of_a_constant_is_found(text: str) -> None:
    assert any("MOST_COPIED" in _names_patched(node) for node in ast.walk(ast.parse(text)))


def test_the_package_tells_its_names() -> None:
    assert dir(penstock) == sorted(penstock.__all__)
