"""Whether events that fit a template are valid: its model is, and what fills its holes is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

from tokenwire.wire.template import Fitted, Holes

_DEFINITIONS = "#/$defs/"
_OF_ITS_OWN = {
    *("type", "required", "dependentRequired", "propertyNames"),
    *("minProperties", "maxProperties", "minItems", "maxItems"),
}
"""What is told of an object or a list without a look at its members."""
_SAYS_NOTHING = {
    *("$schema", "$id", "$defs", "$comment"),
    *("title", "description", "examples", "default", "deprecated"),
}

Schema = bool | Mapping[str, Any]


class _DependsError(Exception):
    """It takes all values of an event to tell whether it fits the schema."""


class TemplateSchema:
    """A schema, as far as values with holes can be held against it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    def takes(self, fitted: Fitted) -> bool:
        """Whether all events that fit a template are valid beyond doubt.

        False where one is not, and where the schema speaks of what fills a hole in words that this class does
        not know.
        """
        template = fitted.template
        asked: dict[int, list[Schema]] = {}
        try:
            if not self._is_valid(self._schema, template.model):
                return False
            for hole, schema in self._asked(self._schema, template.model, template.holes):
                asked.setdefault(hole, []).append(schema)
            return all(
                self._is_valid({"items": {"allOf": schemas}}, fitted.columns[hole])
                for hole, schemas in asked.items()
            )
        except (_DependsError, UnicodeEncodeError):  # a lone surrogate in a key
            return False

    def _is_valid(self, schema: Schema, value: Any) -> bool:
        """Raises UnicodeEncodeError where a key holds a lone surrogate."""
        written = json.dumps(schema)
        if written not in self._validators:
            whole = {"allOf": [schema], "$defs": self._definitions}
            self._validators[written] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[written].is_valid(value)

    def _asked(self, schema: Schema, model: Any, holes: Holes | None) -> Iterator[tuple[int, Schema]]:
        """What is asked of what fills the holes of a value, so that it is valid as the model is.

        Raises _DependsError where that does not tell it.
        """
        if holes is None or isinstance(schema, bool):
            return
        if isinstance(holes, int):
            yield holes, schema
            return
        for word, said in schema.items():
            if word == "anyOf":
                branch = next((one for one in said if self._is_valid(one, model)), None)
                if branch is None:
                    raise _DependsError
                yield from self._asked(branch, model, holes)
            elif word == "if":
                self._refuse_to_depend(said, model, holes)
                then = schema.get("then" if self._is_valid(said, model) else "else", True)
                yield from self._asked(then, model, holes)
            elif word in ("not", "oneOf"):
                for one in said if word == "oneOf" else [said]:
                    self._refuse_to_depend(one, model, holes)
            elif word not in ("then", "else"):
                for one, part, within in self._applied(word, said, schema, model, holes):
                    yield from self._asked(one, part, within)

    def _refuse_to_depend(self, schema: Schema, model: Any, holes: Holes | None) -> None:
        """Raises _DependsError where what fills a hole can matter to a schema in any way."""
        if holes is None or isinstance(schema, bool) or not schema:
            return
        if isinstance(holes, int):
            raise _DependsError
        for word, said in schema.items():
            if word in ("anyOf", "oneOf"):
                within: list[tuple[Schema, Any, Holes | None]] = [(one, model, holes) for one in said]
            elif word in ("not", "if", "then", "else"):
                within = [(said, model, holes)]
            else:
                within = list(self._applied(word, said, schema, model, holes))
            for one in within:
                self._refuse_to_depend(*one)

    def _applied(
        self, word: str, said: Any, schema: Mapping[str, Any], model: Any, holes: dict[str, Holes]
    ) -> Iterator[tuple[Schema, Any, Holes | None]]:
        """The schemas that all apply by one word, each with the part of the value that it is about."""
        if word == "$ref" and said.startswith(_DEFINITIONS):
            yield self._definitions[said.removeprefix(_DEFINITIONS)], model, holes
        elif word == "allOf":
            yield from ((one, model, holes) for one in said)
        elif word == "properties":
            if isinstance(model, dict):
                yield from ((one, model[key], holes.get(key)) for key, one in said.items() if key in model)
        elif word == "prefixItems":
            if isinstance(model, list):
                every = zip(said, model, strict=False)
                yield from ((one, part, holes.get(str(at))) for at, (one, part) in enumerate(every))
        elif word == "items":
            if isinstance(model, list):
                behind = len(schema.get("prefixItems", ()))
                yield from ((said, model[at], holes.get(str(at))) for at in range(behind, len(model)))
        elif word not in _OF_ITS_OWN and word not in _SAYS_NOTHING:
            raise _DependsError
