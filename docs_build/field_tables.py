"""The tables of `spec/request.md`: fields of a request and of the record, with their names in every dialect;
the grammars of `spec/items.md`; the table of `spec/dialects/README.md`: what a dialect may choose; and the
promises of profiles, in `spec/README.md` and in the guide for trainers.

python -m docs_build.field_tables           writes them anew
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from docs_build.dialect_choices import policies
from docs_build.page import in_cell
from docs_build.published import ROOT
from tokenwire.dialects.event_grammar import load_grammar
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
_BESIDE_THE_FIELDS = ("model", "logit_bias", "frequency_penalty")
_NO_FIELDS = {
    "nulls",
    "choices",
    "carrier",
    "customized_info",
    "echoed",
    "empty_is_absent",
    "document",
    "ends",
    "ranked",
}


@cache
def dialects() -> list[dict[str, Any]]:
    """The tables of all dialects."""
    return [read_yaml(path) for path in sorted((spec_root() / "dialects").glob("*.yaml"))]


def asked(dialect: Mapping[str, Any]) -> dict[str, str]:
    """Return the places of a request's fields in a dialect, by their names."""
    request = dialect["request"]
    fields = {**request["prompt"], **{name: request[name] for name in _BESIDE_THE_FIELDS if name in request}}
    for name, places in {**fields, **request["fields"]}.items():
        fields[name] = ", ".join(f"`{place}`" for place in ([places] if isinstance(places, str) else places))
    always = dict.fromkeys(request.get("always", ()), "always")
    counted = {"logprob_count": "logprobs", "prompt_logprob_count": "logprob_start"}
    numbers = {field: f"`{_place(request[by])}`, a number" for by, field in counted.items() if by in request}
    return always | numbers | fields


def _place(place: str | Mapping[str, Any]) -> str:
    return place if isinstance(place, str) else place["at"]


def _of_items(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the places of the record's fields in items and events, each with the kind that has it."""
    found: dict[str, list[str]] = {}
    kinds = {kind: (row, "") for kind, row in answer["kinds"].items()} | {
        "": (answer.get("document", {}), "*")
    }
    for kind, (row, mark) in kinds.items():
        fields = {name: row[name] for name in ("text", "reasoning") if name in row}
        fields |= {f"tool_calls.{name}": place for name, place in row.get("call", {}).items()}
        fields |= {f"details.{name}": place for name, place in row.get("details", {}).items()}
        finish = row.get("finish", {})
        fields |= {f"finish.{name}": finish[name] for name in ("reason", "matched") if name in finish}
        for name, place in fields.items():
            places = " or ".join(
                f"{mark}`{to}`{mark}" for to in ([place] if isinstance(place, str) else place)
            )
            found.setdefault(name, []).append(f"{places} of `{kind}`" if kind else places)
    usage = {"usage": f"*`{answer['usage']['at']}`*"}
    return {name: "; ".join(places) for name, places in found.items()} | usage


def recorded(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the places of the record's fields in an answer; in italics those that begin at the
    whole document.
    """
    if "kinds" in answer:
        return _of_items(answer)
    found: dict[str, str] = {}
    for holder, mark in ((answer, ""), (answer.get("document", {}), "*")):
        for name, place in holder.items():
            if name not in _NO_FIELDS:
                named = (
                    {f"{name}.{key}": to for key, to in place.items()}
                    if isinstance(place, dict)
                    else {name: place}
                )
                places = {key: [to] if isinstance(to, str) else to for key, to in named.items()}
                found |= {
                    key: " or ".join(f"{mark}`{to}`{mark}" for to in several)
                    for key, several in places.items()
                    if isinstance(several, list)
                }
    return {key: to.replace("`/usage`", "*`/usage`*") if key == "usage" else to for key, to in found.items()}


def _in_both(whole: str | None, stream: str | None) -> str:
    """A place in whole answers and in streams."""
    if whole == stream:
        return whole or ""
    if stream is None:
        return f"{whole}; not in streams"
    return f"{whole}; in streams {stream}" if whole else f"in streams {stream}"


def _names(rows: Iterable[str], columns: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield f"| field | {' | '.join(f'`{name}`' for name in columns)} |"
    yield "|---|" + "---|" * len(columns)
    for row in rows:
        if any(row in column for column in columns.values()):
            yield f"| {row} | {' | '.join(column.get(row, '') for column in columns.values())} |"


def _members(families: Iterable[str]) -> list[dict[str, Any]]:
    """Return the dialects of some families, except those that sample nothing: chapter 21 is about them."""
    members = (dialect for dialect in dialects() if dialect["family"] in families)
    return [dialect for dialect in members if "result" not in dialect["answer"]["whole"].get("details", {})]


def _described(kind: str) -> Iterator[str]:
    rows = read_yaml(spec_root() / "fields.yaml")[kind]
    facts = ("type", "unit", "mode", "absent") if kind == "record" else ("type",)
    heads = {"mode": "in a stream", "absent": "null or absent"}
    yield f"| field | what it says | {' | '.join(heads.get(fact, fact) for fact in facts)} |"
    yield "|---|---|" + "---|" * len(facts)
    for name, row in rows.items():
        yield f"| {name} | {in_cell(row['says'])} | {' | '.join(in_cell(row.get(f, '')) for f in facts)} |"


def _schemas() -> Iterator[str]:
    yield "| dialect | endpoint | request | whole answer | event | refusal |"
    yield "|---|---|---|---|---|---|"
    for dialect in dialects():
        names = dialect["schemas"]
        request = names["whole"].removesuffix("-response") + "-request"
        exists = (spec_root() / "schemas" / f"{request}.json").exists()
        cells = [request if exists else "", names["whole"], names["stream"], names["error"]]
        links = (f"[{name}](schemas/{name}.json)" if name else "" for name in cells)
        endpoint = dialect["endpoint"]
        yield f"| `{dialect['name']}` | `{endpoint['methods'][0]} {endpoint['path']}` | {' | '.join(links)} |"


def _grammar(name: str) -> Iterator[str]:
    """Render the grammar of a stream as a tree: openings and closings, and the events within."""
    grammar = load_grammar(name)
    yield "```"
    yield f"begins   {grammar.begins}"
    for frame, rule in grammar.frames.items():
        indent = " " * (4 if rule.within else 2)
        overlaps = ", several at once" if rule.overlaps else ""
        yield f"{indent}{frame:6} {rule.opens} … {rule.closes}, numbered by {rule.index}{overlaps}"
        kinds: dict[tuple[str, ...], list[str]] = {}
        for event, places in grammar.inside.items():
            if frame in places:
                kinds.setdefault(places[frame], []).append(event)
        for kind, events in kinds.items():
            yield f"{indent}  of kind {' or '.join(kind)}: {', '.join(events)}"
    if grammar.once:
        yield f"once     {grammar.once}, when all of them are closed"
    if grammar.within:
        yield f"anywhere {', '.join(grammar.within)}"
    ends = [f"{event} (status {status})" if status else event for event, status in grammar.ends.items()]
    ends += [f"{behind} behind {event}" for event, behind in grammar.behind.items()]
    yield f"ends     {' or '.join(ends)}"
    yield "```"


def _promises(profile: str) -> Iterator[str]:
    """Render the promises to a client, with the sentences that keep them."""
    yield "| what a client relies on | sentences |"
    yield "|---|---|"
    for words, names in levels()[profile].promises.items():
        yield f"| {words} | {', '.join(f'`{name}`' for name in names)} |"


def _every_promise() -> Iterator[str]:
    """The promises of all profiles."""
    yield "| profile | what a client relies on | sentences |"
    yield "|---|---|---|"
    for profile, level in levels().items():
        for words, names in level.promises.items():
            yield f"| `{profile}` | {words} | {', '.join(f'`{name}`' for name in names)} |"


def table(name: str) -> str:
    """A table by its name in the chapter. Raises KeyError for a name that there is none of."""
    fields = read_yaml(spec_root() / "fields.yaml")
    if name == "schemas":
        return "\n".join(_schemas())
    if name == "promises":
        return "\n".join(_every_promise())
    if name == "policies":
        return "\n".join(policies())
    if name in fields:
        return "\n".join(_described(name))
    kind, _, family = name.partition(" of ")
    if kind == "grammar":
        return "\n".join(_grammar(family))
    if kind == "promises":
        return "\n".join(_promises(family))
    columns = {}
    for dialect in _members(_FAMILIES[family]):
        answer = dialect["answer"]
        if kind == "record":
            whole, stream = recorded(answer["whole"]), recorded(answer["stream"])
            places = {item: _in_both(whole.get(item), stream.get(item)) for item in {**whole, **stream}}
        else:
            places = asked(dialect)
        columns[dialect["name"]] = places
    return "\n".join(_names(fields[kind], columns))


def with_tables(page: str) -> str:
    """A page with its tables as the data say."""
    return _TABLE.sub(lambda match: f"{match['name']} -->\n\n{table(match['name'])}\n\n", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
