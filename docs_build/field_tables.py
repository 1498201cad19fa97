"""The generated tables of the specification and of the guide for trainers.

    python -m docs_build.field_tables           write all tables

`spec/request.md` lists the fields of a request and of the record, with their names in every dialect.
`spec/items.md` contains the grammars, and `spec/dialects/README.md` the choices of a dialect.
`spec/README.md` and the guide for trainers contain the promises of profiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from docs_build.dialect_choices import policies
from docs_build.page import template
from docs_build.published import ROOT
from tokenwire.dialects.event_grammar import EventGrammar, load_grammar
from tokenwire.levels import levels
from tokenwire.spec_files import read_yaml, spec_root

CHAPTER = ROOT / "spec" / "request.md"
TRAINERS_GUIDE = ROOT / "docs" / "guides" / "check-a-rollout-server.md"
PAGES = (
    CHAPTER,
    ROOT / "spec" / "items.md",
    ROOT / "spec" / "dialects" / "README.md",
    ROOT / "spec" / "README.md",
    TRAINERS_GUIDE,
)
_TABLE = re.compile(
    r"(?<=^<!-- table: )(?P<name>.+?) -->\n.*?(?=^<!-- /table -->$)", re.MULTILINE | re.DOTALL
)
_FAMILIES = {
    "SGLang": ("sglang",),
    "vLLM": ("vllm",),
    "others": ("openai", "anthropic", "llama.cpp", "lmdeploy"),
}
_FACTS = {
    "request": {"type": "type"},
    "record": {"type": "type", "unit": "unit", "mode": "in a stream", "absent": "null or absent"},
}
"""The facts about each kind of fields, with their headings."""
_BESIDE_THE_FIELDS = ("model", "logit_bias", "frequency_penalty", "allowed_token_ids", "bad_words")
_NO_FIELDS = {"nulls", "choices", "carrier", "customized_info", "echoed", "empty_is_absent"}
_NO_FIELDS |= {"document", "ends", "ranked"}


@cache
def dialects() -> list[dict[str, Any]]:
    """Return the tables of all dialects."""
    return [read_yaml(path) for path in sorted((spec_root() / "dialects").glob("*.yaml"))]


def _listed(places: str | list[str]) -> list[str]:
    return [places] if isinstance(places, str) else places


def asked(dialect: Mapping[str, Any]) -> dict[str, str]:
    """Return the places of a request's fields in a dialect, by their names."""
    request = dialect["request"]
    fields: dict[str, str] = request["prompt"] | {
        name: request[name] for name in _BESIDE_THE_FIELDS if name in request
    }
    for name, places in {**fields, **request["fields"]}.items():
        fields[name] = ", ".join(f"`{place}`" for place in _listed(places))
    counted = {"logprob_count": "logprobs", "prompt_logprob_count": "logprob_start"}
    numbers = {name: request[by] for by, name in counted.items() if by in request}
    at = {name: place if isinstance(place, str) else place["at"] for name, place in numbers.items()}
    always = dict.fromkeys(request.get("always", ()), "always")
    return always | {name: f"`{place}`, a number" for name, place in at.items()} | fields


def _marked(places: str | list[str], mark: str) -> str:
    return " or ".join(f"{mark}`{to}`{mark}" for to in _listed(places))


def _of_items(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the places of the record's fields in items and events, each with its kind of item or event."""
    found: dict[str, list[str]] = {}
    for kind, row in {**answer["kinds"], "": answer.get("document", {})}.items():
        fields = {name: row[name] for name in ("text", "reasoning") if name in row}
        fields |= {f"tool_calls.{name}": place for name, place in row.get("call", {}).items()}
        fields |= {f"details.{name}": place for name, place in row.get("details", {}).items()}
        finish = row.get("finish", {})
        fields |= {f"finish.{name}": finish[name] for name in ("reason", "matched") if name in finish}
        for name, place in fields.items():
            found.setdefault(name, []).append(
                f"{_marked(place, '')} of `{kind}`" if kind else _marked(place, "*")
            )
    usage = {"usage": _marked(answer["usage"]["at"], "*")}
    return {name: "; ".join(places) for name, places in found.items()} | usage


def recorded(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the places of the record's fields in an answer. Places that begin at the whole document are in
    italics.
    """
    if "kinds" in answer:
        return _of_items(answer)
    found: dict[str, str] = {}
    for holder, mark in ((answer, ""), (answer.get("document", {}), "*")):
        for name, place in holder.items():
            if name not in _NO_FIELDS:
                parts = isinstance(place, dict)
                fields = {f"{name}.{key}": to for key, to in place.items()} if parts else {name: place}
                found |= {key: _marked(to, mark) for key, to in fields.items() if isinstance(to, str | list)}
    return {key: to.replace("`/usage`", "*`/usage`*") if key == "usage" else to for key, to in found.items()}


def _in_both(whole: str | None, stream: str | None) -> str:
    """Return the text for a place in whole answers and in streams."""
    if whole == stream:
        return whole or ""
    if stream is None:
        return f"{whole}; not in streams"
    return f"{whole}; in streams {stream}" if whole else f"in streams {stream}"


def _members(family: str) -> list[dict[str, Any]]:
    """Return the dialects of a family, except those that do not sample. Chapter 21 covers these."""
    members = (dialect for dialect in dialects() if dialect["family"] in _FAMILIES[family])
    return [dialect for dialect in members if "result" not in dialect["answer"]["whole"].get("details", {})]


def _places(kind: str, family: str) -> tuple[Any, ...]:
    """Return the described fields that a family has, and their places in each of its dialects."""
    columns = {}
    for dialect in _members(family):
        answer = dialect["answer"]
        whole, stream = (recorded(answer[mode]) for mode in ("whole", "stream"))
        both = {name: _in_both(whole.get(name), stream.get(name)) for name in {**whole, **stream}}
        columns[dialect["name"]] = both if kind == "record" else asked(dialect)
    described = read_yaml(spec_root() / "fields.yaml")[kind]
    return [name for name in described if any(name in column for column in columns.values())], columns


def _kinds(grammar: EventGrammar) -> dict[str, dict[str, list[str]]]:
    """Return the events within each frame of a grammar, by the kinds of frames that may contain them."""
    kinds: dict[str, dict[str, list[str]]] = {frame: {} for frame in grammar.frames}
    for event, places in grammar.inside.items():
        for frame, of in places.items():
            kinds[frame].setdefault(" or ".join(of), []).append(event)
    return kinds


_OTHERS: Mapping[str, Callable[[str], tuple[Any, ...]]] = {
    "schemas": lambda _: (dialects(), {path.stem for path in (spec_root() / "schemas").glob("*.json")}),
    "policies": lambda _: (policies(),),
    "promises": lambda profile: (levels(), profile),
    "grammar": lambda name: (load_grammar(name), _kinds(load_grammar(name))),
}
"""The values of the tables that do not list fields."""


def table(name: str) -> str:
    """Return a table by its name in a page. Raises KeyError if the name is unknown."""
    kind, _, of = name.partition(" of ")
    if kind not in _FACTS:
        return _filled(kind, *_OTHERS[kind](of))
    if of:
        return _filled("places", *_places(kind, of))
    return _filled("described", read_yaml(spec_root() / "fields.yaml")[kind], _FACTS[kind])


def _filled(macro: str, *values: Any) -> str:
    tables: Any = template("tables").module
    return str(getattr(tables, macro)(*values)).rstrip("\n")


def with_tables(page: str) -> str:
    """Return a page in which all tables are generated again from the data."""
    return _TABLE.sub(lambda match: f"{match['name']} -->\n\n{table(match['name'])}\n\n", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
