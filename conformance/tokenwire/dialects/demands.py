"""Demands of a request on a text: tool calls, a language, or the exact words. Renders and parses them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tokenwire.ask import Tool
from tokenwire.constraint import Constraint, ToolRule
from tokenwire.wire.json_pointer import ABSENT, Keys, Pointer, find, put


@dataclass(frozen=True)
class Says:
    """The way to force an exact text, with a grammar that permits only that text."""

    pattern: Pointer
    """The place of the regular expression for the output."""
    beside: tuple[Mapping[str, Any], ...]
    """Alternative other fields, of which one makes the grammar apply from the first token on."""
    thinking: Mapping[str, Any] = field(default_factory=dict)
    """Fields that make the model reason first; empty if there are none."""

    def body(self, text: str, way: int) -> dict[str, Any]:
        """Return the fields of a body that force this text."""
        body = copy.deepcopy(dict(self.beside[way]))
        put(body, self.pattern, re.sub(r"[][\\^$.|?*+(){}/-]", r"\\\g<0>", text))
        return body

    def text(self, body: Any) -> str | None:
        """Return the only text that a body permits; None if it permits others."""
        pattern = find(body, self.pattern)
        text = re.sub(r"\\([^\w\s])", r"\1", pattern) if isinstance(pattern, str) else None
        # An expression in another form than that of `body` may match more than one text.
        return text if text is not None and find(self.body(text, 0), self.pattern) == pattern else None


@dataclass(frozen=True)
class ReasoningControls:
    """The fields by which a request controls the reasoning of its answer; empty where there are none."""

    hides: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a body that leave reasoning out of the answer."""
    without: tuple[Mapping[str, Any], ...] = ()
    """Alternative fields that switch reasoning off."""
    budget: Pointer = ()
    """The place of the most tokens of reasoning."""
    effort: Pointer = ()
    efforts: tuple[str, ...] = ()
    """The words for an effort."""

    def are_hidden(self, body: Any) -> bool:
        """True if a request asks for an answer without its reasoning."""
        return _holds(body, self.hides)

    def are_off(self, body: Any) -> bool:
        """True if a request switches reasoning off."""
        return any(_holds(body, fields) for fields in self.without)

    def tokens(self, body: Any) -> int | None:
        """Return the most tokens of reasoning that a request permits; None for any number."""
        tokens = find(body, self.budget) if self.budget else None
        return tokens if type(tokens) is int else None

    def unknown_effort(self, body: Any) -> str | None:
        """Return the effort of a request that is none of the words for it; None without one."""
        effort = find(body, self.effort) if self.effort else None
        unknown = isinstance(effort, str) and effort not in self.efforts and not _is_number(effort)
        return effort if unknown else None


def _holds(body: Any, fields: Mapping[str, Any]) -> bool:
    return bool(fields) and isinstance(body, Mapping) and all(body.get(key) == fields[key] for key in fields)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class ToolBinding:
    """The form of functions that may be called."""

    at: Pointer
    as_: Mapping[str, Any]
    """One function, with NAME, DESCRIPTION and PARAMETERS as placeholders."""
    name: Pointer = ()
    parameters: Pointer = ()
    strict: Pointer = ()
    choice: Pointer = ()
    """The place of the choice between tools."""
    chooses: Mapping[str, Any] = field(default_factory=dict)
    """The values of the choice: for no call, for any call, and for the function NAME."""
    alone: Mapping[Pointer, Any] = field(default_factory=dict)
    """The fields for at most one call, followed by fields that they require."""

    def written(self, tool: Tool) -> Any:
        """Return a tool in the endpoint's form."""
        values = {"NAME": tool.name, "DESCRIPTION": tool.description, "PARAMETERS": tool.parameters}
        written = filled_in(self.as_, values)
        if tool.strict and self.strict:
            put(written, self.strict, True)
        return written

    def choosing(self, choice: str, name: str = "") -> dict[str, Any]:
        """Return the fields of a body for `none`, `required` or `named` calls."""
        body: dict[str, Any] = {}
        put(body, self.choice, filled_in(self.chooses[choice], {"NAME": name}))
        return body

    def one_at_most(self) -> dict[str, Any]:
        """Return the fields of a body for at most one call."""
        body: dict[str, Any] = {}
        for keys, value in self.alone.items():
            put(body, keys, value)
        return body

    def names(self, body: Any) -> tuple[str, ...] | None:
        """Return the names of the tools in a body; None if it has no list of tools."""
        tools = find(body, self.at)
        if not isinstance(tools, list) or not tools:
            return None
        found = (find(tool, self.name) for tool in tools)
        return tuple(name for name in found if isinstance(name, str))

    def rule(self, body: Any) -> ToolRule | None:
        """Parse the rules for calls in a body; None if it neither offers nor chooses tools."""
        choice, names = find(body, self.choice), self.names(body)
        if names is None and choice in (ABSENT, None):
            return None
        tools = [tool for tool in find(body, self.at) if isinstance(tool, dict)] if names else ()
        by_name = {str(find(tool, self.name)): tool for tool in tools}
        schemas = {name: find(tool, self.parameters) for name, tool in by_name.items()}
        # A named tool must be called, too.
        demands = {
            str(_tool_choice_word(value)): "none" if wanted == "none" else "required"
            for wanted, value in self.chooses.items()
        }
        word = _tool_choice_word(choice)
        named = (find(choice, keys) for keys in (("function", "name"), ("name",)))
        return ToolRule(
            names or (),
            demand="auto" if word in (ABSENT, None) else demands.get(str(word), str(word)),
            name=next((name for name in named if isinstance(name, str)), ""),
            alone=any(find(body, keys) == value for keys, value in islice(self.alone.items(), 1)),
            parameters={
                name: Constraint(f"the schema of {name}", "json_schema", schema)
                for name, schema in schemas.items()
                if schema not in (ABSENT, None)
            },
            strict=frozenset(name for name, tool in by_name.items() if find(tool, self.strict) is True),
        )


def _tool_choice_word(choice: Any) -> Any:
    """Return the word of a choice of tools: a string, or the type of an object."""
    return choice.get("type") if isinstance(choice, dict) else choice


_FORMAT = "format"
"""The kind of a place whose object has the constraint's type as a member, as in OpenAI's API."""


@dataclass(frozen=True)
class SchemaPlace:
    """The place of a schema, and its form with SCHEMA as a placeholder."""

    at: Pointer
    as_: Any


@dataclass(frozen=True)
class ConstraintBinding:
    """The places of the language that the text of a choice must belong to."""

    places: Mapping[Keys, str]
    """The kind of constraint at each place."""
    schema_as: SchemaPlace | None

    def read(self, body: Any) -> tuple[Constraint, ...]:
        return tuple(
            constraint
            for keys, kind in self.places.items()
            if (value := find(body, keys)) not in (ABSENT, None, False)
            and (constraint := _constraint(str(keys[-1]), kind, value)) is not None
        )

    def written(self, kind: str, value: Any) -> dict[str, Any] | None:
        """Return the fields of a body for a constraint; None if the endpoint does not support it."""
        body: dict[str, Any] = {}
        if kind == "json_schema" and self.schema_as is not None:
            put(body, self.schema_as.at, filled_in(self.schema_as.as_, {"SCHEMA": value}))
            return body
        keys = next((place for place, of_kind in self.places.items() if of_kind == kind), ())
        if keys:
            put(body, keys, json.dumps(value) if kind == "json_schema" else value)
        return body or None


def _constraint(name: str, kind: str, value: Any) -> Constraint | None:
    if kind == _FORMAT:
        kind = str(value.get("type")) if isinstance(value, dict) else "unknown"
        if kind == "json_schema":
            holder = value.get(kind, value)
            value = holder.get("schema") if isinstance(holder, dict) else None
    return None if kind == "text" else Constraint(name, kind, value)


def filled_in(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with its placeholders replaced by values."""
    if isinstance(template, Mapping):
        return {name: filled_in(member, values) for name, member in template.items()}
    if isinstance(template, list):
        return [filled_in(member, values) for member in template]
    return copy.deepcopy(values.get(template, template) if isinstance(template, str) else template)
