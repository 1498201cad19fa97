"""Scenarios for constrained output: JSON schemas, regular expressions, grammars and choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Conversation, Steps, scenario
from tokenwire.dialects.markup import load_markup
from tokenwire.scenarios.channels import spoken
from tokenwire.scenarios.forms import forms, worded

_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "c": {"enum": ["red", "blue"]}},
    "required": ["a", "c"],
    "additionalProperties": False,
}
_WORDS: Mapping[str, Any] = {
    "json_schema": _SCHEMA,
    "regex": "(yes|no)-[0-9]{2}",
    "choice": ["red", "blue"],
    "grammar": 'root ::= "yes" | "no"',
}
_BAD: Mapping[str, Any] = {"json_schema": {"type": "nonsense"}, "regex": "(["}
_TOKENS = 80
_LEAST_TOKENS = 40
"""More tokens than any text has that matches the regular expression."""
_CUT = 3
_OTHER = "maybe"
"""A text that none of the constraints permits."""


def constrained(talk: Conversation, ask: Ask, **values: Any) -> Ask | None:
    """Return the request with these constraints; None if the endpoint has no field for one of them."""
    raw = dict(ask.raw)
    for kind, value in values.items():
        written = talk.dialect.request.constraint.written(kind, value)
        if written is None:
            return None
        for name, fields in written.items():
            both = isinstance(fields, dict) and isinstance(raw.get(name), dict)
            raw[name] = raw[name] | fields if both else fields
    return replace(ask, raw=raw)


@scenario()
def _constraints(talk: Conversation) -> Steps:
    """Output that must be JSON of a schema, match a regular expression, follow a grammar or be one of two
    choices. Without constraints, the model would write another text. The output is requested without and with
    streaming, and cut off by a token limit. Also with end-of-sequence ids ignored, and after the reasoning of
    a parrot.
    """
    plain = replace(worded(talk, f"Say {_OTHER}."), max_new_tokens=_TOKENS)
    ask = spoken(talk, _OTHER, plain)
    for kind, value in _WORDS.items():
        asked = constrained(talk, ask, **{kind: value})
        if asked is not None:
            yield forms(asked, kind) if kind in _BAD else {kind: asked}
            yield {f"{kind}-cut": replace(asked, max_new_tokens=_CUT)}
    asked = constrained(talk, replace(ask, ignore_eos=True), regex=_WORDS["regex"])
    if asked is not None:
        yield {"regex-ignores-ends": asked}
    grammar, think = talk.dialect.request.says, load_markup()[0]["think"]
    if grammar is not None and grammar.thinking and talk.parrot is not None:
        thought = f"{think.opens}\nhm\n{think.closes}"
        for label, text in (("reasoning", '{"a": true, "c": "red"}'), ("reasoning-other", _OTHER)):
            asked = constrained(talk, spoken(talk, thought + text, plain), json_schema=_SCHEMA)
            if asked is not None:
                yield forms(replace(asked, raw={**asked.raw, **grammar.thinking}), label)


@scenario(perilous=True)
def _constraint_and_least_tokens(talk: Conversation) -> Steps:
    """A regular expression whose matches are shorter than the minimum number of tokens, and another request
    after it. A server that masked all ids crashed at such a request, and ended all other requests.
    """
    control = replace(worded(talk, "Count to ten."), max_new_tokens=8)
    plain = replace(worded(talk, f"Say {_OTHER}."), max_new_tokens=_TOKENS)
    longer = replace(spoken(talk, _OTHER, plain), min_new_tokens=_LEAST_TOKENS)
    asked = constrained(talk, longer, regex=_WORDS["regex"])
    if asked is not None:
        yield {"control": control}
        yield {"regex": asked}
        yield {"regex-control": control}


@scenario(perilous=True)
def _bad_constraints(talk: Conversation) -> Steps:
    """A schema with an unknown type, a regular expression with an unclosed bracket, and two constraints at
    once, without and with streaming. Each is refused, and a valid request after them is answered as before.
    """
    control = replace(worded(talk, "Count to ten."), max_new_tokens=8)
    bad = [constrained(talk, control, **{kind: value}) for kind, value in _BAD.items()]
    bad.append(constrained(talk, control, json_schema=_SCHEMA, regex=_WORDS["regex"]))
    yield {"control": control}
    for label, ask in zip((*_BAD, "two"), bad, strict=True):
        if ask is not None:
            for form, asked in forms(ask, label).items():
                yield {form: asked}
            yield {f"{label}-control": control}
