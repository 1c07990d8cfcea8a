"""A YAML file as plain data, with the position of each field."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import yaml

from penstock.conf.variables import substitute_variables
from penstock.errors import InvalidUsageError, redact

__all__ = ["Document", "FieldPath", "PipelineError", "Problem", "describe", "read_document"]

FieldPath: TypeAlias = tuple[str | int, ...]
"""The path of a field: the names of its sections, its own name, and positions in lists."""

Problem: TypeAlias = tuple[FieldPath, str, str | None]
"""A field, its problem, and optionally a hint."""


class PipelineError(InvalidUsageError):
    """A pipeline's configuration is wrong. Its text has one line for each problem.

    Parameters
    ----------
    problems : sequence of str
        One line each: the position, the field, the problem, and a hint.
    """

    names_section = True

    def __init__(self, problems: tuple[str, ...] | list[str]) -> None:
        self.problems = tuple(map(redact, problems))
        super().__init__("\n".join(self.problems))

    def __str__(self) -> str:
        return "\n".join(self.problems)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by arguments, so that the problems arrive."""
        return type(self), (self.problems,)


def describe(place: str, path: FieldPath, fact: str, hint: str | None = None) -> str:
    """Return the line for one problem."""
    where = f"{place}: {'.'.join(map(str, path))}" if path else place
    text = f"{where}: {fact}."
    if hint is None:
        return text
    return f"{text} Hint: {hint}{'' if hint.endswith('?') else '.'}"


@dataclass
class Document:
    """The fields of a YAML file, and the place of each for messages.

    Parameters
    ----------
    name : str
        The name of the file in messages.
    data : dict
        The fields; changed by `set`.
    places : dict
        The position of each field, as ``name:line`` or the text of the override that set it, by the field's
        path.
    problems : list of str
        The problems found so far.
    unset : dict
        The problem of each field whose variable has no value, by the field's path. The field's value is the
        text with the variable.
    """

    name: str
    data: dict[str, Any]
    places: dict[FieldPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unset: dict[FieldPath, str] = field(default_factory=dict)

    def is_unset(self, path: FieldPath) -> bool:
        """Return whether a field, its section or an item of its list is a variable without a value."""
        return any(
            path[: len(at)] == at or (path == at[:-1] and isinstance(at[-1], int)) for at in self.unset
        )

    def place(self, path: FieldPath) -> str:
        """Return the position of a field, or of the nearest section around it."""
        return self.places.get(self.nearest(path), self.name)

    def nearest(self, path: FieldPath) -> FieldPath:
        """Return the path of a field that the document has, or else of the nearest section around it."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def path_of_node(self, name: object) -> FieldPath:
        """Return the field that a node of a pipeline's graph comes from."""
        return self.nearest(tuple(str(name or "").split(".")))

    def value(self, path: FieldPath) -> Any:
        """Return the value of a field; None if the field has no value."""
        value: Any = self.data
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value

    def set(self, override: str, free: frozenset[FieldPath]) -> None:
        """Apply one override, ``section.field=value``, whose value is YAML.

        Parameters
        ----------
        override : str
            The assignment. Missing sections are made.
        free : frozenset of FieldPath
            Sections whose field names may contain dots, such as options. In an override of such a section,
            all text after the section's name is one field name.

        Raises
        ------
        PipelineError
            If the text is not an override, its value is not YAML, or it sets a field within a field that is
            not a section.
        """
        place = f"--set {override}"
        name, equals, text = override.partition("=")
        name = name.strip()
        if not equals or not name:
            raise PipelineError(
                [describe(place, (), "not an override", "write field=value, such as queue.budget=100")]
            )
        parts = tuple(name.split("."))
        for length in range(1, len(parts)):
            if parts[:length] in free:
                parts = (*parts[:length], ".".join(parts[length:]))
                break
        if not all(parts):
            raise PipelineError(
                [describe(place, (), "a name is empty", "write field=value, such as queue.budget=100")]
            )
        try:
            # Put the value on its own line, so that it can be a flow list or a quoted text, but cannot add a
            # second field.
            root = yaml.compose(text, Loader=PlainLoader)
            problems = [] if root is None else list(_substitute(root, place, parts).values())
            value = None if problems else _construct(root, text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            fact = f"the value is not YAML: {getattr(error, 'problem', None) or error}"
            raise PipelineError(
                [describe(place, (), fact, "put the value in quotes if it is text")]
            ) from None
        if problems:
            raise PipelineError(problems)
        section = self.data
        for length, part in enumerate(parts[:-1], start=1):
            if section.get(part) is None:
                section[part] = {}
                self.places.setdefault(parts[:length], place)
            if not isinstance(section[part], dict):
                raise PipelineError(
                    [
                        describe(
                            place,
                            parts[:length],
                            "not a section, so it has no fields of its own",
                            "set the whole field",
                        )
                    ]
                )
            section = section[part]
        section[parts[-1]] = value
        for known in (self.places, self.unset):
            for path in [path for path in known if path[: len(parts)] == parts]:
                del known[path]
        self.places[parts] = place


class PlainLoader(yaml.SafeLoader):
    """Loads the plain types of YAML. Dates are loaded as texts; the fields that need dates parse them."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _construct(node: yaml.Node | None, text: str) -> Any:
    if node is None:
        return None
    loader = PlainLoader(text)
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _substitute(root: yaml.Node, place: str, parent: FieldPath = ()) -> dict[FieldPath, str]:
    """Replace variables by their values; return the problem of each field whose variable has no value.

    A scalar without quotes gets the type of the variable's value, as if the value were written in the file. A
    quoted scalar stays text.
    """
    problems: dict[FieldPath, str] = {}
    waiting: list[tuple[FieldPath, yaml.Node]] = [(parent, root)]
    while waiting:
        path, node = waiting.pop()
        waiting += reversed([(child, value) for child, _, value in _children(node, path)])
        if not isinstance(node, yaml.ScalarNode) or "${" not in node.value:
            continue
        try:
            node.value = substitute_variables(node.value)
        except InvalidUsageError as error:
            line = place if place.startswith("--set ") else f"{place}:{node.start_mark.line + 1}"
            problems[path] = describe(line, path, error.fact, error.hint)
            continue
        if node.style is None:
            resolver: Any = PlainLoader("")  # its methods have no types
            node.tag = resolver.resolve(yaml.ScalarNode, node.value, (True, False))
    return problems


def _children(node: yaml.Node, path: FieldPath) -> Iterator[tuple[FieldPath, yaml.Node, yaml.Node]]:
    """Yield, for each child of a node, its path, the node to show in errors, and its value's node.

    Errors show the position of a mapping's key, or of a list's item.
    """
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, str(key.value) if isinstance(key, yaml.ScalarNode) else "?"), key, value
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            yield (*path, position), value, value


_YAML_HINTS: Final = {
    "'\\t'": "indent with spaces, not with tabs",
    "expected <block end>": "indent all fields of a section by the same number of spaces",
    "mapping values are not allowed": "indent all fields of a section alike, and quote values with ': '",
}
"""Hints for the user, by parts of YAML's messages."""
_BY_VALUE: Final = {("weight",)}
"""Fields whose mapping has data values as keys, not field names."""


def _walk(name: str, root: yaml.Node) -> tuple[dict[FieldPath, str], list[str]]:
    """Return the position of every field, and the structural problems of the file."""
    places: dict[FieldPath, str] = {}
    lines: dict[FieldPath, int] = {}
    problems: list[tuple[int, str]] = []
    seen: set[Hashable] = {id(root)}
    waiting: list[tuple[FieldPath, yaml.Node]] = [((), root)]
    while waiting:
        parent, node = waiting.pop()
        for path, mark, value in _children(node, parent):
            line = mark.start_mark.line + 1
            place = f"{name}:{line}"
            is_field = isinstance(node, yaml.MappingNode) and parent[-1:] not in _BY_VALUE
            if is_field and mark.tag != "tag:yaml.org,2002:str":
                fact, hint = "the name of a field is not text", "put it in quotes"
            elif path in places:
                fact, hint = f"written twice, first in line {lines[path]}", "keep one"
            elif id(value) in seen:
                fact, hint = "an alias of another field", "write the value out"
            else:
                places[path] = place
                lines[path] = line
                seen.add(id(value))
                waiting.append((path, value))
                continue
            problems.append((line, describe(place, path, fact, hint)))
    in_order = dict(sorted(places.items(), key=lambda item: lines[item[0]]))
    return in_order, [text for _, text in sorted(problems)]


def read_document(text: str, name: str) -> Document:
    """Read a YAML file's text.

    Parameters
    ----------
    text : str
        The whole file.
    name : str
        The name of the file in messages.

    Raises
    ------
    PipelineError
        If the text is not YAML, is empty, is not a mapping, or has a field twice, an alias, or a field whose
        name is not text. A variable without a value is no error here; see `Document.unset`.
    """
    try:
        root = yaml.compose(text, Loader=PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = name if mark is None else f"{name}:{mark.line + 1}"
        fact = f"not YAML: {error.problem or error.context}"
        hints = (hint for mark, hint in _YAML_HINTS.items() if mark in fact)
        raise PipelineError([describe(place, (), fact, next(hints, None))]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise PipelineError(
            [describe(f"{name}:{line}", (), "not YAML: a character that is not text")]
        ) from None
    except RecursionError:
        raise PipelineError([describe(name, (), "nested too deeply")]) from None
    if root is None:
        raise PipelineError([describe(name, (), "the file is empty")])
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        raise PipelineError(
            [
                describe(
                    f"{name}:{line}",
                    (),
                    "not a pipeline",
                    "a pipeline has the sections source, queue and sink",
                )
            ]
        )
    places, problems = _walk(name, root)
    if problems:
        raise PipelineError(problems)
    unset = _substitute(root, name)
    try:
        data = _construct(root, text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = name if mark is None else f"{name}:{mark.line + 1}"
        raise PipelineError([describe(place, (), f"not YAML: {error.problem}")]) from None
    except ValueError as error:
        raise PipelineError([describe(name, (), f"not YAML: {error}")]) from None
    return Document(name, data, places, unset=unset)
