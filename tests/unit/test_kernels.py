"""Kernels: they compute what their Python code does, are compiled once for all processes, and are cached."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import _kernels
from penstock.checkpointing.p_stream.update_log import newest
from penstock.compression.choice import statistics
from penstock.compression.codecs import decimals, dictionary, differences, run_length, simple8b, variable_byte
from penstock.compression.kernels import bits, symbols, text, token_decoding, token_encoding
from penstock.designing import cost_kernels
from penstock.operators.aggregates import moment_kernels, own_states, wide
from penstock.operators.joins import join_kernels
from penstock.operators.queues import pages
from penstock.operators.scan import selection
from penstock.operators.scan.fragments import fragment_kernels
from penstock.operators.scheduling import linked_scheduler, staleness, weighted_scheduler
from penstock.operators.scheduling.schedulers import freshest_scheduler
from penstock.operators.simulation import optimum
from penstock.operators.update_stream import arrivals, conflation
from penstock.predicting.models import markov_kernels, runtime_kernels, walk_kernels
from penstock.procedures import index_kernels
from penstock.procedures.indexes import trees
from penstock.procedures.local import set_kernels
from penstock.procedures.parallel import schedule, versions
from penstock.procedures.partitions import forwarding, placement
from penstock.procedures.partitions.predicted import guard_kernels
from penstock.procedures.workflows import rejections
from penstock.speculating.in_process import footprints
from penstock.sql import comparison_kernels
from penstock.state_store.keys import key_index, key_set, key_words, word_index
from penstock.state_store.tables import row_codec, row_store
from penstock.windows.append import sliding_kernels
from penstock.windows.sessions import session_kernels
from penstock.windows.update import transitions, zones
from tests.oracles.naive import Update, conflated, hash_of, staleness_bin
from tests.samples.streams import STREAM, arrivals_of

PACKAGE = Path(penstock.__file__).parent
ROOT = PACKAGE.parent

# Which property tests run each kernel against a plain reference, compiled and not.
KERNELS = {
    "own_states": {"_copy"},
    "newest": {"_newest"},
    "forwarding": {"find_first", "find_homes", "forward", "merge_homes", "order_by_home"},
    "footprints": {"choose_early"},
    "placement": {"find_ranges"},
    "markov_kernels": {"sweep_tables"},
    "walk_kernels": {"resolve", "walk", "walk_all"},
    "runtime_kernels": {"find_numbers", "count_votes"},
    "guard_kernels": {"leaves", "needs_all", "is_write_forbidden", "plan"},
    "cost_kernels": {
        *("_bits", "add_accesses", "merge", "add_bases", "count_distributed", "count_loads", "skew_factor")
    },
    "key_words": {
        "_put_fixed",
        "_put_bytes",
        "_get_fixed",
        "_get_sizes",
        "_get_bytes",
        "hash_word",
        "hash_words",
    },
    "key_index": {"_find", "_find_or_add", "_find_or_add_words", "_rebuild", "_gather_words"},
    "word_index": {"number_block"},
    "key_set": {"_second_hash", "_home", "_slot_of", "_add", "_contains", "_remove"},
    "row_codec": {"_append", "_extract"},
    "row_store": {"_missing_room", "_touch", "_write", "_gather"},
    "pages": {"_elp_remove", "_elp_add", "_allocate", "_free"},
    "arrivals": {"_conflate"},
    "conflation": {"_keep_newest", "_keep_newest_of_words"},
    "linked_scheduler": {
        *("_unlink", "_link_tail", "_link_cut", "_pop", "_pop_except"),
        *("_arrive_fifo", "_arrive_in_place", "_arrive_linecutting"),
    },
    "freshest_scheduler": {"_compute_indexes", "take_greatest"},
    # The reference is in tests/unit/operators/scheduling/test_freshest.py: all rules of a small process.
    "optimum": {"_serve", "wait_a_unit"},
    "weighted_scheduler": {"_due", "_precedes", "_sift", "_arrive_weighted", "_pop_weighted"},
    "staleness": {"_bin", "_add"},
    "zones": {
        "blocks_needed",
        "append",
        "_forget",
        "_release",
        "free_head",
        "free_tail",
        "count_slots",
        "list_slots",
    },
    "transitions": {
        "_mru_l",
        "_mru_e",
        "_is_update",
        "_do_promote",
        "_end",
        "_push_ready",
        "_pop_ready",
        "_wait",
        "_first_needed",
        "_trim",
        "_set_due",
        "_close",
        "_start",
        "enter",
        "sweep",
        "_commit",
        "commit",
        "serve_ready",
        "put_back",
        "append_stored",
        "line_up",
        "finish",
    },
    "bits": {
        *("_cheapest_width", "_cut_zeros", "_steps", "_pack_run", "_unpack_run"),
        *("_pack_offsets", "unpack_offsets", "finish", "_pack", "_unpack", "_add_up"),
    },
    "text": {
        *(
            "_add_up",
            "_place",
            "_write_out",
            "_write_rest",
            "_common_length",
            "_write_even",
            "_count_strangers",
        ),
        *("_head", "_mix", "_equal_tails", "_compare", "_assign_codes", "_count"),
    },
    "token_encoding": {
        *("_run", "_find", "_kind_of", "_mask", "_eight_digits", "_digits_of", "_number_at", "_equal_bytes"),
        *("_add_word", "code_rows"),
    },
    "token_decoding": {"_put_number", "join_words", "write_rows"},
    "symbols": {
        *("_word", "_slot_of", "_look_up", "_fill_tables", "_count_tokens", "_propose", "learn_symbols"),
        *("_put_code", "_end_lane", "code_symbols", "write_symbols"),
    },
    "statistics": {"_scan"},
    "decimals": {"_divide", "_to_integers", "_from_integers", "_to_steps", "_from_steps", "_count_misfits"},
    "differences": {"_divide", "_add_up", "_join"},
    "dictionary": {"_assign_codes", "_mark", "_recode", "_look_up"},
    "run_length": {"_find_runs", "_expand"},
    "simple8b": {"_write", "_read"},
    "variable_byte": {"_write", "_read"},
    "session_kernels": {"find_sessions"},
    "sliding_kernels": {
        *("order_by", "find_runs", "_divide", "count_windows", "find_windows", "merge", "skip", "lay_out"),
        *("are_sorted", "add_ranges", "add_wide_ranges", "number_window_groups", "find_equal"),
        *("slide_sum", "_beats", "slide_extreme", "slide_first", "slide_last", "slide_distinct"),
    },
    "selection": {"_find_true"},
    "comparison_kernels": {"restrict_mask"},
    "join_kernels": {"mark_old", "link", "find_pairs", "unlink_older", "unlink_useless"},
    "fragment_kernels": {
        *("_bits", "_position", "enter", "find_slots", "find_slots_of_one", "add_count", "add_sum"),
        *("find_runs", "add_count_of_runs", "add_sum_of_runs", "add_whole_of_runs"),
        *("mark", "keep_less", "keep_greater", "keep_row"),
        *("bound_of", "add_wide_sum", "add_wide_sums"),
    },
    "wide": {"add_words"},
    "moment_kernels": {
        "_distance",
        "_finish",
        "add_floats",
        "add_integers",
        "add_partials",
        "divide",
        "finish",
        "slide",
    },
    "set_kernels": {"new_set", "add", "contains", "size"},
    "index_kernels": {
        *("_first", "word_2", "word_3", "word_4", "find_1", "find_2", "find_3", "find_4"),
        *("put_entry", "remove_entry"),
        *("peek", "prefetch_entry"),
        *("add_entries", "remove_entries", "_words_2", "_words_3", "_words_4"),
        *("_find_all_1", "_find_all_2", "_find_all_3", "_find_all_4"),
    },
    "rejections": {"add_sizes", "copy_texts"},
    "trees": {
        *("float_word", "_priority", "_compare", "_compare_texts", "compare_bound", "build_tree"),
        *("insert_node", "remove_node", "insert_all", "remove_all", "tree_end", "seek", "find_equal"),
    },
    "schedule": {
        *("_count_done", "push", "_pop", "_next_of_level", "_next_of_rows"),
        *("next_transaction", "run_again", "end_transaction"),
    },
    "versions": {"version_of", "list_operations", "link_operations", "find_levels", "find_owners"},
}
REFERENCES = {
    "newest": "checkpointing/test_update_log",
    "forwarding": "procedures/partitions/test_partitions",
    "footprints": "speculating/test_early_requests",
    "placement": "procedures/partitions/test_partitions",
    "markov_kernels": "predicting/test_predictions",
    "walk_kernels": "predicting/test_predictions",
    "runtime_kernels": "predicting/test_predictions",
    "guard_kernels": "predicting/test_predictions",
    "cost_kernels": "designing/test_designs",
    "key_words": "state_store/keys/test_keys",
    "key_index": "state_store/keys/test_keys",
    "word_index": "state_store/keys/test_keys",
    "key_set": "state_store/keys/test_key_set",
    "row_codec": "state_store/tables/test_row_codec",
    "row_store": "state_store/tables/test_row_store",
    "pages": "operators/queues/test_pages",
    "arrivals": "operators/update_stream/test_conflate",
    "conflation": "operators/update_stream/test_conflate",
    "freshest_scheduler": "operators/queues/test_update_queue",
    "linked_scheduler": "operators/queues/test_update_queue",
    "weighted_scheduler": "operators/scheduling/test_weighted_queue",
    "staleness": "operators/scheduling/test_staleness",
    "zones": "windows/test_window_queue",
    "transitions": "windows/test_window_queue",
    "bits": "compression/test_kernels_of_codecs",
    "decimals": "compression/test_kernels_of_codecs",
    "differences": "compression/test_kernels_of_codecs",
    "dictionary": "compression/test_kernels_of_codecs",
    "run_length": "compression/test_kernels_of_codecs",
    "simple8b": "compression/test_kernels_of_codecs",
    "variable_byte": "compression/test_kernels_of_codecs",
    "text": "compression/test_kernels_of_codecs",
    "token_encoding": "compression/test_tokens",
    "token_decoding": "compression/test_tokens",
    "symbols": "compression/test_symbols",
    "statistics": "compression/test_kernels_of_codecs",
    "session_kernels": "windows/test_session_windows",
    "sliding_kernels": "windows/test_panes",
    "selection": "operators/scan/test_selection",
    "comparison_kernels": "sql/test_comparisons",
    "join_kernels": "operators/joins/test_update_join",
    "fragment_kernels": "operators/scan/test_fragments",
    "wide": "operators/aggregates/test_wide_sums",
    "moment_kernels": "operators/aggregates/test_deviations",
    "own_states": "operators/aggregates/test_own_aggregates",
    "set_kernels": "procedures/test_transactions",
    "index_kernels": "procedures/test_transactions",
    "rejections": "procedures/test_workflows",
    "trees": "procedures/test_index_trees",
    "schedule": "procedures/test_parallel_modes",
    "versions": "procedures/test_parallel_modes",
}
MODULES = [
    *(key_words, key_index, word_index, key_set, row_codec, row_store, newest),
    *(forwarding, footprints, placement, cost_kernels, guard_kernels),
    *(markov_kernels, walk_kernels, runtime_kernels),
    *(
        pages,
        arrivals,
        conflation,
        freshest_scheduler,
        linked_scheduler,
        weighted_scheduler,
        optimum,
        staleness,
        zones,
        transitions,
        session_kernels,
        sliding_kernels,
        join_kernels,
        selection,
        comparison_kernels,
    ),
    *(
        bits,
        text,
        token_encoding,
        token_decoding,
        symbols,
        statistics,
        decimals,
        differences,
        dictionary,
        run_length,
        simple8b,
        variable_byte,
    ),
    fragment_kernels,
    moment_kernels,
    own_states,
    wide,
    index_kernels,
    rejections,
    set_kernels,
    trees,
    schedule,
    versions,
]


def _compiled() -> dict[str, Any]:
    """Return all compiled kernels by module and name."""
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in MODULES
        for name in KERNELS[module.__name__.rpartition(".")[2]]
    }


def test_every_kernel_has_a_plain_reference() -> None:
    found: dict[str, set[str]] = {}
    for path in (path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts):
        if "jobs" in path.parts:
            continue  # the demo's query is an example, not part of the library
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                getattr(decorator, "id", "") == "kernel" for decorator in node.decorator_list
            ):
                found.setdefault(path.stem, set()).add(node.name)
    assert found == KERNELS
    for name in REFERENCES.values():
        assert (ROOT / "tests" / "property" / f"{name}.py").exists()


def test_every_kernel_is_cached_frees_the_gil_and_has_no_object_mode() -> None:
    for name, function in _compiled().items():
        options = function.targetoptions
        assert options.get("nogil"), name
        assert options.get("nopython"), name
        assert type(function._cache).__name__ == "FunctionCache", name


EVERY_KERNEL = """
import json, sys
from tests.every_kernel import use_every_kernel
from tests.unit.test_kernels import _compiled
use_every_kernel()
stats = {name: [sum(f.stats.cache_hits.values()), sum(f.stats.cache_misses.values()), len(f.signatures)]
         for name, f in _compiled().items()}
json.dump(stats, sys.stdout)
"""


def _python(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_process_compiles_nothing() -> None:
    _python(EVERY_KERNEL)
    stats = json.loads(_python(EVERY_KERNEL))
    assert len(stats) == sum(map(len, KERNELS.values()))
    assert {name: compiled for name, (_, compiled, _) in stats.items() if compiled} == {}
    inner = {
        "_unlink",
        "resolve",
        "_link_tail",
        "_link_cut",
        "_elp_add",
        "_elp_remove",
        "_bin",
        "_home",
        "_slot_of",
        "_touch",
        "_cheapest_width",
        "_cut_zeros",
        "_steps",
        *("_run", "_find", "_kind_of", "_mask", "_eight_digits", "_digits_of", "_number_at", "_add_word"),
        "_put_number",
        "_head",
        "_mix",
        "_write_rest",
        "_equal_tails",
        "_equal_bytes",
        "_pack_run",
        "_unpack_run",
        "_pack_offsets",
        "unpack_offsets",
        "finish",
        "_divide",
        "_bits",
        "_position",
        *("_due", "_precedes", "_sift", "_beats", "_divide", "add_words", "_distance", "_finish"),
        # What the transitions of window queues consist of.
        *("append", "_forget", "_release", "free_head", "free_tail"),
        *("_mru_l", "_mru_e", "_is_update", "_do_promote", "_end", "_push_ready", "_pop_ready"),
        *("_wait", "_first_needed", "_trim", "_set_due", "_close", "_start", "_commit"),
        *("_count_done", "push", "_pop", "_next_of_level", "_next_of_rows"),
        *("next_transaction", "run_again", "end_transaction", "version_of"),
        # What generated kernels and look-ups of many keys consist of.
        "_copy",
        *("_first", "word_2", "word_3", "word_4", "find_1", "find_2", "find_3", "find_4"),
        *("put_entry", "remove_entry", "hash_word"),
        *("peek", "prefetch_entry"),
        *("float_word", "_priority", "_compare", "_compare_texts", "compare_bound"),
        *("add", "contains", "size"),
        # What learning and coding by a table of symbols consist of.
        *("_word", "_propose", "_count_tokens", "_put_code", "_look_up", "_end_lane", "_fill_tables"),
    }
    unused = {name for name, (hits, _, _) in stats.items() if not hits}
    assert {name.rpartition(".")[2] for name in unused} <= inner


@pytest.mark.long
def test_the_property_tests_hold_without_the_compiler() -> None:
    files = [f"tests/property/{name}.py" for name in sorted(set(REFERENCES.values()))]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-W", "ignore::RuntimeWarning", "-m", "hypothesis", *files),
        ],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PENSTOCK_HYPOTHESIS_PROFILE": "quick"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_hashing_equals_its_reference_in_both_forms(form: str) -> None:
    function = _form(key_words.hash_words, form)
    words = np.array([0, 1, (1 << 64) - 1, 12345, 1 << 63], np.uint64)
    starts = np.array([0, 1, 1, 3, 5])
    with np.errstate(over="ignore"):
        out = function(words, starts).tolist()
    assert out == [
        hash_of(words[a:b].tolist()) for a, b in zip(starts.tolist(), starts.tolist()[1:], strict=False)
    ]


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_conflating_equals_its_reference_in_both_forms(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_conflate", _form(arrivals._conflate, form))
    batch = [Update(i * 7 % 5, i * 11 % 6, i) for i in range(40)]
    out = arrivals.conflate(STREAM, arrivals_of(STREAM, batch))
    groups = conflated(batch)
    assert out.rows.column("value").to_pylist() == [g.newest.value for g in groups.values()]
    assert out.count.tolist() == [g.count for g in groups.values()]


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_bins_of_staleness_equal_their_reference_in_both_forms(form: str) -> None:
    function = _form(staleness._bin, form)
    values = [0.0, 0.5, 1.0, 1.01, 1.02, 1.03, 2.0, 999.0, 1e6, 1e9, 3.6e9, 1e14, 1e18]
    edges = staleness._EDGES
    assert [function(v, edges) for v in values] == [staleness_bin(v, len(edges) - 1) for v in values]
    for number in (1, 2, 100, 1000, len(edges) - 1):
        edge = float(edges[number])
        assert function(edge, edges) == number
        assert function(np.nextafter(edge, 0), edges) == number - 1


def _form(function: Any, form: str) -> Any:
    return function if form == "compiled" else getattr(function, "py_func", function)


# Where the machine code goes.


def test_only_a_compilation_is_told_and_only_once() -> None:
    @_kernels.users_kernel
    def add(one: float, other: float) -> float:
        return one + other

    told: list[str] = []
    with _kernels.on_first_compilation(told.append):
        add(1, 2)
        add(1.0, 2.0)
    assert [line.partition(";")[0] for line in told] == ["compiling kernels"]
    with _kernels.on_first_compilation(told.append):
        add(3, 4)
    assert len(told) == 1


def test_the_cache_is_beside_the_sources_where_they_can_be_written(tmp_path: Path) -> None:
    assert _kernels._choose_cache(tmp_path) is None


def _read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path | None) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != package and access(path, mode))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", str(home))
    return package


def test_the_cache_goes_home_from_a_read_only_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = _read_only(monkeypatch, tmp_path, tmp_path / "home")
    chosen = _kernels._choose_cache(package)
    assert chosen == tmp_path / "home" / ".cache" / "penstock" / "kernels"
    assert chosen.stat().st_mode & 0o777 == 0o700
    assert _kernels._choose_cache(package) == chosen


@pytest.mark.parametrize("home", [None, Path("/proc/nowhere")], ids=["no home", "unusable home"])
def test_the_cache_goes_to_a_private_temporary_directory_without_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path | None
) -> None:
    package = _read_only(monkeypatch, tmp_path, home)
    assert _kernels._choose_cache(package) == tmp_path / f"penstock-kernels-{os.getuid()}"


@pytest.mark.parametrize("spoilt", ["writable by others", "a link", "of another user", "a file"])
def test_code_is_never_loaded_from_where_others_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    package = _read_only(monkeypatch, tmp_path, None)
    usual = tmp_path / f"penstock-kernels-{os.getuid()}"
    if spoilt == "writable by others":
        usual.mkdir()
        usual.chmod(0o777)
    elif spoilt == "a link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere").chmod(0o777)
        usual.symlink_to(tmp_path / "elsewhere")
    elif spoilt == "a file":
        usual.write_bytes(b"")
    else:
        usual.mkdir(mode=0o700)
        real = Path.stat

        def of_another(path: Path, **options: Any) -> Any:
            facts = real(path, **options)
            if path != usual:
                return facts
            return SimpleNamespace(st_uid=os.getuid() + 1, st_mode=facts.st_mode)

        monkeypatch.setattr(Path, "stat", of_another)
    chosen = _kernels._choose_cache(package)
    assert chosen is not None
    assert chosen != usual
    assert chosen.parent == tmp_path
    assert chosen.stat().st_mode & 0o777 == 0o700


HASH = """
import os, sys
package = sys.argv[1] if len(sys.argv) > 1 else "{package}"
access = os.access
os.access = lambda path, mode: not (str(path).startswith(package) and mode & os.W_OK) and access(path, mode)
import numpy
from penstock.state_store.keys.key_words import hash_words
import penstock
assert penstock.__file__.startswith(package), penstock.__file__
print(hash_words(numpy.array([1], numpy.uint64), numpy.array([0, 1]))[0], len(hash_words.stats.cache_hits))
"""


@pytest.mark.parametrize("form", ["directory", "zip"])
def test_kernels_compile_and_are_cached_from_a_read_only_package_without_a_home(
    tmp_path: Path, form: str
) -> None:
    place = tmp_path / "package"
    ignore = shutil.ignore_patterns("__pycache__", "jobs", "conf")
    shutil.copytree(PACKAGE, place / "penstock", ignore=ignore)
    if form == "zip":
        shutil.make_archive(str(tmp_path / "archive"), "zip", place)
        shutil.rmtree(place)
        place = tmp_path / "archive.zip"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {
        "PYTHONPATH": str(place),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/proc/nowhere",
        "TMPDIR": str(temporary),
        "NUMBA_CACHE_DIR": "",
    }
    for process, hits in ((1, 0), (2, 1)):
        out = _python(HASH.format(package=place), **environment).split()
        assert out == [str(hash_of([1])), str(hits)], f"process {process}"
    cached = {path.parents[-len(temporary.parts) - 1].name for path in temporary.rglob("*.nbc")}
    assert cached == {f"penstock-kernels-{os.getuid()}"}
    if form == "directory":
        assert not list(place.rglob("*.nb?"))
