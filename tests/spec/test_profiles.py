"""A published profile keeps its members, and its members keep what they demand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sealed_profiles
import yaml
from sealed_profiles import (
    ALLOWANCES,
    PUBLISHED,
    broken_seals,
    changed_meaning,
    is_as_published,
    meaning,
    sealed,
)

from tokenwire.judging.verdict import Verdict
from tokenwire.levels import levels
from tokenwire.profile import VERSION, known_profiles, load_profiles, standing
from tokenwire.requirement import Level, load_requirements

ROWS = load_requirements()
MEMBER = "shown-text-stays"


@pytest.fixture(scope="module")
def files(spec):
    """The text of every version's file, the newest last."""
    paths = sorted((spec / "profiles").glob("v*.yaml"), key=lambda path: int(path.stem[1:]))
    return {path.stem: path.read_text("utf-8") for path in paths}


def test_what_is_published_is_there_as_it_was(files):
    """Where this fails: put the file back, and write what is new into the next version."""
    assert set(PUBLISHED) <= set(files)
    assert [version for version, file in files.items() if not is_as_published(version, file)] == []


def test_a_profile_holds_every_sentence_of_its_promises():
    """Where this fails, a server that breaks a promise gets a yes: python tests/spec/sealed_profiles.py."""
    promised = {name: level.promised for name, level in levels().items()}
    assert all(promised.values())
    assert {name: sorted(promised[name] - set(ids)) for name, ids in load_profiles().items()} == {
        name: [] for name in promised
    }


def test_a_promise_is_kept_by_sentences_whose_violation_is_a_no():
    """A SHOULD is a warning: the answer to the profile would be yes."""
    promised = {name for level in levels().values() for name in level.promised}
    assert [name for name in sorted(promised) if ROWS[name].level is not Level.MUST] == []
    assert [name for name in sorted(promised) if ROWS[name].excluded or not ROWS[name].kills] == []


def test_the_trainers_profile_notices_a_lost_id():
    """The first version did not: a server that lost an id of each stream got a yes."""
    lost = {"ids-are-counted", "stream-ids-equal-whole", "incremental-ids-are-new"}
    assert not lost & set(load_profiles(1)["rl"])
    assert lost <= set(load_profiles()["rl"])


def test_the_version_that_is_meant_is_the_newest(files):
    assert max(int(version[1:]) for version in files) == VERSION


def test_a_file_says_which_version_it_is(files):
    assert {version: yaml.safe_load(file)["version"] for version, file in files.items()} == {
        version: version for version in files
    }


def test_the_rows_demand_what_they_demanded_when_they_were_published(files):
    assert [words for file in files.values() for words in broken_seals(file, ROWS)] == []


def test_the_newest_version_lists_exactly_the_rows_that_stand(files):
    """Where this fails, a row is new or changed: python tests/spec/sealed_profiles.py."""
    newest = yaml.safe_load(files[max(files, key=lambda version: int(version[1:]))])["profiles"]
    expected = yaml.safe_load(sealed(ROWS.values(), "any"))["profiles"]
    listed = {
        profile: {name: digits for name, digits in members.items() if not ROWS[name].excluded}
        for profile, members in newest.items()
    }
    differing = {
        name
        for profile in {*listed, *expected}
        for name, _ in {*listed.get(profile, {}).items()} ^ {*expected.get(profile, {}).items()}
    }
    assert not differing, f"new or changed: {sorted(differing)}; python tests/spec/sealed_profiles.py"


@pytest.mark.parametrize(
    "changed",
    [
        {"sentence": ROWS[MEMBER].sentence.replace("ids", "token ids")},
        {"level": Level.SHOULD},
        {"applies_when": ()},
        {"contract": "instrumented"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_row_that_demands_something_else_breaks_its_seal(files, changed):
    assert replace(ROWS[MEMBER], **changed) != ROWS[MEMBER]
    [words] = broken_seals(files["v1"], {**ROWS, MEMBER: replace(ROWS[MEMBER], **changed)})
    assert words.startswith(f"{MEMBER} demands something else than in core v1; ")
    assert "a new id in a new version" in words


def test_a_row_that_is_taken_away_breaks_its_seal_and_one_that_is_withdrawn_does_not(files):
    [words] = broken_seals(files["v1"], {name: row for name, row in ROWS.items() if name != MEMBER})
    assert words.startswith(f"{MEMBER}, which core v1 lists, has no row any more; ")
    withdrawn = replace(ROWS[MEMBER], excluded="a correct server violates it", kills=(), witnesses=9)
    assert list(broken_seals(files["v1"], {**ROWS, MEMBER: withdrawn})) == []


def test_a_member_that_is_taken_out_of_a_published_file_is_seen(files):
    lines = files["v1"].splitlines(keepends=True)
    shorter = "".join(line for line in lines if MEMBER not in line)
    assert list(broken_seals(shorter, ROWS)) == []
    assert not is_as_published("v1", shorter)
    assert is_as_published("v99", shorter)


def test_sentences_mean_what_they_meant_when_they_were_published(spec):
    """Where this fails: what a number or a word means belongs to the version, as its sentences do."""
    for path in (spec / "profiles").glob("meaning-of-v*.yaml"):
        assert list(changed_meaning(yaml.safe_load(path.read_text("utf-8")), meaning())) == []
    assert all((spec / "profiles" / f"meaning-of-{version}.yaml").exists() for version in PUBLISHED)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("tolerances", "rounding", 1e-7),
        ("terms", "Comparisons", "other words"),
        ("policies", "vllm-chat", {}),
    ],
)
def test_another_meaning_breaks_the_seal(kind, name, value):
    now = meaning()
    words = [*changed_meaning(now, {**now, kind: {**now[kind], name: value}})]
    assert words
    assert all(name in word and "a new id in a new version" in word for word in words)


def test_a_dialect_may_have_more_finish_types():
    now = meaning()
    policy = now["policies"]["vllm-chat"]
    more = {**policy, "finish_types": [*policy["finish_types"], "eos"]}
    assert list(changed_meaning(now, {**now, "policies": {**now["policies"], "vllm-chat": more}})) == []


@pytest.mark.parametrize("name", sorted(ALLOWANCES))
def test_a_dialect_may_allow_more_and_not_take_it_back(name):
    now = meaning()
    policies = now["policies"]
    more, less = ({**policies["vllm-chat"], name: allowed} for allowed in (True, False))
    allowing, forbidding = ({**now, "policies": {**policies, "vllm-chat": policy}} for policy in (more, less))
    assert list(changed_meaning(now, allowing)) == []
    assert list(changed_meaning(allowing, forbidding)) != []


def test_a_published_version_is_not_written_again(files, monkeypatch, tmp_path):
    """What is new makes the next version, and changes that one until it is published."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    listed = {name for members in yaml.safe_load(files["v1"])["profiles"].values() for name in members}
    rows = {name: row for name, row in ROWS.items() if name in listed}
    published = sealed(rows.values(), "v1")
    monkeypatch.setattr(sealed_profiles, "PUBLISHED", {"v1": "a digest"})
    (folder / "v1.yaml").write_text(published, "utf-8")
    monkeypatch.setattr(sealed_profiles, "spec_root", lambda: tmp_path)
    monkeypatch.setattr(sealed_profiles, "meaning", dict)
    monkeypatch.setattr(sealed_profiles, "load_requirements", lambda: rows)
    sealed_profiles.main()
    assert [path.name for path in folder.iterdir()] == ["v1.yaml"], "nothing is new"
    for name in ("a-new-row", "another-new-row"):
        rows[name] = replace(ROWS[MEMBER], id=name)
        sealed_profiles.main()
        assert (folder / "v1.yaml").read_text("utf-8") == published
        draft = (folder / "v2.yaml").read_text("utf-8")
        assert list(broken_seals(draft, rows)) == []
        members = yaml.safe_load(draft)["profiles"].values()
        assert {name for member in members for name in member} == set(rows)


def test_a_violated_profile_is_not_hidden_as_not_shown() -> None:
    """Red findings on a server without tool calls are findings against its agents, too."""
    violated = next(name for name in known_profiles()["agents"] if ROWS[name].level is Level.MUST)
    found = standing("agents", {violated: Verdict.FAIL}, {"openai"})
    assert found.missing
    assert found.shown
    assert not standing("agents", {violated: Verdict.UNSUPPORTED}, {"openai"}).shown
