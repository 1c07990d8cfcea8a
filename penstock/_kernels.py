"""Compile Numba kernels, and choose the directory for their machine code.

Kernels are compiled at their first call and cached on disk beside the source. If that directory cannot be
written (a read-only install, a zip file given to spark-submit), the cache is in
``~/.cache/penstock/kernels``. If there is no usable home, it is in a private directory below the system's
temporary directory. ``NUMBA_CACHE_DIR`` overrides all these choices. In a zip file numba ignores this
variable and uses the user's cache directory, so Penstock sets ``XDG_CACHE_HOME`` while numba looks for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import event
from numba.core.compiler import CompilerBase, DefaultPassBuilder

from penstock._clock import new_id
from penstock._durable import replace

__all__ = [
    "GOLDEN",
    "MIX_1",
    "MIX_2",
    "UNCOMPILABLE",
    "kernel",
    "load_generated",
    "load_run",
    "on_first_compilation",
    "program_kernel",
    "users_kernel",
]

F = TypeVar("F", bound=Callable[..., Any])

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The odd number next to 2 ** 64 divided by the golden ratio: a multiplier of hashes."""
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The multipliers in the last steps of hashes."""
_NOT_NEEDED = frozenset({
    "AnnotateTypes",
    "DeadBranchPrune",
    "FindLiterallyCalls",
    "GenericRewrites",
    "IRLegalization",
    "InlineClosureLikes",
    "InlineInlinables",
    "InlineOverloads",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "MakeFunctionToJitFunction",
    "MixedContainerUnroller",
    "NopythonRewrites",
    "ParforPass",
    "PreParforPass",
    "RewriteDynamicRaises",
    "RewriteSemanticConstants",
    "WithLift",
})  # fmt: skip
"""Passes of numba for features that a program's kernel never uses: closures, array expressions, functions to
inline by type, branches on absent arguments, ``with``, ``raise``. Some versions of numba lack some of these
passes."""


def _load_array_functions() -> None:
    """Load numba's array functions without scipy's linear algebra.

    The array functions only check that scipy exists, and kernels do not use scipy. Loading scipy takes a
    seventh of the time until a process's first row. If a function uses scipy, scipy is loaded when the
    function is compiled.
    """
    from numba.np import linalg

    check: Callable[[], None] | None = getattr(linalg, "ensure_blas", None)
    if check is None or importlib.util.find_spec("scipy") is None:
        return
    linalg.ensure_blas = lambda: None
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = check


_load_array_functions()


def _private(directory: Path) -> bool:
    """Return whether `directory` exists or can be made, is writable, and belongs to this user alone."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = directory.stat()
    except OSError:
        return False
    mine = facts.st_uid == os.getuid() and not facts.st_mode & 0o022
    return mine and os.access(directory, os.W_OK)


def _choose_cache(package: Path) -> Path | None:
    """Return the directory of the cache; None if the cache stays beside the sources in `package`."""
    if os.access(package, os.W_OK):
        return None
    home = os.environ.get("HOME")
    places = [Path(home) / ".cache" / "penstock" / "kernels"] if home else []
    places.append(Path(tempfile.gettempdir()) / f"penstock-kernels-{os.getuid()}")
    for place in places:
        if _private(place):
            return place
    return Path(tempfile.mkdtemp(prefix="penstock-kernels-"))


_PACKAGE = Path(__file__).parent
_lock = threading.Lock()
_ARCHIVED = not _PACKAGE.exists()
_cache = _choose_cache(_PACKAGE) if _ARCHIVED or not numba.config.CACHE_DIR else None
if _cache is not None and not numba.config.CACHE_DIR:
    numba.config.CACHE_DIR = str(_cache)


@contextlib.contextmanager
def _cache_home(directory: Path | None) -> Iterator[None]:
    """Set the user's cache directory to `directory` within the context; None changes nothing."""
    name = "XDG_CACHE_HOME"
    before = os.environ.get(name)
    try:
        if directory is not None:
            os.environ[name] = str(directory)
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif directory is not None:
            del os.environ[name]


def kernel(function: F) -> F:
    """Compile `function` without object mode, free of the GIL, cached on disk."""
    with _cache_home(_cache if _ARCHIVED else None):
        compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


class _FirstCompilation(event.Listener):  # type: ignore[misc]
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._is_told = False

    def on_start(self, event: Any) -> None:
        if not self._is_told:
            self._is_told = True
            self._tell("compiling kernels; after an installation, this takes up to a minute")

    def on_end(self, event: Any) -> None: ...


@contextlib.contextmanager
def on_first_compilation(tell: Callable[[str], None]) -> Iterator[None]:
    """Pass a line to `tell` before the first kernel that is compiled, not loaded from the cache."""
    with event.install_listener("numba:compile", _FirstCompilation(tell)):
        yield


UNCOMPILABLE: tuple[type[Exception], ...] = (numba.core.errors.NumbaError, TypeError)
"""The errors of a function that numba cannot compile."""


def users_kernel(function: F, *, checks_bounds: bool = False) -> F:
    """Compile a user's function, or one that calls a user's function, like `kernel` but without a cache.

    A cache would be wrong, because numba would not notice a change in a module that the function calls.

    Parameters
    ----------
    function : callable
        The function.
    checks_bounds : bool
        Whether an index outside an array raises `IndexError`.
    """
    compiled: F = numba.njit(nogil=True, error_model="numpy", boundscheck=checks_bounds)(function)
    return compiled


class _LeanCompiler(CompilerBase):  # type: ignore[misc]
    """Compiles functions that use only scalars, loops, branches, array elements, and calls of kernels."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's pipeline without unneeded passes and without a wrapper for C."""
        self.state.flags.no_cfunc_wrapper = True
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [pass_ for pass_ in passes.passes if pass_[0].__name__ not in _NOT_NEEDED]
        passes.finalize()
        return [passes]


def program_kernel(function: F, *, counts_references: bool = True) -> F:
    """Compile the kernel of a program as `kernel` does, without the passes that it does not need.

    Parameters
    ----------
    function : callable
        The kernel.
    counts_references : bool
        Whether the kernel makes objects, whose references are counted. If it does not, calls are quicker.
    """
    options: dict[str, Any] = {} if counts_references else {"_nrt": False}
    compiled: F = numba.njit(
        cache=True, nogil=True, error_model="numpy", pipeline_class=_LeanCompiler, **options
    )(function)
    return compiled


def load_generated(name: str, source: str) -> ModuleType:
    """Load generated kernels from a file beside numba's cache. Numba finds cached code by this file.

    Parameters
    ----------
    name : str
        A name unique to the source: equal sources have equal names.
    source : str
        The text of the module.
    """
    module_name = f"penstock_generated_{name}"
    with _lock:
        if module_name in sys.modules:
            return sys.modules[module_name]
        cache = numba.config.CACHE_DIR
        directory = Path(cache) / "generated" if cache else _PACKAGE / "__pycache__" / "generated"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / f"{name}.py"
        # Do not rewrite an existing file: numba identifies it by its modification time.
        if not path.exists() or path.read_text(encoding="utf-8") != source:
            temporary = directory / f".{name}.{new_id()}"
            temporary.write_text(source, encoding="utf-8")
            replace(path, temporary)
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[module_name] = module
    return module


def load_run(source: str, inlined: bytes = b"") -> Callable[..., int]:
    """Return the function ``run`` of a generated module, whose name depends on `source` and `inlined`."""
    name = hashlib.sha256(source.encode() + inlined).hexdigest()[:32]
    run: Callable[..., int] = load_generated(name, source).run
    return run
