"""Markup: how models write reasoning and tool calls into their text, and what a parser has to take out of it.

The forms are data (`spec/markup.yaml`). What is read here is what a form says without doubt; what no document
settles is called disputed.
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
"""The one dispute that leaves no doubt what the calls are."""

_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_SPACE = re.compile(r"\s*+")
_OPENED = re.compile(r"<function=([^<>\s]++)>\s*+")
_PARAMETER = re.compile(r"<parameter=([^>\s]++)>")
_END_OF_PARAMETER = re.compile(r"</parameter>\s*+(?=<parameter=|</function>)")
_FUNCTION_END = "</function>"
_PYTHON_TEXT_OR_BRACKET = re.compile(
    r"""'[^'\\]*+(?:\\.[^'\\]*+)*+'?|"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]]""", re.S
)
"""A text without an end goes up to the end: the list has none, then."""
_MOST_PYTHON = 1 << 16
"""Characters of a list of calls that is read as Python: its parser takes a stack as deep as the text says."""
_UNREADABLE = (ValueError, RecursionError)
"""What Python's readers of JSON raise: the second for a text that is nested too deep."""


@dataclass(frozen=True)
class Thoughts:
    """The markers of reasoning."""

    opens: str
    closes: str


@dataclass(frozen=True)
class Form:
    """A form of tool calls."""

    name: str
    holds: str
    """`json`, `parameters` or `python`."""
    opens: str = ""
    closes: str = ""
    begins: str = ""
    """A pattern of how a call begins that has no marker."""
    optional: str = ""
    """A marker that may come before that."""
    arguments: str = ""
    """The key of the arguments in a JSON object."""
    writes: str = ""
    parameter: str = ""
    between: str = ""

    def spelled(self, *calls: tuple[str, Mapping[str, Any]]) -> str:
        """Some calls as a model writes them; empty where the form has no spelling here."""

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
    """The markup that a target's parsers read; None for a parser that was not seen at work."""

    thoughts: Thoughts | None = None
    form: Form | None = None

    def markers(self, *, thoughts: bool, calls: bool) -> list[str]:
        """Return the markers of the parsers, of those kinds that are wanted."""
        marks = [self.thoughts.opens, self.thoughts.closes] if self.thoughts and thoughts else []
        if self.form and calls:
            marks += [self.form.opens, self.form.closes, self.form.optional]
        return [marker for marker in marks if marker]


@dataclass(frozen=True)
class _WrittenCall:
    """A tool call as the text of a model has it."""

    name: str
    arguments: Any
    """An object; of parameters in tags, their texts."""
    loose: bool = False
    """True if the texts may mean values of another type, which the tags do not show."""

    def is_told_by(self, arguments: str) -> bool:
        """True if the arguments of an answer are these."""
        reported = as_object(arguments)
        if reported is None or reported.keys() != self.arguments.keys():
            return False
        return all(
            reported[key] == value or (self.loose and _is_of(reported[key], value))
            for key, value in self.arguments.items()
        )


def as_object(arguments: str) -> dict[str, Any] | None:
    """Return the JSON object that arguments are; None where they are none."""
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
    """A text, taken apart."""

    reasoning: str = ""
    contents: tuple[str, ...] = ("",)
    """The content before the first call and behind each."""
    calls: tuple[_WrittenCall, ...] = ()
    cut: str | None = None
    """What was begun of a call that the text ends in, empty where it ends in its reasoning; None where it
    ends in neither.
    """
    unclosed: _WrittenCall | None = None
    """The call that was begun, where only its closing marker is missing."""
    disputed: str = ""
    """What of it no document settles, as a clause; empty for nothing."""


@cache
def load_markup() -> tuple[Mapping[str, Thoughts], Mapping[str, Form]]:
    """Return the ways of marking reasoning and the forms of tool calls, by name. Raises TypeError for a key
    that neither has.
    """
    table = read_yaml(spec_root() / "markup.yaml")
    thoughts = {name: Thoughts(**row) for name, row in table["reasoning"].items()}
    return thoughts, {name: Form(name, **row) for name, row in table["calls"].items()}


def read_markup(text: str, markup: Markup, tools: Collection[str] | None = None) -> Reading:
    """Take a text apart as a parser must. `tools` are the names of those that the request offers."""
    reasoning, rest, disputed = "", text, ""
    if markup.thoughts is not None:
        opens, closes = markup.thoughts.opens, markup.thoughts.closes
        head = text.lstrip()
        if head.startswith(opens):
            reasoning, closed, rest = head[len(opens) :].partition(closes)
            if not closed:
                return Reading(reasoning, cut="")
        elif closes in text and opens not in text:  # the prompt opened it
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
    """Return where the next call begins; -1 if there is none."""
    if form.opens:
        return text.find(form.opens, start)
    found = re.compile(form.begins).search(text, start)
    return found.start() if found else -1


def _calls(text: str, form: Form) -> Reading:
    """Return the calls of a text and the content around them."""
    calls: list[_WrittenCall] = []
    contents: list[str] = []
    position = 0
    while (begin := _first_call(form, text, position)) >= 0:
        contents.append(text[position:begin])
        body = begin + len(form.opens)
        found = _BODIES[form.holds](text, body, form)
        # A call whose end has come is malformed; one without an end may have been cut.
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
        # There is no content between the calls of one list.
        contents += [""] * (len(written) - 1)
    return Reading("", (*contents, text[position:]), tuple(calls))


def behind_space(text: str, position: int) -> int:
    """Return the position after white space, without a copy of the rest of the text."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _is_balanced(text: str) -> bool:
    return text.count("{") == text.count("}") and text.count("[") == text.count("]")


_Found = tuple[list[_WrittenCall], int]
"""The calls at a place, and where they end."""


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
        # A value may hold the closing tag: only one that the next tag follows ends it.
        end = _END_OF_PARAMETER.search(text, parameter.end())
        if end is None:
            return None
        # This form writes each value on lines of its own.
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
    # The parser and `literal_eval` raise all of these for a text that is made to break them.
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    return (calls, end) if isinstance(listed, ast.List) and len(calls) == len(listed.elts) else None


def _end_of_list(text: str, begin: int) -> int | None:
    """Return the end of the list that begins there; brackets within texts count for nothing. None
    without an end.
    """
    depth = 0
    for found in _PYTHON_TEXT_OR_BRACKET.finditer(text, begin):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return None


_BODIES = {"json": _as_json, "parameters": _as_parameters, "python": _as_python}


def begun(cut: str, form: Form) -> tuple[str, str | None] | None:
    """Return the name of a call that was cut, and the text of its arguments so far where they are JSON; None
    where its name was not complete.
    """
    named = (_OPENED if form.holds == "parameters" else _NAME).search(cut)
    if named is None:
        return None
    if form.holds != "json":
        return named[1], None
    _, key, arguments = cut.partition(f'"{form.arguments}"')
    return named[1], arguments.lstrip().removeprefix(":").lstrip() if key else ""
