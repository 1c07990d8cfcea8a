"""Read the text of a procedure: its syntax tree, its constants, and its position for errors."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import InvalidUsageError
from penstock.procedures import language
from penstock.procedures.schema import Kind, conversion_hint

__all__ = ["ProcedureText", "all_texts", "procedure_text", "read"]

_IGNORED_FIELDS = ("ctx", "kind", "type_comment", "type_params")
"""Fields of syntax trees that have no meaning, or that only some versions of Python have."""

_SUBSET = "docs/concepts/transactions.md lists what it may have; plain=True runs any Python"

_FUNCTIONS = (
    "it has abs, min, max, int, float, len of a list, and table.get and table.insert; other procedures are "
    "called by a statement of their own"
)

_OF_TABLES = ("by", "get", "insert")

_CONSTRUCTS = {
    "While": ("while loop, which may not end", "use for ... in range(...), and break"),
    "Raise": ("raise", 'abort("why") undoes the transaction and rejects it'),
    "Try": ("try", "test first: key in table, table.get(key) is None"),
    "TryStar": ("try", "test first: key in table, table.get(key) is None"),
    "With": ("with", _SUBSET),
    "Assert": ("assert", 'write if not condition: abort("why")'),
    "Import": (
        "import",
        "import outside of it: it may use globals that are numbers, texts, bytes or booleans",
    ),
    "ImportFrom": (
        "import",
        "import outside of it: it may use globals that are numbers, texts, bytes or booleans",
    ),
    "FunctionDef": ("function inside it", "define a procedure, and call it"),
    "AsyncFunctionDef": ("function inside it", "define a procedure, and call it"),
    "ClassDef": ("class", _SUBSET),
    "Lambda": ("lambda", "define a procedure, and call it"),
    "Match": ("match", "use if and elif"),
    "NamedExpr": (":=", "assign the variable in a statement of its own"),
    "AnnAssign": ("annotated variable", "leave out the annotation"),
    "JoinedStr": (
        "f-string",
        "texts are compared and copied, not made; make it in the input or in the output",
    ),
    "ListComp": ("list comprehension", "use a for loop"),
    "SetComp": ("set comprehension", "use a for loop, and s.add(x)"),
    "DictComp": ("dict comprehension", "keep the values in a table"),
    "GeneratorExp": ("generator expression", "use a for loop"),
    "List": ("list", "compare several values by == and or; an attribute of the event may be an array"),
    "Dict": ("dict", "keep the values in a table"),
    "Set": ("set with elements", "write s = set() and s.add(x)"),
    "Pow": ("**", "multiply"),
    "MatMult": ("@", _SUBSET),
    "LShift": ("<<", "multiply by a power of two"),
    "RShift": (">>", "use // with a power of two"),
    "Invert": ("~", "write -x - 1"),
    "UAdd": ("+ in front of a value", "leave it out"),
}
"""The names of unsupported constructs, and what to write in their place."""


@dataclass(frozen=True)
class ProcedureText:
    """A procedure as its author wrote it.

    Parameters
    ----------
    name : str
        The name of the procedure.
    tree : ast.FunctionDef
        The syntax tree of the definition, without decorators and docstring.
    file : str
        The file that defines the procedure.
    line, column : int
        The number of lines before the procedure in the file, and its indentation.
    names : mapping
        The values of the names that the procedure does not define itself.
    route : tuple of ast.expr
        The expressions of `route`, over the event.
    """

    name: str
    tree: ast.FunctionDef
    file: str
    line: int
    column: int
    names: Mapping[str, Any]
    route: tuple[ast.expr, ...] = ()

    def with_route(self, route: str | Iterable[str]) -> ProcedureText:
        """Return the text with a route.

        Raises
        ------
        InvalidUsageError
            If the route is not an expression.
        """
        texts = [route] if isinstance(route, str) else list(route)
        nodes = []
        for one in texts:
            try:
                nodes.append(ast.parse(one, mode="eval").body)
            except (SyntaxError, TypeError, ValueError):
                raise self.wrong(
                    self.tree, "a route is not an expression", f'write route="{self.event}.name"'
                ) from None
        for node in nodes:
            for part in ast.walk(node):  # errors name the procedure's position, because the route has none
                ast.copy_location(part, self.tree)
        return replace(self, route=tuple(nodes))

    @property
    def event(self) -> str:
        """The name of the first parameter."""
        return self.tree.args.args[0].arg

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that the procedure takes."""
        return tuple(arg.arg for arg in self.tree.args.args[1:])

    @property
    def canonical(self) -> str:
        """The text without comments and layout."""
        return ast.unparse(self.tree)

    @property
    def normal(self) -> Any:
        """The tree as JSON values for digests; they do not depend on the version of Python."""
        return _normal(self.tree)

    @property
    def normal_route(self) -> Any:
        """The route for digests."""
        return _normal(list(self.route))

    def is_word(self, node: ast.AST, word: Callable[..., Any]) -> bool:
        """Return whether an expression is the name of a function of `penstock.procedures.language`."""
        return isinstance(node, ast.Name) and self.names.get(node.id) is word

    def wrong(self, node: ast.AST, fact: str, hint: str) -> InvalidUsageError:
        """Return the error for a part of the text."""
        return InvalidUsageError(
            fact,
            procedure=self.name,
            file=self.file,
            line=self.line + getattr(node, "lineno", 1),
            column=self.column + getattr(node, "col_offset", 0) + 1,
            hint=hint,
        )

    def misfit(self, node: ast.AST, owner: str, wanted: Kind, kind: Kind) -> InvalidUsageError:
        """Return the error for a value of kind `kind`, while `owner` needs a value of kind `wanted`."""
        return self.wrong(node, f"{owner} is {wanted}, the value is {kind}", conversion_hint(kind, wanted))

    def refuse_construct(self, node: ast.AST, construct: ast.AST | None = None) -> InvalidUsageError:
        """Return the error for an unsupported construct; the error has the position of `node`."""
        kind = type(construct or node).__name__
        name, hint = _CONSTRUCTS.get(kind, (kind.lower(), _SUBSET))
        return self.wrong(node, f"a procedure has no {name}", hint)

    def refuse_call(self, call: ast.Call) -> InvalidUsageError:
        """Return the error for a call that procedures cannot make."""
        name = ast.unparse(call.func)
        fact, hint = f"a procedure cannot call {name} here", _FUNCTIONS
        if inspect.isfunction(self.names.get(name)):
            fact, hint = f"{name} is not a procedure", f"put @database.procedure before def {name}"
        elif isinstance(call.func, ast.Attribute):
            word, owner = call.func.attr, call.func.value
            if word in language.__all__:
                hint = f"write {word}(...), after from penstock import {word}"
            elif isinstance(owner, ast.Name) and owner.id in self.tables and word not in _OF_TABLES:
                fact = f"{owner.id} has no {word} here"
                hint = "rows have row.column = value, and tables have insert, get, by and del table[key]"
        return self.wrong(call, fact, hint)


def _normal(node: Any) -> Any:
    if isinstance(node, ast.Constant):
        return [type(node.value).__name__, repr(node.value)]
    if isinstance(node, list):
        return [_normal(element) for element in node]
    if not isinstance(node, ast.AST):
        return node
    fields = {name: _normal(value) for name, value in ast.iter_fields(node) if name not in _IGNORED_FIELDS}
    return [type(node).__name__, {name: value for name, value in fields.items() if value not in (None, [])}]


def read(function: Callable[..., Any]) -> ProcedureText:
    """Read the text of a function.

    Raises
    ------
    InvalidUsageError
        If the text cannot be read, or the parameters are not an event and tables.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "?"
    except (OSError, TypeError) as error:
        raise InvalidUsageError(
            "a procedure's text cannot be read",
            procedure=getattr(function, "__name__", repr(function)),
            hint="define it with def, in a file or a notebook; the prompt of Python 3.11 and 3.12 keeps no "
            "source",
        ) from error
    source = "".join(lines)
    column = len(lines[0]) - len(lines[0].lstrip())
    try:
        tree = ast.parse(textwrap.dedent(source)).body[0]
    except SyntaxError:
        tree = ast.Pass()
    if not isinstance(tree, ast.FunctionDef):
        raise InvalidUsageError(
            "a procedure must be a function with a name", file=file, line=first, hint="define it with def"
        )
    tree.decorator_list = []
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:] or [ast.Pass(lineno=tree.lineno, col_offset=tree.col_offset)]
    tree.returns = None
    for arg in tree.args.args:
        arg.annotation = None
    closure = inspect.getclosurevars(function)
    words: dict[str, Any] = {name: getattr(language, name) for name in language.__all__}
    text = ProcedureText(
        tree.name, tree, file, first - 1, column, words | dict(closure.globals) | dict(closure.nonlocals)
    )
    arguments = tree.args
    if (
        not arguments.args
        or arguments.vararg
        or arguments.kwarg
        or arguments.kwonlyargs
        or arguments.posonlyargs
        or arguments.defaults
    ):
        raise text.wrong(
            tree, "a procedure takes an event and tables", "write def name(e, first_table, second_table):"
        )
    return text


def procedure_text(value: object) -> ProcedureText | None:
    """Return the text of a procedure; None for other values."""
    text = getattr(value, "text", None)
    return text if isinstance(text, ProcedureText) else None


def all_texts(text: ProcedureText) -> list[ProcedureText]:
    """Return the texts of a procedure and of all that it calls."""
    texts = [text]
    for callee in texts:
        for node in ast.walk(callee.tree):
            callee_text = procedure_text(callee.names.get(node.id)) if isinstance(node, ast.Name) else None
            if callee_text is not None and callee_text not in texts:
                texts.append(callee_text)
    return texts
