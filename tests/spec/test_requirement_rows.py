"""Each row of `spec/requirements/` is well-formed, and the loader reads it as it stands."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tokenwire import requirement
from tokenwire.checks.check import CHECKS
from tokenwire.requirement import Basis, Level, ancestors, load_requirements, load_tolerances

PROFILES = {"core", "metadata", "tito", "robustness", "gateway", "channels", "constraints", "items"} | {
    "results"
}
ORACLES = {
    "bytes",
    "schema",
    "within-response",
    "across-responses",
    "refusal",
    "tokenizer",
    "side-effect",
    "across-targets",
    "script",
    "arrival",
}
REQUIRED = {"id", "level", "sentence", "contract", "basis", "oracle", "witnesses", "upstream"}
OPTIONAL = {
    "profile",
    "applies_when",
    "condition",
    "excluded",
    "kills",
    "implied_by",
    "policies",
    "breaks",
    "tolerances",
}
ADDED_HERE = {"profile", "chapter"}


def test_there_is_a_specification_to_speak_of(rows):
    assert len(rows) >= 40


def test_ids_are_unique_slugs(rows):
    ids = [row["id"] for row in rows]
    assert [token for token in ids if ids.count(token) > 1] == []
    assert [token for token in ids if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", token)] == []


def test_rows_have_the_keys_that_the_readme_explains_and_no_others(rows, prose):
    for row in rows:
        assert REQUIRED <= set(row) <= REQUIRED | OPTIONAL | ADDED_HERE, row["id"]
    for key in REQUIRED | OPTIONAL:
        assert f"`{key}`" in prose["README.md"], key


def test_level_stands_in_the_sentence_and_no_other_does(rows):
    for row in rows:
        stated = set(re.findall(r"\b(MUST|SHOULD|MAY)\b", row["sentence"]))
        assert stated == {row["level"]}, f"{row['id']}: level {row['level']}, sentence says {sorted(stated)}"


def test_a_sentence_has_one_key_word_and_forbids_by_must_not(rows):
    for row in rows:
        assert len(re.findall(r"\b(?:MUST|SHOULD|MAY)\b", row["sentence"])) == 1, row["id"]
        # Where no X "MUST follow", none is required to follow: that forbids nothing.
        assert not re.search(r"^(No|Nothing|Only) |\b[Nn]othing MUST\b", row["sentence"]), row["id"]


def test_a_sentence_is_one_line_that_begins_and_ends_like_one(rows):
    for row in rows:
        sentence = row["sentence"]
        assert "\n" not in sentence, row["id"]
        assert sentence.endswith("."), row["id"]
        assert sentence[0].isupper() or "_" in sentence.split()[0], row["id"]


def test_profile_contract_and_oracle_are_known(rows):
    for row in rows:
        assert row["profile"] in PROFILES, row["id"]
        assert row["contract"] in {"blackbox", "instrumented"}, row["id"]
        assert row["oracle"] in ORACLES, row["id"]


def test_the_oracle_is_what_the_check_decides_by(rows):
    """A check of a run or of a pair compares answers, and one that is called with one answer cannot."""
    alone = {"bytes", "schema", "within-response"}
    for row in rows:
        check = CHECKS[row["id"]]
        if row["oracle"] in alone | {"across-responses"}:
            assert (row["oracle"] in alone) is (check.observe is not None), row["id"]


@pytest.mark.parametrize(
    ("basis", "breaks", "levels"),
    [
        (Basis.SGLANG, "", {"sglang": "MUST", "vllm": "SHOULD", "openai": "SHOULD"}),
        (Basis.OPENAI, "", {"sglang": "MUST", "vllm": "MUST", "openai": "MUST"}),
        (Basis.TOKENWIRE, "", {"sglang": "SHOULD", "vllm": "SHOULD", "openai": "SHOULD"}),
        (Basis.TOKENWIRE, "a client", {"sglang": "MUST", "vllm": "MUST", "openai": "MUST"}),
    ],
)
def test_a_server_is_held_to_what_its_family_promised_or_to_what_any_client_needs(basis, breaks, levels):
    row = replace(load_requirements()["one-finish-per-choice"], basis=(basis,), breaks=breaks)
    assert {family: row.level_for(family) for family in levels} == levels
    assert replace(row, level=Level.MAY).level_for("sglang") is Level.MAY


def test_no_pass_without_a_witness(rows):
    assert [row["id"] for row in rows if type(row["witnesses"]) is not int or row["witnesses"] < 1] == []


def test_capabilities_are_slugs(rows):
    for row in rows:
        for capability in row.get("applies_when", []):
            assert re.fullmatch(r"[a-z]+(-[a-z]+)*", capability), f"{row['id']}: {capability!r}"


def test_upstream_names_a_repository_and_a_thread(rows):
    for row in rows:
        for thread in row["upstream"]:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+ (PR|issue) #\d+", thread), f"{row['id']}: {thread!r}"


def test_a_thread_is_an_issue_or_a_pull_request_but_not_both(rows):
    kinds: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for thread in row["upstream"]:
            repository, kind, number = thread.split()
            kinds.setdefault((repository, number), set()).add(kind)
    assert {thread: kind for thread, kind in kinds.items() if len(kind) > 1} == {}


def test_the_loader_gives_every_row_in_order(rows):
    loaded = list(load_requirements().values())
    assert [(r.id, r.chapter, r.level.value, r.sentence, r.profile, r.witnesses) for r in loaded] == [
        (r["id"], r["chapter"], r["level"], r["sentence"], r["profile"], r["witnesses"]) for r in rows
    ]


def test_every_row_follows_from_rows_that_exist_and_never_from_itself():
    followed = ancestors(load_requirements())
    assert "chat-chunks-share-a-choice-id" in followed["request-id-constant"]
    assert "incremental-ids-are-new" in followed["stream-is-legal-delivery"], "at any distance"
    assert not [name for name, far in followed.items() if name in far]


def test_what_has_to_be_refused_follows_from_a_server_that_fails():
    """One request that is answered with 500 was two blocks of a report."""
    demanded = re.compile(r"(?<!or) (?:MUST|SHOULD) be refused(?!, or)")
    rows = [row for row in load_requirements().values() if demanded.search(row.sentence)]
    assert len(rows) > 15
    assert [row.id for row in rows if "requests-do-not-break-the-server" not in row.implied_by] == []


def test_a_row_that_follows_from_nothing_known_or_from_itself_is_found():
    rows = dict(load_requirements())
    first, second = list(rows)[:2]
    with pytest.raises(ValueError, match="implied_by names unknown requirements: nothing-of-the-kind"):
        ancestors({**rows, first: replace(rows[first], implied_by=("nothing-of-the-kind",))})
    circle = {
        first: replace(rows[first], implied_by=(second,)),
        second: replace(rows[second], implied_by=(first,)),
    }
    with pytest.raises(ValueError, match="implied_by has a cycle"):
        ancestors({**rows, **circle})


def test_every_row_names_whose_contract_it_states(rows):
    for row in rows:
        assert row["basis"], row["id"]
        assert list(load_requirements()[row["id"]].basis) == [Basis(basis) for basis in row["basis"]]


def test_a_row_allows_by_name_what_the_chapter_on_comparisons_shows(rows, prose):
    known = load_tolerances()
    shown = re.findall(r"^\| `(\w+)` \| ([\d.e+-]+) \| (.+) \|$", prose["record.md"], re.MULTILINE)
    assert [(name, float(value), allows) for name, value, allows in shown] == [
        (item.name, item.value, item.allows) for item in known.values()
    ]
    assert {name for row in rows for name in row.get("tolerances", [])} == set(known)


def test_a_row_with_a_tolerance_that_there_is_not_is_refused_on_load(monkeypatch):
    monkeypatch.setattr(requirement, "load_tolerances", dict)
    with pytest.raises(ValueError, match=r"allows '[a-z_]+', which is not in spec/tolerances.yaml"):
        load_requirements.__wrapped__()
