"""Every capture is judged as the expected verdicts beside it say, exchange by exchange.

A verdict that changes here changes for every user of the suite: `tokenwire replay --diff` tells what is
different and shows the first evidence. Look at the event, then at the sentence. Where the new verdict is
right, `tokenwire replay --diff --update` writes it down.
"""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_build import results

from tokenwire.baselines.expected import Judged, difference, expected_file, judged, read_expected
from tokenwire.judging.causes import causes
from tokenwire.judging.verdict import Verdict
from tokenwire.report.signatures import looks_like
from tokenwire.requirement import load_requirements

FIXTURES = Path(__file__).parents[2] / "fixtures"
MANIFEST = json.loads((FIXTURES / "manifest.json").read_text("utf-8"))["files"]
CAPTURES = sorted(path.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("*/*/*.jsonl.gz"))
LIMIT = 22_000_000
"""Bytes that all fixtures together may take."""


@cache
def judged_now(capture: str) -> Judged:
    [found] = judged(FIXTURES / capture)
    if capture in results.manifest():
        results.keep(capture, found)  # for the build of the site, which shows each
    return found


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_capture_is_judged_as_before(capture: str) -> None:
    assert difference(judged_now(capture)) == [], (
        "tokenwire replay --diff --update fixtures writes down what is right"
    )


def test_no_expected_verdicts_are_left_over() -> None:
    files = {path.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("*/*/*.expected.yaml")}
    assert files == {str(expected_file(capture)) for capture in CAPTURES}


def test_the_manifest_tells_of_every_capture() -> None:
    assert sorted(MANIFEST) == CAPTURES
    for name, entry in MANIFEST.items():
        assert entry["sha256"] == hashlib.sha256((FIXTURES / name).read_bytes()).hexdigest(), name
        assert entry["version"] == name.split("/")[1], f"{name}: a release with two names has two columns"
        assert {"server", "version", "flags", "model", "recorded", "licence", "exchanges"} <= entry.keys()
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) <= LIMIT


def test_every_column_of_the_results_has_a_name_of_its_own() -> None:
    """Captures of servers with faults are no columns."""
    titles = {name: entry.get("title", "") for name, entry in MANIFEST.items() if "fault" not in entry}
    assert all(titles.values()), titles
    assert len(set(titles.values())) == len(titles)


OF_THE_REFERENCE = {name: entry for name, entry in MANIFEST.items() if entry["model"].startswith("builtin:")}


@pytest.mark.parametrize("capture", OF_THE_REFERENCE)
def test_a_fault_is_seen_in_its_recording_and_nothing_without_one(capture: str) -> None:
    """The bugs of SGLang PRs #27205, #23751 and #25634, before and after they were mended."""
    fault = OF_THE_REFERENCE[capture].get("fault")
    blamed = {row.id for row in load_requirements().values() if fault in row.kills}
    assert bool(violated(capture) & blamed) is bool(fault)
    assert fault or not violated(capture)


@pytest.mark.parametrize("capture", OF_THE_REFERENCE)
def test_a_fault_looks_like_no_other_bug_than_its_own(capture: str) -> None:
    """A violation of a row that names a thread is not taken for that thread's bug by itself."""
    found = {thread for judgement in judged_now(capture).judgements for thread in looks_like(judgement)}
    assert found <= set(OF_THE_REFERENCE[capture].get("upstream", ()))


TITO = {"asked-or-refused", "prompt-tokens-count-the-input-ids", "malformed-input-ids-refused"}
CUSTOMIZED = {"customized-info-whole", "whole-accumulates", "coalescing-keeps-all"}


def violated(capture: str) -> set[str]:
    outcomes = read_expected(FIXTURES / expected_file(capture)).outcomes
    return {name for name, outcome in outcomes.items() if outcome.verdict in {Verdict.FAIL, Verdict.WARN}}


@pytest.mark.parametrize("case", ["cumul_int1", "incr_int1", "incr_int4"])
def test_the_release_before_the_three_changes_is_red_and_the_one_with_them_is_not(case: str) -> None:
    """SGLang PRs #27205 and #23751: the old release breaks what the new one keeps."""
    assert violated(f"sglang/0.5.12.post1/{case}.jsonl.gz") >= TITO | CUSTOMIZED
    # The newer release ignores `return_token_ids`, a field that came later (PR #30917), and its errors show
    # lines of its source and the times of its chunks differ, as those of the old one do.
    newer = {"asked-or-refused", "created-is-constant", "errors-keep-internals"}
    assert violated(f"sglang/0.5.13/{case}.jsonl.gz") == newer


LIVE = [name for name, entry in MANIFEST.items() if entry.get("live")]
DEFECTS = yaml.safe_load((FIXTURES / "defects.yaml").read_text("utf-8"))


def shown_by(defect: dict[str, Any]) -> list[str]:
    """The live captures in which a defect is seen."""
    return [name for name in LIVE if any(fnmatch(name, f"{pattern}.jsonl.gz") for pattern in defect["seen"])]


@pytest.mark.parametrize("capture", LIVE)
def test_every_violation_of_a_live_server_is_a_defect_that_was_proved(capture: str) -> None:
    """Nothing is blamed on a server that `fixtures/defects.yaml` does not say it does."""
    proved = {
        requirement
        for defect in DEFECTS
        if capture in shown_by(defect)
        for requirement in (*defect["violates"], *defect.get("therefore", ()))
    }
    assert violated(capture) <= proved


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect["does"][:60])
def test_a_defect_of_a_live_server_is_found(defect: dict[str, Any]) -> None:
    """In one capture at least, with each requirement that it violates or breaks besides."""
    assert set(defect) <= {"does", "source", "threads", "seen", "facts", "violates", "therefore"}
    for pattern in defect["seen"]:
        assert any(fnmatch(name, f"{pattern}.jsonl.gz") for name in LIVE), pattern
    found = {requirement for name in shown_by(defect) for requirement in violated(name)}
    assert {*defect["violates"], *defect.get("therefore", ())} <= found


STUDIED = [
    name
    for name in LIVE
    for subject in (
        "channels-",
        "items",
        "messages",
        "constraints",
        "tool-choice",
        "caches",
        "weights",
        "sessions",
        "results",
    )
    if fnmatch(name, f"*/{subject}*")
]
"""Captures of which a study numbers what they show."""


def violations(capture: str) -> set[tuple[str, str]]:
    """Each requirement that is violated in a capture, with each exchange that violates it."""
    outcomes = read_expected(FIXTURES / expected_file(capture)).outcomes
    return {(name, exchange) for name in violated(capture) for exchange in outcomes[name].exchanges}


def explained(capture: str, defect: dict[str, Any], patterns: list[str]) -> set[tuple[str, str]]:
    """The violations in a capture that a defect explains, in exchanges with such names."""
    broken = {*defect["violates"], *defect.get("therefore", ())} if capture in shown_by(defect) else set()
    return {
        (name, exchange)
        for name, exchange in violations(capture)
        if name in broken and any(fnmatch(exchange, pattern) for pattern in patterns)
    }


@pytest.mark.parametrize("capture", STUDIED)
def test_each_violation_that_was_studied_has_the_number_of_a_fact(capture: str) -> None:
    """Not only each requirement: each exchange that violates it."""
    numbered = [
        explained(capture, defect, patterns)
        for defect in DEFECTS
        for patterns in defect.get("facts", {}).values()
    ]
    assert violations(capture) == set().union(*numbered)


@pytest.mark.parametrize(
    "defect", [defect for defect in DEFECTS if "facts" in defect], ids=lambda defect: defect["does"][:60]
)
def test_a_fact_explains_what_was_recorded(defect: dict[str, Any]) -> None:
    """Each of its patterns."""
    for pattern in (pattern for patterns in defect["facts"].values() for pattern in patterns):
        assert any(explained(capture, defect, [pattern]) for capture in STUDIED), pattern


TOLD_WHAT_TO_SAY = {
    "sglang/0.5.23/script-incremental": {
        "st-overlap-abab/g-w": {"script-ids-are-said", "script-match-is-right", "script-text-is-right"},
        "re-emoji/g-s4": {"nothing-follows-a-stop-pattern"},
        "st-at-51/g-w": {"script-text-is-right", "text-is-what-its-ids-say"},
        "ut-cjk/g-s4": {"script-text-is-right", "script-text-so-far-is-right"},
        "st-special-hidden/g-w": {"script-ids-are-said", "script-match-is-right"},
        "st-across-hidden/g-s1": {"script-ids-are-said", "script-text-so-far-is-right"},
        "st-eos-text/g-w": {"script-match-is-right"},
        "st-fffd/g-w": {"script-ids-are-said"},
        "u-emoji/n2-h-s1": {"chat-chunks-share-a-choice-id"},
        "lp-words/h-sD": {"chat-logprobs-count-the-tokens"},
        "bu-0/c-w": {"errors-keep-internals"},
        "b-ff-60/g-s1": set(),  # text may wait for ever behind bytes that are none
    },
    "sglang/0.5.23/script-incremental-4": {
        "cjb-20/g-s5": {"script-text-is-right", "script-text-so-far-is-right"},
        "sw-tag/g-w": {"script-ids-are-said", "nothing-follows-a-stop-string"},
        "sw-re-at-50/g-s1": {"text-is-what-its-ids-say"},
        "sw-with-longer-beside/g-w": set(),
    },
    "sglang/0.5.23/script-cumulative": {
        "batch-ends+lp/g-s1": {"counter-follows-ids", "logprob-counter-follows"}
    },
    "sglang/0.5.13/script-incremental": {
        "bu-21/g-w": {"script-finish-is-right"},
        "st-budget-exact/g-w": {"script-finish-is-right", "script-text-is-right"},
        "u-emoji/c-sD": {"script-text-is-right"},
        "lp-words/g-w": {"requests-do-not-break-the-server"},
    },
    "sglang/0.5.12.post1/script-incremental": {"lp-60/g-w": {"customized-info-whole"}},
    "vllm/0.32.0-cpu/script": {
        "cut-emoji-3/c-w": {"incomplete-tail-is-shown"},
        "u-fffd-last/c-w": {"script-text-is-right", "incomplete-tail-is-shown"},
        "st-fffd/i-w": {"script-ids-are-said"},
        "pe-f09f-ascii/c-s4": {"script-text-is-right", "script-text-so-far-is-right"},
        "pe-f09f-stop/i-w": {"script-ids-are-said", "named-stop-was-asked-and-spelled"},
        "batch-ends+lp/c-w": {"top-logprobs-belong-to-position"},
        "long-loop-700/abort-50-c-s16": {"choices-complete"},
        "st-overlap-abab/c-w": set(),
    },
}
"""What was found of servers whose right answers are known, at least: an exchange, and what it violates."""


@pytest.mark.parametrize("capture", TOLD_WHAT_TO_SAY)
def test_what_known_texts_show_is_found_where_it_is(capture: str) -> None:
    outcomes = read_expected(FIXTURES / f"{capture}.expected.yaml").outcomes
    for exchange, rows in TOLD_WHAT_TO_SAY[capture].items():
        found = {row for row, outcome in outcomes.items() if exchange in outcome.exchanges}
        assert found >= rows, exchange
        assert rows or not found, exchange


@pytest.mark.parametrize("capture", ["sglang/0.5.23/script-incremental", "vllm/0.32.0-cpu/script"])
def test_right_answers_to_known_texts_violate_nothing(capture: str) -> None:
    kept = yaml.safe_load((FIXTURES / "scripts.yaml").read_text("utf-8"))[capture]["keep"]
    right = (*kept["texts that arrive as they were said"].split(), *kept["stops that are found"].split())
    outcomes = read_expected(FIXTURES / f"{capture}.expected.yaml").outcomes
    blamed = {exchange for outcome in outcomes.values() for exchange in outcome.exchanges}
    wrong = {exchange for exchange in blamed if any(fnmatch(exchange, pattern) for pattern in right)}
    assert wrong == set()


CAUSES = {
    "sglang/0.5.23/live-cumulative-overlap.jsonl.gz": {
        "chat-chunks-share-a-choice-id": {"request-id-constant"},
        "counter-follows-ids": {
            "coalescing-keeps-all",
            "logprob-counter-follows",
            "stream-is-legal-delivery",
        },
        "requests-do-not-break-the-server": {"misfitting-lists-refused", "unreadable-bodies-refused"},
        "chat-logprobs-count-the-tokens": {"stream-series-equal-whole"},
    },
    "sglang/0.5.13/live-incremental.jsonl.gz": {
        "stream-text-equals-whole": {"stream-is-legal-delivery"},
        "asked-or-refused": {"prompt-ids-in-every-choice"},
        "chat-chunks-share-a-choice-id": {"request-id-constant"},
    },
    "smg/1.13.0/live-grpc-before-vllm.jsonl.gz": {
        "one-mode-per-stream": {"stream-text-equals-whole", "stream-is-legal-delivery"},
        "incremental-ids-are-new": {
            "budget-is-kept",
            "counter-follows-ids",
            "ids-are-counted",
            "nothing-follows-a-stop-id",
            "stream-ids-equal-whole",
        },
        "finish-type-is-known": {"events-fit-schema", "stream-finish-equals-whole"},
    },
    "litellm/1.106.2/live-four-endpoints.jsonl.gz": {
        "choices-complete": {"finish-comes-last", "keys-do-not-come-and-go", "stream-text-equals-whole"},
        "requests-do-not-break-the-server": {"clashing-constraints-refused"},
    },
    "llama-cpp-python/0.3.36/live-parrot-quick.jsonl.gz": {
        "echo-logprobs-cover-the-prompt": {"script-logprobs-are-right", "script-top-logprobs-are-right"},
    },
}
"""What follows from what in the answers of live servers, at least."""


@pytest.mark.parametrize("capture", CAUSES)
def test_one_defect_of_a_live_server_is_one_cause(capture: str) -> None:
    judgements = judged_now(capture).judgements
    following: dict[str, set[str]] = {}
    for effect, cause in causes(judgements).folded.items():
        names = judgements[cause].requirement.id, judgements[effect].requirement.id
        following.setdefault(names[0], set()).add(names[1])
    for cause_id, effects in CAUSES[capture].items():
        assert effects <= following[cause_id], cause_id
