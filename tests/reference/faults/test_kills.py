"""A check that no fault turns red is no check: each fault, and the requirements that must go red for it.

The suite asks the reference engine with the fault's header, live and in this process. To be quick, each fault
is asked in the first delivery in which it shows, and only for the scenarios that show what it violates.
"""

from __future__ import annotations

import asyncio

import pytest

from tokenwire.judge import judge
from tokenwire.requirement import load_requirements
from tokenwire.run import Plan, Progress, Unreached, interrogate
from tokenwire.verdict import Verdict
from tokenwire_reference.faults.catalogue import INCREMENTAL, KnownFault, load_faults

FAULTS = load_faults()

SHOWN_BY = {
    "batch-items-stand-alone": ("batch-and-singles",),
    "cache-changes-nothing": ("cold-and-warm",),
    "events-do-not-grow": ("long-stream",),
    "neighbours-change-nothing": ("neighbours",),
    "preemption-changes-nothing": ("preempted",),
    "abort-ends-the-request": ("abort",),
    "abort-is-told": ("abort",),
    "abort-of-nobody-is-no-failure": ("abort-of-one",),
    "abort-spares-others": ("abort-of-one",),
    "aborted-answer-is-a-prefix": ("abort",),
    "aborted-ids-are-counted": ("abort",),
    "id-in-use-spares-the-first": ("id-in-use",),
    "left-request-is-ended": ("disconnect-whole",),
    "left-stream-is-ended": ("disconnect",),
    "answer-fits-schema": ("logprob-families",),
    "asked-or-refused": ("batch-of-prompts", "chat-ids", "chat-logprobs", "prompt-ids", "samples"),
    "cached-details-add-up": ("cached-prompt",),
    "chat-chunks-share-a-choice-id": ("chat-messages",),
    "chat-content-never-null": ("chat-empty-text",),
    "chat-ids-agree-with-meta-info": ("chat-ids",),
    "chat-logprobs-count-the-tokens": ("chat-logprobs",),
    "chat-logprobs-have-content": ("chat-logprobs",),
    "chat-logprobs-spell-the-text": ("chat-logprobs",),
    "chat-meta-info-in-every-choice": ("chat-ids",),
    "chat-role-comes-first": ("chat-messages",),
    "chat-stream-refuses-meta-info": ("refused-in-stream",),
    "chat-stream-refuses-prompt-ids": ("refused-in-stream",),
    "chat-stream-refuses-token-ids": ("refused-in-stream",),
    "choices-complete": ("batch-with-samples",),
    "chosen-logprobs-are-the-asked-ids": ("logprob-families",),
    "completion-logprobs-are-parallel": ("echoed-prompt",),
    "continuous-usage-follows": ("usage",),
    "cumulative-series-extend": ("logprob-families",),
    "customized-info-is-fixed-at-sampling": ("batch-of-prompts",),
    "customized-info-whole": ("long-output",),
    "echo-adds-only-the-prompt": ("echoed-prompt",),
    "echo-begins-with-the-prompt": ("echoed-prompt",),
    "echo-logprobs-cover-the-prompt": ("echoed-prompt",),
    "empty-input-ids-refused": ("malformed-ids",),
    "first-ids-at-once": ("greedy-stream", "interval-borders"),
    "gateway-keeps-every-field": ("gateway",),
    "gateway-keeps-the-counts": ("gateway",),
    "gateway-keeps-the-finish": ("gateway",),
    "gateway-keeps-the-ids": ("gateway",),
    "gateway-keeps-the-reason": ("gateway",),
    "gateway-keeps-the-series": ("gateway",),
    "gateway-keeps-the-status": ("gateway",),
    "gateway-keeps-the-text": ("gateway",),
    "ids-are-counted": ("batch-of-prompts", "stop-string", "long-output"),
    "ids-need-no-tokenizer": ("logprob-families",),
    "impossible-values-refused": ("impossible-values",),
    "incomplete-tail-is-shown": ("broken-characters",),
    "incremental-ids-are-new": ("batch-of-prompts",),
    "input-ids-beat-text": ("text-beside-ids",),
    "kept-stop-ends-the-text": ("stop-places",),
    "length-means-budget": ("greedy-stream", "stop-string"),
    "logprob-counter-follows": ("logprob-families",),
    "logprob-values-are-legal": ("logprob-families",),
    "logprobs-cumulative": ("logprob-families",),
    "logprobs-follow-one-rule": ("logprobs-at-a-temperature",),
    "logprobs-incremental": ("logprob-families",),
    "logprobs-name-their-ids": ("batch-of-prompts", "logprob-families"),
    "logprobs-vary": ("logprob-families",),
    "logprobs-whole": ("logprob-families",),
    "malformed-input-ids-refused": ("malformed-ids",),
    "media-ids-are-run-as-sent": ("media",),
    "metadata-only-on-request": ("greedy-stream", "logprob-families"),
    "misfitting-lists-refused": ("no-prompt",),
    "missing-prompts-refused": ("no-prompt",),
    "named-stop-was-asked-and-spelled": ("stop-places",),
    "next-turn-begins-with-the-last": ("turns",),
    "nothing-follows-a-stop-id": ("stop-ids",),
    "nothing-follows-a-stop-pattern": ("stop-places",),
    "nothing-follows-a-stop-string": ("stop-places",),
    "one-beginning-of-sequence": ("text-prompt",),
    "one-finish-per-choice": ("batch-of-prompts",),
    "one-length-rule": ("context-border",),
    "one-mode-per-stream": ("logprob-families",),
    "output-ids-continue": ("continuation",),
    "own-ids-are-accepted": ("turns",),
    "prompt-ids-are-the-input-ids": ("prompt-ids", "batch-of-prompts", "chat-ids"),
    "prompt-ids-come-first": ("prompt-ids",),
    "prompt-ids-constant": ("prompt-ids",),
    "prompt-ids-in-every-choice": ("batch-of-prompts",),
    "prompt-ids-match-their-count": ("prompt-ids",),
    "prompt-ids-spell-the-text": ("text-prompt",),
    "prompt-logprobs-cover-the-prompt": ("prompt-logprobs",),
    "prompt-logprobs-independent-of-start": ("prompt-logprobs",),
    "prompt-logprobs-null-only-first": ("prompt-logprobs",),
    "prompt-logprobs-rescore-the-output": ("rescored-output",),
    "prompt-series-constant": ("prompt-logprobs",),
    "prompt-top-logprobs-belong-to-position": ("rescored-output",),
    "refusal-is-json": ("malformed-ids",),
    "refusal-names-the-field": ("refused-in-stream",),
    "refusal-names-the-value": ("wrong-types",),
    "refused-request-harms-nobody": ("malformed-ids",),
    "request-id-constant": ("request-id",),
    "requests-do-not-break-the-server": ("unreadable-bodies", "malformed-ids"),
    "same-ids-on-every-endpoint": ("chat-ids",),
    "special-tokens-as-asked": ("special-tokens",),
    "stop-id-stays-as-declared": ("stop-ids",),
    "stop-prefix-held-back": ("stop-string",),
    "stop-string-ends-generation": ("stop-places",),
    "stop-string-not-shown": ("stop-string", "chat-stop-string"),
    "stop-wins-within-the-budget": ("stop-around-the-budget", "stop-string-around-the-budget"),
    "stream-prompt-series-equal-whole": ("prompt-logprobs",),
    "stream-series-equal-whole": ("greedy-stream", "logprob-families"),
    "stream-text-equals-whole": ("greedy-stream", "unmatched-stop"),
    "stream-usage-equals-whole": ("usage",),
    "text-is-what-its-ids-say": ("broken-characters", "greedy-stream"),
    "text-needs-a-tokenizer": ("text-features",),
    "text-offsets-add-up": ("echoed-prompt",),
    "text-prompt-ids-reproduce": ("text-prompt",),
    "top-logprobs-belong-to-position": ("logprob-families",),
    "top-logprobs-have-k": ("logprob-families",),
    "unknown-chosen-ids-refused": ("unknown-ids", "logprob-families"),
    "unknown-parameter-ids-refused": ("unknown-ids",),
    "unknown-paths-are-not-found": ("honesty",),
    "unknown-prompt-ids-refused": ("unknown-ids",),
    "unmatched-stop-changes-nothing": ("unmatched-stop", "stop-string"),
    "unreadable-bodies-refused": ("unreadable-bodies",),
    "usage-adds-up": ("chat-messages",),
    "usage-comes-once-and-last": ("usage",),
    "usage-counts-ids": ("chat-ids",),
    "usage-only-on-request": ("usage",),
    "usage-parts-lie-within": ("usage",),
    "whole-accumulates": ("long-output",),
    "wrong-types-refused": ("wrong-types",),
    "zero-budget-has-no-ids": ("small-budget",),
}
"""Requirement -> scenarios that show its violations. For all others `greedy-stream` does."""

STARTED_WITH = {
    "media-ids-are-run-as-sent": ("--model=builtin:tiny-mm",),
    "preemption-changes-nothing": ("--test-retract-interval=3",),
    "ids-need-no-tokenizer": ("--skip-tokenizer-init",),
    "text-needs-a-tokenizer": ("--skip-tokenizer-init",),
}
"""Requirement -> how the server is started that shows its violations, where that is a special way."""


def red(url: str, known: KnownFault) -> dict[str, Verdict]:
    """The named requirements that a run with the fault violates."""
    scenarios = {name for kill in known.kills for name in SHOWN_BY.get(kill, ("greedy-stream",))}
    if known.room == "coalescing":
        scenarios.add("slow-reader")  # elsewhere outputs are joined by chance only
    headers = (("x-tokenwire-fault", known.name),)
    worker = url if "gateway" in scenarios else ""  # the same server, asked without the fault
    plan = Plan(url, timeout_s=30, headers=headers, scenarios=tuple(scenarios), worker=worker)
    subject = asyncio.run(interrogate(plan, Progress()))
    assert not isinstance(subject, Unreached), subject.diagnosis
    wanted = [load_requirements()[kill] for kill in known.kills]
    verdicts = {(each.requirement.id, each.verdict) for each in judge(subject.runs, wanted)}
    assert Verdict.HARNESS_ERROR not in {verdict for _, verdict in verdicts}
    return {name: verdict for name, verdict in verdicts if verdict in {Verdict.FAIL, Verdict.WARN}}


@pytest.mark.parametrize("name", [name for name, known in FAULTS.items() if known.kills])
def test_a_fault_turns_what_it_violates_red(start_reference, name):
    known = FAULTS[name]
    mode = ("--incremental-streaming-output",) if known.shows_in[0] == INCREMENTAL else ()
    special = {flag for kill in known.kills for flag in STARTED_WITH.get(kill, ())}
    url = start_reference("--enable-faults", "--sampling-backend", "mirror", *mode, *sorted(special))
    assert set(red(url, known)) == set(known.kills)


def test_every_requirement_is_turned_red_by_a_fault():
    named = {kill for known in FAULTS.values() for kill in known.kills}
    assert set(load_requirements()) - named == set()
