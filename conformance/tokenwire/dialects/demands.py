"""Renders and parses the constraints of a request: tool calls, a grammar or schema, or an exact text."""

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
    """Fields that force an exact output text, by a grammar that permits only this text."""

    pattern: Pointer
    """The place of the regular expression that the output must match."""
    beside: tuple[Mapping[str, Any], ...]
    """Alternatives for the other fields of the body.

    With one of them, the grammar applies from the first token on.
    """
    thinking: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields that make the model reason first; empty if there are none."""

    def body(self, text: str, way: int) -> dict[str, Any]:
        """Return the fields of a request body that force this text.

        `way`: index of the alternative in `beside`.
        """
        body = copy.deepcopy(dict(self.beside[way]))
        put(body, self.pattern, re.sub(r"[][\\^$.|?*+(){}/-]", r"\\\g<0>", text))
        return body

    def text(self, body: Any) -> str | None:
        """Return the text that a request body forces; None if it permits several texts."""
        pattern = find(body, self.pattern)
        text = re.sub(r"\\([^\w\s])", r"\1", pattern) if isinstance(pattern, str) else None
        # Only a pattern that `body` could have written is known to match a single text.
        return text if text is not None and find(self.body(text, 0), self.pattern) == pattern else None


@dataclass(frozen=True)
class ReasoningControls:
    """The request fields that control reasoning; empty if the endpoint has none."""

    hides: Mapping[str, Any] = field(default_factory=dict)
    """Fields that remove the reasoning from the answer."""
    without: tuple[Mapping[str, Any], ...] = ()
    """Alternative fields that switch reasoning off."""
    budget: Pointer = ()
    """The place of the limit for reasoning tokens."""
    effort: Pointer = ()
    efforts: tuple[str, ...] = ()
    """The valid values of a reasoning effort."""

    def are_hidden(self, body: Any) -> bool:
        """True if a request asks for an answer without its reasoning."""
        return _holds(body, self.hides)

    def are_off(self, body: Any) -> bool:
        """True if a request switches reasoning off."""
        return any(_holds(body, fields) for fields in self.without)

    def tokens(self, body: Any) -> int | None:
        """Return the limit for reasoning tokens in a request; None without one."""
        tokens = find(body, self.budget) if self.budget else None
        return tokens if type(tokens) is int else None

    def unknown_effort(self, body: Any) -> str | None:
        """Return the reasoning effort of a request if it is not a valid value; otherwise None."""
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
    """The JSON form of the tools (functions) in a request."""

    at: Pointer
    as_: Mapping[str, Any]
    """The template of a tool, with the placeholders NAME, DESCRIPTION and PARAMETERS."""
    name: Pointer = ()
    parameters: Pointer = ()
    strict: Pointer = ()
    choice: Pointer = ()
    """The place of the field that decides if and which tool is called, such as `tool_choice`."""
    chooses: Mapping[str, Any] = field(default_factory=dict)
    """The values of this field for `none`, `required` and `named`; the last one contains NAME."""
    alone: Mapping[Pointer, Any] = field(default_factory=dict)
    """Fields that limit an answer to one call, such as `parallel_tool_calls`.

    Only the first is checked when parsing.
    """

    free: Mapping[str, Any] = field(default_factory=dict)
    """The template of a custom tool, whose input is a text; empty if the endpoint has none."""
    free_call: str = ""
    """The type of a call of a custom tool."""

    def written(self, tool: Tool) -> Any:
        """Return a tool in the form of the endpoint."""
        values = {"NAME": tool.name, "DESCRIPTION": tool.description, "PARAMETERS": tool.parameters}
        written = filled_in(self.as_, values)
        if tool.strict and self.strict:
            put(written, self.strict, True)
        return written

    def free_form(self, name: str) -> Any:
        """Return a custom tool in the form of the endpoint."""
        return filled_in(self.free, {"NAME": name, "DESCRIPTION": name})

    def free_names(self, body: Any) -> frozenset[str]:
        """Return the names of the custom tools in a body."""
        tools, kind = find(body, self.at), self.free.get("type")
        named = (
            find(tool, self.name)
            for tool in (tools if kind and isinstance(tools, list) else ())
            if isinstance(tool, Mapping) and tool.get("type") == kind
        )
        return frozenset(name for name in named if isinstance(name, str))

    def choosing(self, choice: str, name: str = "") -> dict[str, Any]:
        """Return the fields of a request body for the choice `none`, `required` or `named`."""
        body: dict[str, Any] = {}
        put(body, self.choice, filled_in(self.chooses[choice], {"NAME": name}))
        return body

    def one_at_most(self) -> dict[str, Any]:
        """Return the fields of a request body that limit an answer to one call."""
        body: dict[str, Any] = {}
        for keys, value in self.alone.items():
            put(body, keys, value)
        return body

    def names(self, body: Any) -> tuple[str, ...] | None:
        """Return the names of the tools in a request body; None if it has no tools."""
        tools = find(body, self.at)
        if not isinstance(tools, list) or not tools:
            return None
        found = (find(tool, self.name) for tool in tools)
        return tuple(name for name in found if isinstance(name, str))

    def rule(self, body: Any) -> ToolRule | None:
        """Return the rules for calls in a request body; None if it has neither tools nor a tool choice."""
        choice, names = find(body, self.choice), self.names(body)
        if names is None and choice in (ABSENT, None):
            return None
        tools = [tool for tool in find(body, self.at) if isinstance(tool, dict)] if names else ()
        by_name = {str(find(tool, self.name)): tool for tool in tools}
        schemas = {name: find(tool, self.parameters) for name, tool in by_name.items()}
        # A named tool is required as well.
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
    """Return the kind of a tool choice: the string itself, or the type of an object."""
    return choice.get("type") if isinstance(choice, dict) else choice


_FORMAT = "format"
"""The kind of a field like OpenAI's `response_format`, an object with the member `type`."""


@dataclass(frozen=True)
class SchemaPlace:
    """The place of a JSON schema in a request, and its template with the placeholder SCHEMA."""

    at: Pointer
    as_: Any


@dataclass(frozen=True)
class ConstraintBinding:
    """The request fields that constrain the output text, such as a grammar or a JSON schema."""

    places: Mapping[Keys, str]
    """The kind of constraint in each field."""
    schema_as: SchemaPlace | None

    def read(self, body: Any) -> tuple[Constraint, ...]:
        return tuple(
            constraint
            for keys, kind in self.places.items()
            if (value := find(body, keys)) not in (ABSENT, None, False)
            and (constraint := _constraint(str(keys[-1]), kind, value)) is not None
        )

    def written(self, kind: str, value: Any) -> dict[str, Any] | None:
        """Return the fields of a request body for a constraint; None if the endpoint does not support it."""
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
