"""Markup: the formats in which models write reasoning and tool calls within a text. A server's parsers
extract them.

The formats are data (`spec/markup.yaml`). If the format does not define how a text must be parsed, the result
is marked as disputed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tokenwire.spec_files import read_yaml, spec_root

BEHIND = "text follows a tool call"
"""The reason of a dispute in which the calls themselves are certain."""

_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_SPACE = re.compile(r"\s*+")
_OPENED = re.compile(r"<function=([^<>\s]++)>\s*+")
_PARAMETER = re.compile(r"<parameter=([^>\s]++)>")
_END_OF_PARAMETER = re.compile(r"</parameter>\s*+(?=<parameter=|</function>)")
_FUNCTION_END = "</function>"
_PYTHON_TEXT_OR_BRACKET = re.compile(
    r"""'[^'\\]*+(?:\\.[^'\\]*+)*+'?|"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]]""", re.S
)
"""Matches a Python string or a bracket.

An unclosed string extends to the end of the text, so that its list has no end.
"""
_MOST_PYTHON = 1 << 16
"""The longest list of calls that is parsed as Python, in characters.

Python's parser needs stack for nested text.
"""
_UNREADABLE = (ValueError, RecursionError)
"""The exceptions that Python's JSON parser raises. RecursionError means that a text is nested too deep."""


@dataclass(frozen=True)
class Thoughts:
    """The markers before and after reasoning."""

    opens: str
    closes: str


@dataclass(frozen=True)
class Form:
    """A format of tool calls."""

    name: str
    holds: str
    """The syntax of a call: `json`, `parameters` (tags) or `python`."""
    opens: str = ""
    closes: str = ""
    begins: str = ""
    """A regular expression for the beginning of a call, for formats without an opening marker."""
    optional: str = ""
    """A marker that may precede a call, for formats without an opening marker."""
    arguments: str = ""
    """The key of the arguments in the JSON object of a call."""
    writes: str = ""
    parameter: str = ""
    between: str = ""

    def spelled(self, *calls: tuple[str, Mapping[str, Any]]) -> str:
        """Return calls as a model writes them. Each call is a name and its arguments."""

        def written(name: str, arguments: Mapping[str, Any]) -> str:
            reported = {
                key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for key, value in arguments.items()
            }
            parameters = (
                self.parameter.replace("KEY", key).replace("VALUE", value) for key, value in reported.items()
            )
            stated = self.writes.replace("NAME", name).replace("PARAMETERS", "".join(parameters))
            return stated.replace("ARGUMENTS", json.dumps(arguments, ensure_ascii=False))

        if self.holds == "python":
            named = (f"{n}({', '.join(f'{key}={value!r}' for key, value in a.items())})" for n, a in calls)
            return f"[{', '.join(named)}]"
        return self.between.join(written(*call) for call in calls)


@dataclass(frozen=True)
class Markup:
    """The formats that a target's parsers extract; None for a parser that was not observed."""

    thoughts: Thoughts | None = None
    form: Form | None = None

    def markers(self, *, thoughts: bool, calls: bool) -> list[str]:
        """Return the markers of reasoning, of calls, or of both."""
        marks = [self.thoughts.opens, self.thoughts.closes] if self.thoughts and thoughts else []
        if self.form and calls:
            marks += [self.form.opens, self.form.closes, self.form.optional]
        return [marker for marker in marks if marker]


@dataclass(frozen=True)
class _WrittenCall:
    """A tool call as the model wrote it in its text."""

    name: str
    arguments: Any
    """The arguments as an object. Arguments in tags are strings."""
    loose: bool = False
    """True if the strings may represent values of other types, because tags do not show types."""

    def is_told_by(self, arguments: str) -> bool:
        """True if the arguments in a response, a JSON text, are equal to those that the model wrote."""
        reported = as_object(arguments)
        if reported is None or reported.keys() != self.arguments.keys():
            return False
        return all(
            reported[key] == value or (self.loose and _is_of(reported[key], value))
            for key, value in self.arguments.items()
        )


def as_object(arguments: str) -> dict[str, Any] | None:
    """Parse arguments as a JSON object; None if they are anything else."""
    try:
        value = json.loads(arguments)
    except _UNREADABLE:
        return None
    return value if isinstance(value, dict) else None


def _is_of(value: Any, text: str) -> bool:
    if value == text.strip():
        return True
    try:
        return bool(json.loads(text) == value)
    except _UNREADABLE:
        return False


@dataclass(frozen=True)
class Reading:
    """The reasoning, content and calls in a text with markup."""

    reasoning: str = ""
    contents: tuple[str, ...] = ("",)
    """The content before the first call and after each call."""
    calls: tuple[_WrittenCall, ...] = ()
    cut: str | None = None
    """The text of the unfinished call at the end; empty if the text ends within the reasoning; None if it
    ends in content.
    """
    unclosed: _WrittenCall | None = None
    """The unfinished call, parsed, if only its closing marker is missing."""
    disputed: str = ""
    """The reason why the format does not define how to parse this text; empty if it does."""


@cache
def load_markup() -> tuple[Mapping[str, Thoughts], Mapping[str, Form]]:
    """Return the formats of reasoning and those of tool calls, by name.

    Raises TypeError for an unknown key.
    """
    table = read_yaml(spec_root() / "markup.yaml")
    thoughts = {name: Thoughts(**row) for name, row in table["reasoning"].items()}
    return thoughts, {name: Form(name, **row) for name, row in table["calls"].items()}


def read_markup(text: str, markup: Markup, tools: Collection[str] | None = None) -> Reading:
    """Parse a text as a server's parser must.

    `tools`: the names of the tools in the request; None if unknown.
    """
    reasoning, rest, disputed = "", text, ""
    if markup.thoughts is not None:
        opens, closes = markup.thoughts.opens, markup.thoughts.closes
        head = text.lstrip()
        if head.startswith(opens):
            reasoning, closed, rest = head[len(opens) :].partition(closes)
            if not closed:
                return Reading(reasoning, cut="")
        # The chat template has already written the opening marker into the prompt.
        elif closes in text and opens not in text:
            reasoning, _, rest = text.partition(closes)
        if opens in rest or closes in rest:
            disputed = "the content contains a marker of reasoning"
    if markup.form is None:
        return Reading(reasoning, (rest,), disputed=disputed)
    if _first_call(markup.form, reasoning, 0) >= 0:
        disputed = disputed or "the reasoning contains a tool call"
    read = _calls(rest, markup.form)
    unknown = tools is not None and any(call.name not in tools for call in read.calls)
    disputed = disputed or read.disputed or ("a call is of no tool that the request has" if unknown else "")
    if not disputed and not markup.form.opens and (read.calls or read.cut) and read.contents[0].strip():
        disputed = "a tool call without a marker follows text"
    if not disputed and any(content.strip() for content in read.contents[1:]):
        disputed = BEHIND
    return replace(read, reasoning=reasoning, disputed=disputed)


def _first_call(form: Form, text: str, start: int) -> int:
    """Return the position of the next call; -1 if there is none."""
    if form.opens:
        return text.find(form.opens, start)
    found = re.compile(form.begins).search(text, start)
    return found.start() if found else -1


def _calls(text: str, form: Form) -> Reading:
    """Parse the calls in a text, and the content between them."""
    calls: list[_WrittenCall] = []
    contents: list[str] = []
    position = 0
    while (begin := _first_call(form, text, position)) >= 0:
        contents.append(text[position:begin])
        body = begin + len(form.opens)
        found = _BODIES[form.holds](text, body, form)
        # If the closing marker follows, the call is malformed. Otherwise the text may have been cut off
        # within the call.
        if found is None:
            open_ended = not form.closes or form.closes not in text[body:]
            if not open_ended or (not form.closes and _is_balanced(text[body:])):
                return Reading("", tuple(contents), tuple(calls), disputed="a tool call is malformed")
            return Reading("", tuple(contents), tuple(calls), cut=text[begin:])
        written, position = found
        if form.closes:
            behind = behind_space(text, position)
            if not text.startswith(form.closes, behind):
                if not form.closes.startswith(text[behind : behind + len(form.closes)]):
                    return Reading("", tuple(contents), tuple(calls), disputed="a tool call is malformed")
                return Reading("", tuple(contents), tuple(calls), cut=text[begin:], unclosed=written[0])
            position = behind + len(form.closes)
        elif form.between and text.startswith(form.between, behind_space(text, position)):
            position = text.index(form.between, position) + len(form.between)
        calls += written
        # Between the calls of one list, the content is empty.
        contents += [""] * (len(written) - 1)
    return Reading("", (*contents, text[position:]), tuple(calls))


def behind_space(text: str, position: int) -> int:
    """Return the position after white space, without copying the rest of the text."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _is_balanced(text: str) -> bool:
    return text.count("{") == text.count("}") and text.count("[") == text.count("]")


_Found = tuple[list[_WrittenCall], int]
"""Parsed calls, and the position after them."""


def _as_json(text: str, begin: int, form: Form) -> _Found | None:
    try:
        value, end = json.JSONDecoder().raw_decode(text, behind_space(text, begin))
    except _UNREADABLE:
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get(form.arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return [_WrittenCall(name, arguments)], end


def _as_parameters(text: str, begin: int, _form: Form) -> _Found | None:
    function = _OPENED.match(text, behind_space(text, begin))
    if function is None:
        return None
    reported: dict[str, str] = {}
    position = function.end()
    while parameter := _PARAMETER.match(text, position):
        # A value may contain the closing tag. Only a closing tag before the next tag ends the value.
        end = _END_OF_PARAMETER.search(text, parameter.end())
        if end is None:
            return None
        # In this format, a line break precedes and follows each value.
        value = text[parameter.end() : end.start()]
        reported[parameter[1]] = value.removeprefix("\n").removesuffix("\n")
        position = end.end()
    if not text.startswith(_FUNCTION_END, position):
        return None
    return [_WrittenCall(function[1], reported, loose=True)], position + len(_FUNCTION_END)


def _as_python(text: str, begin: int, _form: Form) -> _Found | None:
    end = _end_of_list(text, begin)
    if end is None or end - begin > _MOST_PYTHON:
        return None
    try:
        listed = ast.parse(text[begin:end], mode="eval").body
        calls = [
            _WrittenCall(call.func.id, {k.arg or "": ast.literal_eval(k.value) for k in call.keywords})
            for call in (listed.elts if isinstance(listed, ast.List) else ())
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        ]
    # The parser and `literal_eval` raise all of these for malicious text.
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    return (calls, end) if isinstance(listed, ast.List) and len(calls) == len(listed.elts) else None


def _end_of_list(text: str, begin: int) -> int | None:
    """Return the position after the list that begins at `begin`; None if it is not closed.

    Brackets in strings are ignored.
    """
    depth = 0
    for found in _PYTHON_TEXT_OR_BRACKET.finditer(text, begin):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return None


_BODIES = {"json": _as_json, "parameters": _as_parameters, "python": _as_python}


def begun(cut: str, form: Form) -> tuple[str, str | None] | None:
    """Return the name of an unfinished call, and its arguments so far if they are JSON.

    Return None if the name itself is unfinished.
    """
    named = (_OPENED if form.holds == "parameters" else _NAME).search(cut)
    if named is None:
        return None
    if form.holds != "json":
        return named[1], None
    _, key, arguments = cut.partition(f'"{form.arguments}"')
    return named[1], arguments.lstrip().removeprefix(":").lstrip() if key else ""
