"""A server that dies in the middle of a run: of what, what it takes with it, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from live_captures import live_run
from recorded import IDS, document

from tokenwire.dialects.control import Action, ControlCall
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict, overall
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements
from tokenwire.target.death import IN_A_ROW, RESTARTED, VITALS
from tokenwire.target.determinism import Comparison
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

PROMPT = tuple(range(70, 82))
EPOCH = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
UPSTREAM = b'{"error":{"type":"Internal Server Error","code":"call_upstream_request_error","message":"no"}}'
NOBODY = (None, Ending.UNREACHABLE, "ConnectError: All connection attempts failed")
SILENCE = (None, Ending.TIMEOUT, "not over after 60 s")
BROKEN = "requests-do-not-break-the-server"


def answer_body(name: str, delivered: list[int], *, finished: bool) -> dict[str, Any]:
    """What the server writes, under an id of its own."""
    answer = document(delivered, finished=finished)
    answer["meta_info"] |= {"id": name, "prompt_tokens": len(PROMPT)}
    return answer


def exchange(
    name: str,
    begun: float,
    lasted: float = 0.1,
    ids: Iterable[Any] = PROMPT,
    how: tuple[int | None, Ending, str] = (200, Ending.COMPLETE, ""),
    *,
    body: bytes | None = None,
    **fields: Any,
) -> Exchange:
    """One request to /generate, and what came of it."""
    status, ending, detail = how
    if body is None:
        body = json.dumps(answer_body(name, IDS, finished=True)).encode() if status == 200 else b""
    params = {"max_new_tokens": len(IDS), "ignore_eos": True, "temperature": 0}
    return Exchange(
        f"sglang-generate/{name}",
        HttpRequest("POST", "/generate", {"input_ids": list(ids), "sampling_params": params, **fields}),
        name.partition("/")[0],
        status,
        (("content-type", "text/event-stream" if fields.get("stream") else "application/json"),),
        (Read(lasted, body),) if body else (),
        ending,
        detail,
        lasted,
        (EPOCH + timedelta(seconds=begun)).isoformat(timespec="milliseconds"),
    )


def run(*exchanges: Exchange) -> Run:
    dialect = load_dialects()["sglang-generate"]
    return Run(tuple(map(dialect.read, exchanges)))


def verdict(requirement: str, subject_run: Run) -> Verdict:
    return overall(
        judgement.verdict for judgement in judge([subject_run], [load_requirements()[requirement]])
    )


PROBES = [exchange(f"probe/{n}", n / 10) for n in range(3)]
CUT_STREAM = b"".join(
    b"data: " + json.dumps(answer_body("slow", IDS[:n], finished=False)).encode() + b"\n\n" for n in (1, 2, 3)
)


def among_others(how: tuple[int | None, Ending, str], body: bytes = b"") -> list[Exchange]:
    """As recorded of SGLang 0.5.23: a negative id among sixteen ordinary requests, all of which it cut."""
    after = 60 if how is SILENCE else 6
    cut = [
        exchange(f"stop-places/{n}", 1 + n / 100, after, (*PROMPT[:5], n), how, body=body) for n in range(7)
    ]
    stream = exchange("slow-reader/slow", 0.8, after, how=(200, how[1], how[2]), stream=True, body=CUT_STREAM)
    stream = replace(stream, reads=tuple(replace(read, time=0.5) for read in stream.reads))
    culprit = exchange("unknown-ids/prompt-negative", 1.3, after, (73, 39, 78, -1), how, body=body)
    late = exchange("wrong-types/temperature-0", 1.4, after, how=how, body=body)
    return [*PROBES, stream, *cut, culprit, late]


@pytest.mark.parametrize(
    ("how", "body"),
    [
        (SILENCE, b""),
        ((None, Ending.UNREACHABLE, "RemoteProtocolError: Server disconnected"), b""),
        ((500, Ending.COMPLETE, ""), UPSTREAM),
    ],
    ids=["hangs while it dies", "hangs up", "a gateway fails for it"],
)
def test_of_sixteen_requests_that_a_death_cut_the_bad_one_is_named_and_nothing_else(
    how: tuple[int | None, Ending, str], body: bytes
) -> None:
    seen = run(*among_others(how, body))
    (death,) = seen.deaths
    assert death.name == "sglang-generate/unknown-ids/prompt-negative"
    assert "most likely of this one" in death.words
    assert death.equals == ()
    assert death.early
    assert death.final
    broken = judge([seen], [load_requirements()[BROKEN]])
    failed = [judgement for judgement in broken if judgement.verdict is Verdict.FAIL]
    assert [judgement.scenario for judgement in failed] == ["unknown-ids"]
    assert [violation.place.exchange for violation in failed[0].violations] == [death.name]
    assert failed[0].violations[0].actual == "the server died"
    red = {
        judgement.requirement.id
        for judgement in judge([seen])
        if judgement.verdict in {Verdict.FAIL, Verdict.WARN}
    }
    assert red == {BROKEN}, "what the death cut is no violation of anything else"


def test_what_was_not_asked_any_more_is_told_by_the_death() -> None:
    subject_run = run(*among_others(SILENCE))
    why = "the server died of sglang-generate/unknown-ids/prompt-negative before this was asked"
    for requirement, scenario in (
        ("wrong-types-refused", "wrong-types"),
        ("id-in-use-spares-the-first", "id-in-use"),
        ("kept-stop-ends-the-text", "stop-places"),
    ):
        (judgement,) = judge([subject_run], [load_requirements()[requirement]])
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert why in judgement.message
        assert scenario in judgement.message


def test_of_ordinary_requests_the_one_that_came_last_before_the_end_is_named() -> None:
    """As recorded of SGLang 0.5.13: chosen ids beside requests without them."""
    cut = [exchange(f"long-output/{n}", 1 + n / 10, 60, (*PROMPT, n), SILENCE) for n in range(IN_A_ROW)]
    chosen = exchange("logprob-families/chosen-whole", 3, 60, how=SILENCE, token_ids_logprob=[1, 2])
    later = exchange("logprob-families/chosen-stream", 61.5, 1, how=(None, Ending.CANCELLED, "ended"))
    (death,) = run(*PROBES, *cut, chosen, later).deaths
    assert death.name == "sglang-generate/logprob-families/chosen-whole"
    assert later.name in death.cut


def test_a_constraint_beside_least_tokens_is_likelier_than_ordinary_requests_and_each_is_named() -> None:
    """SGLang 0.5.23: all ids were masked; the latest request under way, a plain one, was named instead."""
    seen = live_run("blame-least-tokens")
    [death] = seen.deaths
    label = "constraints/regex-least-tokens"
    assert death.name == f"sglang-generate/{label}"
    assert death.equals == (f"sglang-chat/{label}", f"sglang-completions/{label}")
    assert death.suspects == 9
    assert all(name in death.words for name in (death.name, *death.equals))
    cut = load_requirements()["wrong-types-refused"]
    assert death.blamed == f"{death.name} or a request beside it"
    assert f"the server died of {death.blamed} before this was asked" in judge([seen], [cut])[0].message


def test_of_ordinary_requests_all_are_named_as_equals() -> None:
    cut = [exchange(f"x/{n}", 1 + n / 10, 60, (*PROMPT, n), SILENCE) for n in range(IN_A_ROW)]
    [death] = run(*PROBES, *cut).deaths
    assert death.name == f"sglang-generate/x/{IN_A_ROW - 1}"
    assert len(death.equals) == IN_A_ROW - 1
    assert f"most likely of one of {IN_A_ROW} requests (" in death.words
    assert f"and {IN_A_ROW - 3} more)" in death.words


def test_a_constraint_beside_least_tokens_that_was_answered_is_no_suspect() -> None:
    constrained = exchange("x/regex", 1, 0.1)
    body = constrained.request.body
    assert isinstance(body, dict)
    parameters = {**body["sampling_params"], "regex": "(yes|no)", "min_new_tokens": 4}
    request = replace(constrained.request, body={**body, "sampling_params": parameters})
    constrained = replace(constrained, request=request)
    cut = exchange("x/plain", 1.05, 1, (*PROMPT, 5), how=(None, Ending.UNREACHABLE, "Remote"))
    late = exchange(f"{VITALS}/1", 3, how=NOBODY)
    [death] = run(*PROBES, constrained, cut, late).deaths
    assert death.name == "sglang-generate/x/plain"
    hangs = replace(constrained, status=None, ending=Ending.UNREACHABLE, reads=(), duration=0.9)
    [death] = run(*PROBES, hangs, cut, late).deaths
    assert death.name == "sglang-generate/x/regex"


def test_alone_the_request_is_named_for_sure_and_its_control_is_not() -> None:
    bad = exchange("negative-ids/whole", 1, ids=(1, -1), how=(None, Ending.UNREACHABLE, "Remote…"))
    (death,) = run(*PROBES, bad, exchange("negative-ids/whole-control", 2, how=NOBODY)).deaths
    assert death.name == "sglang-generate/negative-ids/whole"
    assert death.words.startswith("the server died of this request (unreachable: Remote…)")
    assert not death.early


@pytest.mark.parametrize("status", [200, 400])
def test_a_bad_request_that_was_answered_before_the_end_is_named_all_the_same(status: int) -> None:
    bad = exchange("negative-ids/whole", 1, ids=(1, -1), how=(status, Ending.COMPLETE, ""))
    after = [exchange(f"negative-ids/{n}", 2 + n, how=NOBODY) for n in range(2)]
    (death,) = run(*PROBES, bad, *after).deaths
    assert death.name == "sglang-generate/negative-ids/whole"


def test_failures_that_are_no_death() -> None:
    failed = exchange("wrong-types/n-0", 1, how=(500, Ending.COMPLETE, ""), body=b"oops")
    control = exchange("wrong-types/n-0-control", 2)
    assert run(*PROBES, failed).deaths == (), "one failure may be the request's own fault"
    assert run(*PROBES, failed, control).deaths == (), "it answers"
    others = [
        exchange(f"x/{n}", 3 + n, ids=(n,), how=(500, Ending.COMPLETE, "")) for n in range(IN_A_ROW - 1)
    ]
    assert run(*PROBES, *others).deaths == (), "no one knows how it answers these"
    late = exchange("x/control", 20)
    many = [exchange(f"x/{n}", 3 + n, ids=(n,), how=(500, Ending.COMPLETE, "")) for n in range(IN_A_ROW)]
    assert run(*PROBES, *many, late).deaths == (), "it answers again"
    full = [exchange(f"x/{n}", 3 + n, how=(503, Ending.COMPLETE, "")) for n in range(20)]
    assert run(*PROBES, *full).deaths == (), "it has no room"
    left = [exchange(f"x/{n}", 3 + n, how=(None, Ending.HUNG_UP, "on purpose")) for n in range(20)]
    assert run(*PROBES, *left).deaths == (), "the suite left"
    assert run(*[replace(sent, started="") for sent in among_others(SILENCE)]).deaths == ()


def test_a_gateway_that_answers_503_lives_whatever_failed_before() -> None:
    """Dynamo 1.4.2 took its worker out of rotation for a moment; 432 exchanges were not asked."""
    seen = live_run("dynamo-503-death")
    assert seen.deaths == ()
    failed = exchange("x/0", 1, ids=(9,), how=(500, Ending.COMPLETE, ""), body=UPSTREAM)
    full = [exchange(f"{VITALS}/{n}", 2 + n, how=(503, Ending.COMPLETE, "")) for n in range(3)]
    assert run(*PROBES, failed, *full).deaths == ()
    assert verdict(BROKEN, run(*PROBES, failed, *full)) is Verdict.FAIL, "the 500 itself is a failure"
    gone = exchange(f"{VITALS}/4", 9, how=NOBODY)
    assert len(run(*PROBES, failed, *full, gone).deaths) == 1, "nobody listens any more"


def raw(name: str, begun: float, body: bytes, how: tuple[int | None, Ending, str]) -> Exchange:
    """A request whose bytes are not what this suite would write as JSON."""
    return replace(
        exchange(name, begun, how=how), request=HttpRequest("POST", "/generate", {}, raw_body=body)
    )


def test_requests_are_the_same_by_their_bytes_where_these_are_no_json_of_ours() -> None:
    """What was answered before and fails now shows a death; another one that fails shows nothing."""
    answered, failing = (200, Ending.COMPLETE, ""), (500, Ending.COMPLETE, "")
    first = raw("no-json/first", 1, b'{"input_ids": [1, 2], }', answered)
    others = [raw(f"no-json/{n}", 2 + n, b'{"input_ids": [%d]] }' % n, failing) for n in range(2)]
    assert run(*PROBES, first, *others).deaths == ()
    again = raw("no-json/again", 4, b'{"input_ids": [1, 2], }', failing)
    assert len(run(*PROBES, first, *others, again).deaths) == 1


def test_requests_are_the_same_whatever_the_order_of_their_keys() -> None:
    failing = (500, Ending.COMPLETE, "")
    failed = exchange("wrong-types/n-0", 1, ids=(9,), how=failing)
    asked = exchange("probe/again", 2, how=failing)
    assert isinstance(asked.request.body, dict)
    turned = dict(reversed(asked.request.body.items()))
    asked = replace(asked, request=replace(asked.request, body=turned))
    assert len(run(*PROBES, failed, asked).deaths) == 1


def test_a_small_good_request_that_fails_shows_the_death() -> None:
    failed = exchange("wrong-types/n-0", 1, ids=(9,), how=(500, Ending.COMPLETE, ""))
    asked = exchange(f"{VITALS}/1", 2, ids=(8,), how=(500, Ending.COMPLETE, ""))
    (death,) = run(*PROBES, failed, asked).deaths
    assert death.name == "sglang-generate/wrong-types/n-0"


def restarted(begun: float) -> Exchange:
    return exchange(f"{RESTARTED}/1", begun, ids=(1, 2, 3, 4))


def test_each_life_has_its_own_death_and_what_killed_again_is_the_cause_of_the_first_too() -> None:
    first = [exchange(f"together/{n}", 1 + n / 10, 5, (*PROMPT, n), SILENCE) for n in range(IN_A_ROW)]
    again = exchange("together/2-again", 11, ids=(*PROMPT, 2), how=SILENCE)
    control = exchange("together/control", 12, how=NOBODY)
    other = exchange("negative-ids/whole", 21, ids=(-1,), how=NOBODY)
    last = exchange("negative-ids/whole-control", 22, how=NOBODY)
    subject_run = run(*PROBES, *first, restarted(10), again, control, restarted(20), other, last)
    assert [death.name.partition("/")[2] for death in subject_run.deaths] == [
        "together/2",
        "together/2-again",
        "negative-ids/whole",
    ]
    assert [death.final for death in subject_run.deaths] == [False, False, True]


def test_a_server_that_was_started_again_after_all_deaths_leaves_nothing_open() -> None:
    bad = exchange("negative-ids/whole", 1, ids=(1, -1), how=NOBODY)
    control = exchange("negative-ids/whole-control", 2, how=NOBODY)
    subject_run = run(
        *PROBES, bad, control, restarted(9), *[replace(item, name=f"{item.name}-2") for item in PROBES]
    )
    assert subject_run.died is None
    assert verdict(BROKEN, subject_run) is Verdict.FAIL
    (judgement,) = judge([subject_run], [load_requirements()["wrong-types-refused"]])
    assert "died" not in judgement.message


def test_the_gravest_failure_is_shown_first() -> None:
    failed = exchange("no-prompt/one-of-two-params", 1, how=(500, Ending.COMPLETE, ""), body=b"oops")
    silent = exchange("no-prompt/three", 2, ids=(4,), how=SILENCE)
    dead = [exchange(f"negative-ids/{n}", 70 + n, ids=(-1,), how=NOBODY) for n in range(2)]
    subject_run = run(*PROBES, failed, silent, exchange("no-prompt/control", 65), *dead)
    red = [
        judgement for judgement in judge([subject_run], [load_requirements()[BROKEN]]) if judgement.violations
    ]
    assert [judgement.scenario for judgement in red] == ["negative-ids", "no-prompt"]
    assert [str(violation.actual)[:7] for violation in red[1].violations] == ["timeout", "status "]


def answers_named(subject_run: Run, name: str) -> list[Stream]:
    return [stream for stream in subject_run.answers if stream.exchange.name.endswith(name)]


def test_what_came_before_the_end_is_heard() -> None:
    subject_run = run(*among_others(SILENCE))
    assert len(subject_run.answers) == len(PROBES)
    assert answers_named(subject_run, "probe/0")
    assert subject_run.by_exchange["sglang-generate/unknown-ids/prompt-negative"]


def test_a_worker_that_was_named_and_is_not_there_is_not_asked_for_by_name() -> None:
    row = load_requirements()["gateway-keeps-the-status"]
    healthy = run(*PROBES)
    (judgement,) = judge([healthy], [row])
    assert "--worker URL" in judgement.message
    (judgement,) = judge([replace(healthy, worker_asked=True)], [row])
    assert judgement.verdict is Verdict.NOT_TESTABLE
    assert judgement.message.startswith("the worker that --worker names gave no answer")
    through, behind = run(exchange("gateway/whole", 1), exchange("worker/whole", 1, how=NOBODY)).streams
    unreached = replace(healthy, worker_asked=True, beside=(Comparison(behind, through),))
    (judgement,) = judge([unreached], [row])
    assert judgement.message.startswith("the worker that --worker names gave no answer")


def test_a_death_of_the_last_bad_request_is_no_reason_for_what_was_never_asked() -> None:
    died = run(*PROBES, *(exchange(f"negative-ids/{n}", 1 + n, ids=(-1,), how=NOBODY) for n in range(2)))
    assert died.died is not None
    assert not died.died.early
    (judgement,) = judge([died], [load_requirements()["pause-changes-nothing"]])
    assert judgement.verdict is Verdict.UNSUPPORTED
    assert "died" not in judgement.message
    assert "not asked: pause-and-continue" in judgement.message


def test_what_was_not_asked_is_named_by_the_scenario_that_asks_it() -> None:
    row = load_requirements()["missing-prompts-refused"]
    (judgement,) = judge([run(*PROBES)], [row])
    assert (judgement.verdict, judgement.message) == (Verdict.INCONCLUSIVE, "not asked: no-prompt")


def test_a_failure_counts_as_no_refusal_only_where_the_good_request_behind_it_was_answered() -> None:
    """As behind a gateway whose worker was away for a while."""
    failing = (500, Ending.COMPLETE, "")
    bad = exchange("negative-ids/whole", 1, ids=(1, -1), how=failing, body=UPSTREAM)
    control = exchange("negative-ids/whole-control", 2, how=failing, body=UPSTREAM)
    answered = exchange("negative-ids/whole-control", 2)
    back = [replace(item, name=f"{item.name}-2", started="2026-11-22T03:00:00+00:00") for item in PROBES]
    requirement = "unknown-prompt-ids-refused"
    assert verdict(requirement, run(*PROBES, bad, answered, *back)) is Verdict.FAIL
    assert verdict(requirement, run(*PROBES, bad, control, *back)) is Verdict.INCONCLUSIVE
    assert verdict(BROKEN, run(*PROBES, bad, control, *back)) is Verdict.FAIL


def test_the_probes_behind_a_death_are_no_requests_that_it_cut() -> None:
    """One request was in flight, and "3 other requests were cut": the suite's own, sent afterwards."""
    culprit = exchange(
        "negative-ids/stop-stream", 1.0, 0.5, (-1,), (None, Ending.UNREACHABLE, "RemoteProtocolError")
    )
    looks = [exchange(f"{VITALS}/{n}", 1.6 + n / 10, 0.01, PROMPT, NOBODY) for n in range(3)]
    (death,) = run(*PROBES, culprit, *looks).deaths
    assert death.words.startswith("the server died of this request (unreachable: Remote")
    assert "were cut" not in death.words


def test_a_control_call_that_was_cut_is_what_the_server_died_of() -> None:
    """Not the request that met nobody behind it; unless a bad request was under way."""
    of = exchange("one/update", 1.0, 2.0, how=(None, Ending.TRUNCATED, "RemoteDisconnected()"))
    call = ControlCall(replace(of, request=HttpRequest("POST", "/update_weights_from_disk")), Action.UPDATE)
    gone = [exchange(f"one/{n}", 3.0 + n, how=NOBODY) for n in range(2)]
    for bad, name in ([], of.name), ([exchange("bad/id", 1.0, 2.0, [-1], SILENCE)], "sglang-generate/bad/id"):
        died = replace(run(*PROBES, *bad, *gone), calls=(call,))
        [death] = died.deaths
        assert death.name == name
        judged = judge([died], [load_requirements()[BROKEN]])
        assert {seen.place.exchange for found in judged for seen in found.violations[:1]} >= {name}
