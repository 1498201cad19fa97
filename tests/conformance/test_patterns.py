"""Regular expressions take time in proportion to the text: every pattern of the packages is tried."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import yaml
from pattern_growth import Program, attacks, growth

from tokenwire.checks.reading.channels import _every_marker
from tokenwire.spec_files import spec_root

PACKAGES = sorted(
    found.name for found in iter_modules() if found.ispkg and found.name.startswith("tokenwire")
)
CALLS = frozenset({"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"})
LIBRARIES = ("re", "regex")
AT_THE_BEGINNING = frozenset({"match", "fullmatch"})


@dataclass(frozen=True)
class Found:
    """A pattern in the source."""

    place: str
    pattern: re.Pattern[Any] | None
    """None for one that is made at run time."""
    methods: frozenset[str]


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            for file in sorted(Path(folder).rglob("*.py")):
                parts = file.relative_to(folder).with_suffix("").parts
                yield ".".join((package, *parts)).removesuffix(".__init__"), file


def _is_renamed(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and any(
        alias.name in LIBRARIES and alias.asname for alias in node.names
    )


def _is_of_re(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in CALLS
    )


def _constant(call: ast.Call) -> re.Pattern[Any] | None:
    """Return the pattern of a call that holds it as a constant."""
    try:
        pattern = ast.literal_eval(call.args[0])
    except ValueError:
        return None
    position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)  # type: ignore[attr-defined]
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"] or call.args[position:]
    value = eval(ast.unparse(flags[0]), {"re": re}) if flags else 0  # our own source
    return re.compile(pattern, value)


def _uses(tree: ast.AST, name: str) -> frozenset[str]:
    """Return the methods that are called on a name, `search` where it is passed on."""
    used: set[str] = set()
    called = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            used.add(node.attr)
        elif (
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
            and id(node) not in called
        ):
            used.add("search")
    return frozenset(used)


@cache
def patterns() -> tuple[Found, ...]:
    """Return every pattern of the packages."""
    return tuple(found for module, file in _files() for found in _patterns_in(module, file))


def _patterns_in(module: str, file: Path) -> Iterator[Found]:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        names = [
            alias.asname or alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)
        ]
        of_module = getattr(node, "module", "") if isinstance(node, ast.ImportFrom) else ""
        hidden = of_module in LIBRARIES or "regex" in names or _is_renamed(node)
        assert not hidden, f"{module}: write `import re` and `re.compile(…)`, so that its patterns are found"
    named: dict[int, str] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None and _is_of_re(value):
            named[id(value)] = target.id

    def within(node: ast.AST, function: str) -> Iterator[Found]:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = f"{function}.{child.name}".lstrip(".") if is_function else function
            if _is_of_re(child):
                assert isinstance(child, ast.Call)
                assert isinstance(child.func, ast.Attribute)
                name = named.get(id(child), "")
                pattern = _constant(child)
                if pattern is None and name:
                    pattern = getattr(import_module(module), name)
                methods = _uses(tree, name) if name.startswith("_") else frozenset({"search"})
                if not name:
                    methods = frozenset({child.func.attr} - {"compile"} or {"search"})
                place = f"{module}:{name or function}"
                yield Found(place, pattern, methods or frozenset({"search"}))
            yield from within(child, inner)

    yield from within(tree, "")


def _of_calls() -> list[str]:
    forms = yaml.safe_load((spec_root() / "markup.yaml").read_text())["calls"]
    return [form["begins"] for form in forms.values() if "begins" in form]


def _of_policies() -> list[str]:
    tables = [yaml.safe_load(file.read_text()) for file in (spec_root() / "dialects").glob("*.yaml")]
    told = {table.get("policy", {}).get("vocabulary_told") for table in tables}
    return [words for words in told if words]


ESCAPED = re.escape("a b.c")
"""Stands for a text that is escaped before it becomes a part of a pattern."""
OF_A_REQUEST: tuple[str, ...] = ()
"""The pattern is a request's own: the judge's clock bounds it, as it bounds everything else."""
MADE_AT_RUN_TIME: Mapping[str, Callable[[], Sequence[str]]] = {
    "tokenwire.checks.reading.channels:_every_marker": lambda: [p.pattern for p in _every_marker()],
    "tokenwire.checks.reading.legal_text:compiled": lambda: OF_A_REQUEST,
    "tokenwire.checks.refusals:_names": lambda: [
        rf"(?i:(?<!\w){ESCAPED}s?(?!\w))",
        rf"(?<![\w.-]){ESCAPED}(?!\w)",
    ],
    "tokenwire.checks.text:": lambda: [ESCAPED],
    "tokenwire.constraint:_Tags.__init__": lambda: [f"{ESCAPED}|{ESCAPED}x"],
    "tokenwire.dialects.dialect:vocabulary_told": _of_policies,
    "tokenwire.dialects.markup:_first_call": _of_calls,
    "tokenwire.dialects.policy:Policy.__post_init__": _of_policies,
    "tokenwire.parrot.encoding:encoder": lambda: [f"({ESCAPED}|{ESCAPED}x)"],
    "tokenwire.parrot.script:_compiled": lambda: OF_A_REQUEST,
    "tokenwire_twin.causes:_names": lambda: [rf"(?<![\w.-]){ESCAPED}(?!\w|\.\d)"],
}
"""Examples of the patterns that are made at run time, by the function that makes them."""
SHARES = 6
"""Tests that the patterns are shared out to."""


def is_scanned(found: Found) -> bool:
    """Return True if a pattern is searched for all over a text."""
    return not found.methods <= AT_THE_BEGINNING


def test_patterns_are_found() -> None:
    assert {"tokenwire", "tokenwire_reference", "tokenwire_faults"} <= {*PACKAGES}
    places = {found.place for found in patterns()}
    assert places >= {
        "tokenwire.wire.strict_json:_STRING_OR_BRACKET",
        "tokenwire.dialects.markup:_END_OF_PARAMETER",
        "tokenwire_reference.doors.info:_KEYS",
    }
    by_place = {found.place: found for found in patterns()}
    assert not is_scanned(by_place["tokenwire.dialects.markup:_PARAMETER"])
    assert is_scanned(by_place["tokenwire.dialects.markup:_END_OF_PARAMETER"])


@pytest.mark.parametrize("share", range(SHARES))
def test_patterns_grow_as_their_text(share: int) -> None:
    grown = {
        found.place: shown
        for found in patterns()[share::SHARES]
        if found.pattern is not None and (shown := growth(found.pattern, scan=is_scanned(found)))
    }
    assert grown == {}


def test_patterns_that_are_made_at_run_time_grow_as_their_text() -> None:
    made = {found.place for found in patterns() if found.pattern is None}
    assert made == MADE_AT_RUN_TIME.keys(), "give an example of each such pattern in MADE_AT_RUN_TIME"
    grown = {
        f"{place}: {pattern}": shown
        for place, examples in MADE_AT_RUN_TIME.items()
        for pattern in examples()
        if (shown := growth(re.compile(pattern)))
    }
    assert grown == {}


def _of_schemas(schema: object) -> Iterator[str]:
    """Yield the patterns of a schema, wherever they are."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        of_names = schema.get("patternProperties")
        yield from of_names if isinstance(of_names, dict) else ()
        for value in schema.values():
            yield from _of_schemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _of_schemas(value)


def test_patterns_of_schemas_grow_as_their_text() -> None:
    read = [json.loads(file.read_text()) for file in (spec_root() / "schemas").glob("*.json")]
    known = {pattern for schema in read for pattern in _of_schemas(schema)}
    assert known
    assert {pattern: shown for pattern in known if (shown := growth(re.compile(pattern)))} == {}


OLD = {
    "a string that is never closed": r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]',
    "a member that is never closed": r'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:\s*")([^"\\]*(?:\\.[^"\\]*)*)',
    "a call that is cut": (
        r"\s*<function=([^>\s]+)>\s*((?:<parameter=[^>\s]+>.*?</parameter>\s*)*)</function>"
    ),
    "quotes": r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"",
    "a word without digits": r"[\w.+-]*\d[\w.+-]*(?<![.+-])",
    "possessive, and yet tried at every quote": r'"[^"\\]*+(?:\\.[^"\\]*+)*+"',
    "two repeats side by side": r"\s*\s*x",
    "a repeat of a repeat": r"(?:a+)+b",
    "blanks at an end": r"\s+$",
    "a bounded prefix": r"a{1,3}.*b",
    "two ways": r"(?:a|aa)*c",
}


@pytest.mark.parametrize("pattern", OLD.values(), ids=OLD)
def test_a_pattern_that_grows_faster_is_shown(pattern: str) -> None:
    assert growth(re.compile(pattern, re.DOTALL))


@pytest.mark.parametrize(
    "pattern",
    [r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', r"[\w.+-]++", r"a+", r"<[^<>]*>", r"(?<![a-z])[a-z]+\d", r"x{0,40}y"],
)
def test_a_pattern_that_grows_as_its_text_is_not_shown(pattern: str) -> None:
    assert growth(re.compile(pattern)) == ""


def test_counted_searches_find_what_python_finds() -> None:
    different = []
    for found in patterns():
        if found.pattern is None:
            continue
        program = Program(found.pattern)
        for prefix, pump, suffix in islice(attacks(program), 0, None, 9):
            text = prefix + pump * 3 + suffix
            given = text.encode("latin-1", "replace") if isinstance(found.pattern.pattern, bytes) else text
            spans = [match.span() for match in found.pattern.finditer(given)]
            if program.spans(given)[0] != spans:
                different.append((found.place, text))
    assert different == []
