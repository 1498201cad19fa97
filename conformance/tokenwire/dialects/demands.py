"""Demands of a request on a text: calls of tools, a language, or the exact words. Written, and parsed."""

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
    """A way to make the model output a text that alone fits a grammar."""

    pattern: Pointer
    """The place of the expression that the output has to match."""
    beside: tuple[Mapping[str, Any], ...]
    """What else the body says, of which one lets the grammar hold from the first token on."""
    thinking: Mapping[str, Any] = field(default_factory=dict)
    """What it says so that the model reasons first; empty where nothing does."""

    def body(self, text: str, way: int) -> dict[str, Any]:
        """Make the fields of a body so that the output is this text."""
        body = copy.deepcopy(dict(self.beside[way]))
        put(body, self.pattern, re.sub(r"[][\\^$.|?*+(){}/-]", r"\\\g<0>", text))
        return body

    def text(self, body: Any) -> str | None:
        """Return the one text that a body lets the model say; None where it says no such thing."""
        pattern = find(body, self.pattern)
        text = re.sub(r"\\([^\w\s])", r"\1", pattern) if isinstance(pattern, str) else None
        # An expression that is not spelled as `body` spells it may match more than one text.
        return text if text is not None and find(self.body(text, 0), self.pattern) == pattern else None


@dataclass(frozen=True)
class ToolBinding:
    """The writing of the functions that may be called."""

    at: Pointer
    as_: Mapping[str, Any]
    """One of them, with NAME, DESCRIPTION and PARAMETERS in their places."""
    name: Pointer = ()
    parameters: Pointer = ()
    strict: Pointer = ()
    choice: Pointer = ()
    """Where a request says whether it wants calls, and of what."""
    chooses: Mapping[str, Any] = field(default_factory=dict)
    """What it says there: for no call, for any, and for one of NAME."""
    alone: Mapping[Pointer, Any] = field(default_factory=dict)
    """The fields that ask for one at most, and then those that have to be beside them."""

    def written(self, tool: Tool) -> Any:
        """Return a tool as the endpoint has it."""
        values = {"NAME": tool.name, "DESCRIPTION": tool.description, "PARAMETERS": tool.parameters}
        written = _filled_in(self.as_, values)
        if tool.strict and self.strict:
            put(written, self.strict, True)
        return written

    def choosing(self, choice: str, name: str = "") -> dict[str, Any]:
        """Make the fields of a body for `none`, `required` or `named` calls."""
        body: dict[str, Any] = {}
        put(body, self.choice, _filled_in(self.chooses[choice], {"NAME": name}))
        return body

    def one_at_most(self) -> dict[str, Any]:
        """Make the fields of a body for one call at most."""
        body: dict[str, Any] = {}
        for keys, value in self.alone.items():
            put(body, keys, value)
        return body

    def names(self, body: Any) -> tuple[str, ...] | None:
        """Return the names of the tools that a body offers; None where it says none."""
        tools = find(body, self.at)
        if not isinstance(tools, list) or not tools:
            return None
        found = (find(tool, self.name) for tool in tools)
        return tuple(name for name in found if isinstance(name, str))

    def rule(self, body: Any) -> ToolRule | None:
        """Parse the demands of a body on calls; None if it neither offers tools nor chooses any."""
        choice, names = find(body, self.choice), self.names(body)
        if names is None and choice in (ABSENT, None):
            return None
        tools = [tool for tool in find(body, self.at) if isinstance(tool, dict)] if names else ()
        by_name = {str(find(tool, self.name)): tool for tool in tools}
        schemas = {name: find(tool, self.parameters) for name, tool in by_name.items()}
        # A tool that is named is one that has to be called, too.
        demands = {
            str(_kind(value)): "none" if wanted == "none" else "required"
            for wanted, value in self.chooses.items()
        }
        word = _kind(choice)
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


def _kind(choice: Any) -> Any:
    """Return the word of a choice of tools, alone or as the type of an object."""
    return choice.get("type") if isinstance(choice, dict) else choice


_FORMAT = "format"
"""The kind of a place that holds an object which says of what type a constraint is, as OpenAI has it."""


@dataclass(frozen=True)
class SchemaPlace:
    """The place of a schema, and its form with SCHEMA in its place."""

    at: Pointer
    as_: Any


@dataclass(frozen=True)
class ConstraintBinding:
    """The places of the language that the text of a choice must belong to."""

    places: Mapping[Keys, str]
    """By kind."""
    schema_as: SchemaPlace | None

    def read(self, body: Any) -> tuple[Constraint, ...]:
        return tuple(
            constraint
            for keys, kind in self.places.items()
            if (value := find(body, keys)) not in (ABSENT, None, False)
            and (constraint := _constraint(str(keys[-1]), kind, value)) is not None
        )

    def written(self, kind: str, value: Any) -> dict[str, Any] | None:
        """Make the fields of a body for a constraint; None if the endpoint has no place for it."""
        body: dict[str, Any] = {}
        if kind == "json_schema" and self.schema_as is not None:
            put(body, self.schema_as.at, _filled_in(self.schema_as.as_, {"SCHEMA": value}))
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


def _filled_in(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with values in the places of their names."""
    if isinstance(template, Mapping):
        return {name: _filled_in(member, values) for name, member in template.items()}
    return copy.deepcopy(values.get(template, template) if isinstance(template, str) else template)
