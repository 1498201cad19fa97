"""The names on the wire in the sources of a release. The sources are read and not imported.

Fields, their values and their defaults come from classes with annotated attributes (pydantic, msgspec,
TypedDict, dataclasses), from functional TypedDicts and from aliases of literals. Types and finish reasons
also come from constants and from dictionaries that a method returns. Endpoints come from route decorators and
from calls of `add_api_route`.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zipfile import Path as ZipPath

VERBS = {"api_route", "delete", "get", "head", "patch", "post", "put", "websocket"}
ROUTER = re.compile(r"(\w*_)?(app|router)")
OTHER_NAMES = {"alias", "name", "serialization_alias", "validation_alias"}
"""Keywords for the name of a field on the wire."""
VALUED = ("type", "stop_reason", "finish_reason")
"""Fields whose values are also read outside annotations. Each new type of event or item and each new finish
reason is a value of one of these fields.
"""
BASES = {"BaseModel", "Enum", "Generic", "IntEnum", "NamedTuple", "Protocol", "Struct", "TypedDict"}
"""Classes of libraries from which types inherit no field."""
REQUEST = re.compile(r"\w*(Request|ReqInput|SamplingParams)")
"""Classes whose fields have the defaults of a request."""


@dataclass(frozen=True, order=True)
class Name:
    """A name in a release. Its place is a dialect, or the package if the name does not belong to
    a dialect.
    """

    place: str
    kind: str
    name: str


@dataclass(frozen=True)
class Release:
    """The version of a package, and its sources by path."""

    package: str
    version: str
    sources: Mapping[str, str]


def releases(path: Path, packages: Mapping[str, Any]) -> Iterator[Release]:
    """Yield the known packages in a wheel or in a folder."""
    root = path if path.is_dir() else ZipPath(path)
    infos = [entry.name for entry in root.iterdir() if entry.name.endswith(".dist-info")]
    for package, read in packages.items():
        if (root / package).is_dir():
            patterns = (*read.get("routes", ()), *read["modules"], *read.get("inside", ()))
            sources = {
                name: file.read_text("utf-8")
                for name, file in _files(root / package, package)
                if any(fnmatchcase(name, pattern) for pattern in patterns)
            }
            info = next((info for info in infos if info.startswith(f"{package}-")), f"{package}-?")
            yield Release(package, info.removesuffix(".dist-info").partition("-")[2], sources)


def _files(folder: Path | ZipPath, name: str) -> Iterator[tuple[str, Path | ZipPath]]:
    """Yield each file in a folder with its path."""
    for entry in folder.iterdir():
        path = f"{name}/{entry.name}"
        if entry.is_dir():
            yield from _files(entry, path)
        else:
            yield path, entry


def names_of(release: Release, read: Mapping[str, Any]) -> Iterator[tuple[str, Name, str]]:
    """Yield each name of a release, with the pattern of `newest.yaml` that matches it and with its place in
    the sources.
    """
    trees = {path: ast.parse(source, path) for path, source in sorted(release.sources.items())}
    aliases = {name: value for tree in trees.values() for name, value in _assigned(tree)}
    bases = {path: _bases(tree) for path, tree in trees.items()}
    defined = {*BASES, *aliases, *(name for classes in bases.values() for name in classes)}
    for path, tree in trees.items():
        for pattern in read.get("routes", ()):
            if fnmatchcase(path, pattern):
                for route in _routes(tree):
                    yield pattern, Name(release.package, "endpoint", route), path
        tables = {**read.get("inside", {}), **read["modules"]}
        module = next((pattern for pattern in tables if fnmatchcase(path, pattern)), None)
        types = _types(tree, aliases) if module else {}
        if module is None or not types:
            continue
        classes = tables[module]
        if not classes:
            count = f"{len(types)} types, such as {next(iter(types))}"
            yield module, Name(release.package, "module", path), count
            continue
        for type_name, members in types.items():
            matching = [name for name in classes if fnmatchcase(type_name, name)]
            if not matching and module in read["modules"]:
                yield module, Name(release.package, "type", type_name), path
            if matching:
                for base in sorted(bases[path].get(type_name, set()) - defined):
                    yield (
                        f"{module}: {matching[0]}",
                        Name(release.package, "base", base),
                        f"{path}: {type_name}",
                    )
            for matched in matching:
                for dialect in classes[matched]:
                    for kind, name in members:
                        yield f"{module}: {matched}", Name(dialect, kind, name), f"{path}: {type_name}"


def without_names(read: Mapping[str, Any], used: set[str]) -> list[str]:
    """Return the patterns of a package that match no name."""
    wanted = list(read.get("routes", ()))
    for pattern, classes in (*read["modules"].items(), *read.get("inside", {}).items()):
        wanted += [f"{pattern}: {name}" for name in classes] or [pattern]
    return [pattern for pattern in wanted if pattern not in used]


def _routes(tree: ast.Module) -> Iterator[str]:
    """Yield the paths of route decorators and of calls of `add_api_route`."""
    for node in ast.walk(tree):
        decorators = getattr(node, "decorator_list", ())
        calls = [item for item in decorators if isinstance(item, ast.Call)]
        known = VERBS
        if isinstance(node, ast.Call):
            calls, known = [node], {"add_api_route", "add_api_websocket_route"}
        for call in calls:
            function = call.func
            if isinstance(function, ast.Attribute) and function.attr in known:
                given = [*call.args, *(item.value for item in call.keywords if item.arg == "path")]
                if given and ROUTER.fullmatch(ast.unparse(function.value).rpartition(".")[2]):
                    yield _path(given[0])


def _path(node: ast.expr) -> str:
    """Return a constant path, the default of a path that an environment variable sets, or else the
    expression.
    """
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
        node = [*node.args, node][1]
    if isinstance(node, ast.Constant):
        return str(node.value)
    return f"{{{ast.unparse(node)}}}"


def _bases(tree: ast.Module) -> dict[str, set[str]]:
    """Return the names of the bases of each class."""
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            named = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
            bases[node.name] |= {ast.unparse(base).rpartition(".")[2] for base in named}
    return bases


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a module assigns, such as aliases of types, with their values."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            yield ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target), node.value


def _types(tree: ast.Module, aliases: Mapping[str, ast.expr]) -> dict[str, list[tuple[str, str]]]:
    """Return the fields, the values and the defaults of each class, functional TypedDict and alias. Types
    without any are left out.
    """
    types: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    request = REQUEST.fullmatch(node.name) is not None
                    types[node.name] += _of_field(item.target.id, item, aliases, request=request)
            types[node.name] += _returned(node)
    for name, value in _assigned(tree):
        types[name] += _of_alias(name, value)
    return {name: members for name, members in types.items() if members}


def _of_alias(name: str, value: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield the fields of a functional TypedDict, or the values of a constant such as `StopReason`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("TypedDict"):
        for fields in value.args[1:]:
            for key in fields.keys if isinstance(fields, ast.Dict) else ():
                if isinstance(key, ast.Constant):
                    yield "field", str(key.value)
        return
    snake = name.lower() if name.isupper() else re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    for field in VALUED:
        if snake == field or (field != "type" and snake.startswith(field)):
            entries = value.elts if isinstance(value, ast.Tuple | ast.List | ast.Set) else ()
            words = [*_literals(value, {}), *(word for entry in entries for word in _strings(entry))]
            yield from (("value", f"{field}={word}") for word in words)


def _returned(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the values in dictionaries that the methods of a class return."""
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Dict):
            for key, value in zip(part.value.keys, part.value.values, strict=True):
                for field in _strings(key) if key else ():
                    yield from (("value", f"{field}={word}") for word in _strings(value) if field in VALUED)


def _of_field(
    name: str, node: ast.AnnAssign, aliases: Mapping[str, ast.expr], *, request: bool
) -> Iterator[tuple[str, str]]:
    """Yield the name of a field on the wire, its values, and its default if it belongs to a request."""
    if name.startswith("_") or name == "model_config" or "ClassVar" in ast.unparse(node.annotation):
        return
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg in OTHER_NAMES and isinstance(part.value, ast.Constant):
            name = str(part.value.value)
    yield "field", name
    for value in _literals(node.annotation, aliases):
        yield "value", f"{name}={value}"
    if request:
        yield "default", f"{name}={json.dumps(_default(node.value), default=str)}"


def _literals(node: ast.expr, aliases: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the strings of literals in an annotation, and in the aliases that it names."""
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and ast.unparse(part.value).endswith("Literal"):
            for value in ast.walk(part.slice):
                yield from _strings(value)
        elif isinstance(part, ast.Name) and part.id in aliases:
            rest = {name: value for name, value in aliases.items() if name != part.id}
            yield from _literals(aliases[part.id], rest)


def _strings(node: ast.AST) -> Iterator[str]:
    """Yield the value of a node that is a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _default(node: ast.expr | None) -> Any:
    """Return the default of a field, or None if it is empty, required, or computed for each request."""
    if isinstance(node, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        node = keywords.get("default", node.args[0] if node.args else None)
    try:
        value = None if node is None else ast.literal_eval(node)
    except (TypeError, ValueError):
        return None
    return None if value in ([], {}, ...) else value
