"""The names on the wire in the sources of a release. The sources are read and not imported.

Fields and values come from classes with annotated attributes (pydantic, msgspec, TypedDict, dataclasses),
from functional TypedDicts and from aliases of literals. Endpoints come from route decorators and from calls
of `add_api_route`.
"""

from __future__ import annotations

import ast
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
"""Fields whose values are read. Each new type of event or item and each new finish reason is a value of one
of these fields.
"""


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
            patterns = (*read.get("routes", ()), *read["modules"])
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
    for path, source in sorted(release.sources.items()):
        tree = ast.parse(source, path)
        for pattern in read.get("routes", ()):
            if fnmatchcase(path, pattern):
                for route in _routes(tree):
                    yield pattern, Name(release.package, "endpoint", route), path
        module = next((pattern for pattern in read["modules"] if fnmatchcase(path, pattern)), None)
        types = _types(tree) if module else {}
        if module is None or not types:
            continue
        classes = read["modules"][module]
        if not classes:
            count = f"{len(types)} types, such as {next(iter(types))}"
            yield module, Name(release.package, "module", path), count
            continue
        for type_name, members in types.items():
            matching = [name for name in classes if fnmatchcase(type_name, name)]
            if not matching:
                yield module, Name(release.package, "type", type_name), path
            for matched in matching:
                for dialect in classes[matched]:
                    for kind, name in members:
                        yield f"{module}: {matched}", Name(dialect, kind, name), f"{path}: {type_name}"


def without_names(read: Mapping[str, Any], used: set[str]) -> list[str]:
    """Return the patterns of a package that match no name."""
    wanted = list(read.get("routes", ()))
    for pattern, classes in read["modules"].items():
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


def _types(tree: ast.Module) -> dict[str, list[tuple[str, str]]]:
    """Return the fields and the values of each class, functional TypedDict and alias. Types without fields
    and values are left out.
    """
    types: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    types[node.name] += _of_field(item.target.id, item)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            types[name] += _of_alias(name, node.value)
    return {name: members for name, members in types.items() if members}


def _of_alias(name: str, value: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield the fields of a functional TypedDict, or the values of an alias such as `StopReason`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("TypedDict"):
        for fields in value.args[1:]:
            for key in fields.keys if isinstance(fields, ast.Dict) else ():
                if isinstance(key, ast.Constant):
                    yield "field", str(key.value)
    else:
        yield from _values(re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), value)


def _of_field(name: str, node: ast.AnnAssign) -> Iterator[tuple[str, str]]:
    """Yield the name of a field on the wire, and its values if the field is in `VALUED`."""
    if name.startswith("_") or name == "model_config" or "ClassVar" in ast.unparse(node.annotation):
        return
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg in OTHER_NAMES and isinstance(part.value, ast.Constant):
            name = str(part.value.value)
    yield "field", name
    yield from _values(name, node.annotation)


def _values(name: str, node: ast.expr) -> Iterator[tuple[str, str]]:
    for part in ast.walk(node) if name in VALUED else ():
        if isinstance(part, ast.Subscript) and ast.unparse(part.value).endswith("Literal"):
            for value in ast.walk(part.slice):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield "value", f"{name}={value.value}"
