"""Which bug a violation looks like: the pattern of each known bug is seen, and another violation of the same
row is not taken for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from stream_builder import GONE, IDS, PROMPT, Reply, append, change, incremental, logprobs, whole

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.judging.judge import Judgement
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.record import Finish, Stream, Usage
from tokenwire.report.signatures import PATTERNS, load_signatures, looks_like
from tokenwire.requirement import load_requirements

ROWS = load_requirements()
MIRROR = Reply(series={"mirror_token_id": IDS}, customized=frozenset({"mirror_token_id"}))
LOGPROBS = Reply(series={"output_token_logprobs": logprobs()})
ENTRIES = [{"token": letter, "logprob": -1.0, "bytes": None, "top_logprobs": []} for letter in "abcdef"]
USAGE = {"completion_tokens": 6}


def violations(requirement: str, stream: Stream, *others: Stream) -> tuple[Observation, ...]:
    check = CHECKS[requirement]
    streams = (stream, *others)
    looked = check.on_stream(stream, Target()) if check.on_stream else check.on_run(streams, Target())
    return tuple(seen for seen in looked if not seen.holds)


def threads(
    requirement: str, stream: Stream, *seen: Observation, others: tuple[Stream, ...] = ()
) -> tuple[str, ...]:
    """Return the threads that the violations of a stream look like. `others`: further answers of its run."""
    found = seen or violations(requirement, stream, *others)
    assert found, f"{requirement} is not violated"
    return looks_like(Judgement(ROWS[requirement], "one", Verdict.FAIL, violations=found, run=Run((stream,))))


@dataclass(frozen=True)
class Case:
    pattern: str
    requirement: str
    bug: Stream
    """As the known bug leaves it."""
    other: Stream
    """Another violation of the same requirement."""
    beside: tuple[Stream, ...] = ()
    """Further answers of the run with the known bug."""


def chat(index: int, **changed: object) -> Stream:
    """A chat stream with logprobs, one emission of which was changed."""
    reply = Reply(ids=None, series={"logprobs_content": ENTRIES})
    stream = incremental(reply, dialect="sglang-chat", logprobs=True, usage=USAGE)
    for n, entry in enumerate(ENTRIES):
        stream = change(stream, n, details={"logprobs": {"content": [entry]}})
    gone = {"series": {"logprobs_content": GONE}, "details": {"logprobs": GONE}}
    return change(stream, index, **gone, **changed)


def series(stream: Stream, index: int, name: str, value: object) -> Stream:
    return change(stream, index, series={name: value})


def usages(stream: Stream, *indexes: int) -> Stream:
    found = tuple(Usage(stream.events[n].place, {"completion_tokens": n}) for n in indexes)
    return replace(stream, usages=found)


WITH_USAGE = replace(incremental(), asked=replace(incremental().asked, usage=True))


def details(**tiers: int) -> Stream:
    return whole(
        Reply(counters={"prompt_tokens": 8, "cached_tokens": 4}, details={"cached_tokens_details": tiers})
    )


BATCH = {"input_ids": (PROMPT, (7, 8)), "prompts": 2, "n": 1}


def batch(second: tuple[int, ...]) -> Stream:
    return incremental(Reply(prompt_ids=PROMPT), Reply(prompt_ids=second), **BATCH)


def zero(values: list[float], name: str = "generate/one") -> Stream:
    ids = tuple(range(11, 11 + len(values)))
    entries = [[value, token, None] for value, token in zip(values, ids, strict=True)]
    return whole(
        Reply(ids=ids, text="x" * len(ids), series={"output_token_logprobs": entries}),
        name=name,
        logprobs=True,
    )


PIECES = {"sizes": [1, 2, 3]}
CASES = [
    Case(
        "fewer-entries-than-ids",
        "customized-info-incremental",
        series(incremental(MIRROR, **PIECES), 2, "mirror_token_id", [16]),
        series(incremental(MIRROR, **PIECES), 2, "mirror_token_id", [14, 15, 16, 16]),
    ),
    Case(
        "one-value-for-all-ids",
        "customized-info-whole",
        series(whole(MIRROR), 0, "mirror_token_id", "16"),
        series(whole(MIRROR), 0, "mirror_token_id", None),
    ),
    Case(
        "entries-of-all-ids-so-far",
        "logprobs-incremental",
        series(incremental(LOGPROBS, **PIECES), 1, "output_token_logprobs", logprobs()[:3]),
        series(incremental(LOGPROBS, **PIECES), 1, "output_token_logprobs", logprobs()[:1]),
    ),
    Case(
        "whole-answer-lost-ids",
        "ids-are-counted",
        change(whole(), output_ids=[15, 16]),
        change(whole(), output_ids=[*IDS, 16]),
    ),
    Case(
        "finish-told-again",
        "one-finish-per-choice",
        append(incremental(), lambda last: last),
        append(incremental(), lambda last: replace(last, finish=Finish("stop"))),
    ),
    Case(
        "details-are-doubled", "cached-details-add-up", details(device=4, host=4), details(device=4, host=1)
    ),
    Case(
        "only-entries-without-text-are-missing",
        "chat-logprobs-count-the-tokens",
        chat(2, text=""),
        chat(2),
    ),
    Case(
        "all-zero",
        "logprobs-vary",
        zero([0.0] * 64),
        zero([-1.5] * 64),
        (zero([0.0] * 64, "generate/two"),),
    ),
    Case(
        "prompt-ids-never-told",
        "asked-or-refused",
        whole(return_prompt_token_ids=True),
        whole(logprobs=True),
    ),
    Case("ids-of-another-prompt", "prompt-ids-are-the-input-ids", batch(PROMPT), batch((9, 9))),
    Case(
        "null-content-beside-ids",
        "chat-content-never-null",
        whole(Reply(text=None, details={"content": None}), dialect="sglang-chat"),
        whole(Reply(text=None, details={"content": None}), dialect="sglang-chat", input_ids=None),
    ),
    Case(
        "usage-in-every-event",
        "usage-comes-once",
        usages(WITH_USAGE, 0, 1, 2, 3, 4, 5),
        usages(WITH_USAGE, 4, 5),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.pattern}-{case.requirement}")
def test_the_pattern_of_a_bug_is_seen_and_another_violation_is_not_taken_for_it(case: Case) -> None:
    upstream = {
        thread
        for signature in load_signatures()
        if signature.pattern == case.pattern and case.requirement in signature.requirements
        for thread in signature.upstream
    }
    assert upstream
    assert set(threads(case.requirement, case.bug, others=case.beside)) == upstream
    assert not upstream & set(threads(case.requirement, case.other))


@pytest.mark.parametrize(
    ("message", "alike"),
    [
        ("request 'job1' was ended by an abort of 'job', 'other'", True),
        ("request 'job1' was ended by an abort of 'other'", False),
        ("request 'job' was ended by an abort of 'job1'", False),
    ],
)
def test_an_abort_by_prefix_is_told_from_other_ends(message: str, *, alike: bool) -> None:
    stream = incremental()
    seen = Observation(stream.events[5].place, "an end of its own", "abort", False, message)
    assert bool(threads("abort-spares-others", stream, seen)) is alike


def test_a_bug_of_one_family_is_not_seen_in_answers_of_another() -> None:
    asked = whole(return_prompt_token_ids=True)
    assert threads("asked-or-refused", asked) == ("sgl-project/sglang PR #23751",)
    assert threads("asked-or-refused", replace(asked, dialect="vllm-completions")) == ()


def test_a_server_that_tells_the_ids_elsewhere_does_not_lack_them() -> None:
    """A gateway that drops them on one endpoint is not a server of before they were told."""
    asked = whole(return_prompt_token_ids=True)
    run = Run((asked, whole(Reply(prompt_ids=PROMPT), name="generate/two")))
    found = violations("asked-or-refused", asked)
    assert (
        looks_like(Judgement(ROWS["asked-or-refused"], "one", Verdict.FAIL, violations=found, run=run)) == ()
    )


def test_a_promise_that_was_not_kept_looks_like_no_bug() -> None:
    """What the user declared and no answer shows lies in no answer."""
    row, seen = ROWS["asked-or-refused"], violations("asked-or-refused", whole(return_prompt_token_ids=True))
    assert looks_like(Judgement(row, "-", Verdict.FAIL, violations=seen, run=Run(()))) == ()


def test_every_signature_is_of_a_row_that_names_its_threads() -> None:
    for signature in load_signatures():
        assert signature.bug.endswith(".")
        assert signature.upstream
        for requirement in signature.requirements:
            assert set(signature.upstream) <= set(ROWS[requirement].upstream), (
                signature.pattern,
                requirement,
            )


def test_every_predicate_belongs_to_a_signature_and_has_a_case() -> None:
    named = {signature.pattern for signature in load_signatures()}
    assert named == set(PATTERNS)
    assert named - {case.pattern for case in CASES} == {"id-begins-with-the-aborted-one"}, "has its own test"
