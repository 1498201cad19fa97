"""Each request field of each endpoint is sent by a scenario, or is listed with the reason why none does."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import proofs
import pytest
from test_scenario import Echo, talk_everything_through

from tokenwire.dialects.dialect import load_dialects
from tokenwire.spec_files import read_yaml, spec_root

SCHEMAS: Mapping[str, str] = read_yaml(Path(proofs.__file__).with_name("newest.yaml"))["requests"]
"""The schema of the requests of each dialect that has one."""
PARAMETERS = "sampling_params"
UNSENT: Mapping[str, Mapping[str, str]] = read_yaml(spec_root() / "unsent.yaml")


def _resolved(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its alternatives, references followed."""
    if "$ref" in schema:
        found: Any = whole
        for key in schema["$ref"].split("/")[1:]:
            found = found[key]
        schema = found
    yield schema
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _resolved(alternative, whole)


def known_fields(dialect: str) -> set[str]:
    """Return the fields of an endpoint: those of its schema, and those that its dialect names."""
    schema = json.loads((spec_root() / "schemas" / f"{SCHEMAS[dialect]}.json").read_text("utf-8"))
    named = set(schema["properties"])
    for nested in _resolved(schema["properties"].get(PARAMETERS, {}), schema):
        named |= {f"{PARAMETERS}/{name}" for name in nested.get("properties", ())}
    binding = load_dialects()[dialect].request
    places = [
        *binding.bound,
        *binding.asks,
        *binding.report_only,
        *binding.neutral,
        *binding.penalties.values(),
    ]
    for keys in places:
        named.add("/".join(keys[:2]) if keys[0] == PARAMETERS else str(keys[0]))
    return named - {PARAMETERS, binding.goes_on}  # an answer leads to the latter


@pytest.fixture(scope="module")
def sent() -> Mapping[str, set[str]]:
    """The fields that all scenarios send, by dialect."""
    fields: defaultdict[str, set[str]] = defaultdict(set)
    sender = Echo()
    asyncio.run(talk_everything_through(sender, perilous=True))
    for name, request in sender.requests.items():
        dialect, body = load_dialects()[name.split("/")[0]], request.body
        if request not in dialect.endpoint or not isinstance(body, dict):
            continue
        fields[dialect.name] |= body.keys()
        given = body.get(PARAMETERS)
        for parameters in given if isinstance(given, list) else [given]:
            if isinstance(parameters, dict):
                fields[dialect.name] |= {f"{PARAMETERS}/{name}" for name in parameters}
    return fields


@pytest.mark.parametrize("dialect", SCHEMAS)
def test_each_field_is_sent_or_has_a_reason(dialect: str, sent: Mapping[str, set[str]]) -> None:
    listed = UNSENT.get(dialect, {})
    assert {name for name, reason in listed.items() if not reason} == set()
    assert known_fields(dialect) - sent[dialect] == set(listed)


def test_only_dialects_with_a_schema_are_listed() -> None:
    assert set(UNSENT) <= set(SCHEMAS)
