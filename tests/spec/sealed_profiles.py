"""The versions of the profiles: each member with a seal over what it demands, and whether the rows keep it.

    python tests/spec/sealed_profiles.py     writes the version that is not published yet, from the rows

A version that is published stays as it is: what is new makes the next one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from tokenwire.levels import levels
from tokenwire.requirement import (
    Requirement,
    load_requirements,
    load_tolerances,
)
from tokenwire.spec_files import spec_root

PUBLISHED = {
    "v1": "1a10b3b01a91f1c363fb03c9404fe8c586b2a2a060b206e00ee022b4dc1a8208",
    "v2": "c071276ba26f3f4126fe7cfef982ad4633a0ede5cff9ebb6ec46f067fc8d44b0",
}
"""SHA-256 of each file that is published. A line is added with a version, and never changed."""
WAY_OUT = (
    "what is published stays: leave the row as it was, or withdraw it (`excluded:`), and give the new demand "
    "a new id in a new version (spec/README.md, Versions)"
)
ALLOWANCES = frozenset(
    {
        "earlier_reasoning_is_optional",
        "sampled_besides_top_logprobs",
        "request_id_prefix_is_optional",
        "default_budget_exceeds",
    }
)
"""Policies that only allow more, or that only rows of a later version read.

A target that conformed to a version conforms to it still.
"""
TERMS = ("Terms", "Comparisons", "Refusals")
"""The sections of chapter 1 that say what the words of sentences mean."""
MEANING_HEADING = """\
# Frozen with the version in the name of the file: what its sentences mean besides their words. Tolerances
# and terms stay as they are; a dialect may list more finish types, and choose nothing else anew.
"""
_HEADING = """\
# Frozen: each member with the seal of what it demands (spec/README.md, Profiles). A requirement that is added
# or worded anew enters the next version, never this one.
"""


def seal(row: Requirement) -> str:
    """Twelve hexadecimal digits over all of a row that decides whether a target conforms to it."""
    demands = [row.id, row.level.value, row.sentence, row.contract, sorted(row.applies_when)]
    return hashlib.sha256(json.dumps(demands).encode()).hexdigest()[:12]


def sealed(rows: Iterable[Requirement], version: str) -> str:
    """The file of a version that has all of these rows but the withdrawn ones."""
    members: dict[str, list[Requirement]] = {}
    rows = [row for row in rows if not row.excluded]
    for profile in levels():
        if member := [row for row in rows if profile in row.profiles]:
            members[profile] = member
    lines = [f"version: {version}", "profiles:"]
    for profile, member in members.items():
        lines += [f"  {profile}:", *(f'    {row.id}: "{seal(row)}"' for row in member)]
    return _HEADING + "\n".join(lines) + "\n"


def broken_seals(file: str, rows: Mapping[str, Requirement]) -> Iterator[str]:
    """What the rows no longer keep of a version, a line for each member. `file` is its text."""
    version = yaml.safe_load(file)
    for profile, members in version["profiles"].items():
        for name, expected in members.items():
            if name not in rows:
                yield f"{name}, which {profile} {version['version']} lists, has no row any more; {WAY_OUT}"
            elif seal(rows[name]) != expected:
                yield f"{name} demands something else than in {profile} {version['version']}; {WAY_OUT}"


def meaning() -> dict[str, Any]:
    """What decides a verdict beside the rows: tolerances, the words of terms, the choices of dialects."""
    chapter = (spec_root() / "record.md").read_text("utf-8")
    sections = {words.partition("\n")[0]: words for words in chapter.split("\n## ")}
    tables = sorted((spec_root() / "dialects").glob("*.yaml"))
    return {
        "tolerances": {name: tolerance.value for name, tolerance in load_tolerances().items()},
        "terms": {name: _digest(sections[name])[:12] for name in TERMS},
        "policies": {path.stem: yaml.safe_load(path.read_text("utf-8")).get("policy", {}) for path in tables},
    }


def changed_meaning(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What a version's sentences do not mean any more, a line for each. What is new means nothing to it."""
    for kind in ("tolerances", "terms"):
        for name, was in before[kind].items():
            if now[kind].get(name) != was:
                yield f"{kind}: {name} was {was!r}, and is {now[kind].get(name)!r}; {WAY_OUT}"
    for dialect, chosen in before["policies"].items():
        policy = now["policies"].get(dialect, {})
        for name in sorted({*chosen, *policy}):
            was, is_now = chosen.get(name), policy.get(name)
            grown = name == "finish_types" and set(was or ()) <= set(is_now or ())
            allowed = name in ALLOWANCES and (not was or is_now is True)
            if was != is_now and not grown and not allowed:
                yield f"{dialect}: {name} was {was!r}, and is {is_now!r}; {WAY_OUT}"


def is_as_published(version: str, file: str) -> bool:
    """Whether the text of a version's file is the one that was published; so is every draft."""
    return PUBLISHED.get(version, _digest(file)) == _digest(file)


def _digest(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()


def version_to_write(rows: Iterable[Requirement]) -> str:
    """The version that takes what is new: the newest, while that is a draft, or the next one. Empty where the
    newest is published and lists the rows as they are.
    """
    files = sorted((spec_root() / "profiles").glob("v*.yaml"), key=lambda path: int(path.stem[1:]))
    newest = files[-1].stem
    if newest not in PUBLISHED:
        return newest
    as_it_is = files[-1].read_text("utf-8") == sealed(rows, newest)
    return "" if as_it_is else f"v{int(newest[1:]) + 1}"


def main() -> None:
    """Write the file of the version that takes what is new."""
    rows = list(load_requirements().values())
    if version := version_to_write(rows):
        (spec_root() / "profiles" / f"{version}.yaml").write_text(sealed(rows, version), "utf-8")
        words = MEANING_HEADING + yaml.safe_dump(meaning(), sort_keys=True, width=120)
        (spec_root() / "profiles" / f"meaning-of-{version}.yaml").write_text(words, "utf-8")


if __name__ == "__main__":
    main()
