"""What differs by chance is asked again before it is blamed on the target."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from stream_builder import IDS, Reply, incremental, named, whole, with_exchange

from tokenwire.asking.confirmation import ACROSS_RESPONSES, ACROSS_TARGETS, confirm, under_another_id
from tokenwire.judging.beside import GATEWAY, WORKER, side_by_side
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict, worst
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements
from tokenwire.wire.exchange import HttpRequest

WHOLE = named(whole(prompt_key="p"), "sglang-generate/one/whole")
GOES_ANOTHER_WAY = Reply(ids=[*IDS[:3], 94, 95, 96], text="abcxyz")
STREAM = named(incremental(GOES_ANOTHER_WAY, prompt_key="p"), "sglang-generate/one/stream")
AS_WHOLE = named(incremental(prompt_key="p"), "sglang-generate/one/stream")


def after_asking_again(
    *streams: Stream, answers: Callable[[Stream, int], Stream]
) -> tuple[Verdict, Counter[str]]:
    """The verdict on the ids of streams once all is confirmed, and how often each was asked again."""
    asked: Counter[str] = Counter()
    all_of_it = list(streams)

    async def ask_again(stream: Stream, turn: int) -> None:
        asked[stream.exchange.name.partition("-confirm-")[0].rpartition("/")[2]] += 1
        all_of_it.append(named(answers(stream, turn), f"{stream.exchange.name}-confirm-{turn}"))

    asyncio.run(confirm(lambda: Run(tuple(all_of_it)), ask_again, ACROSS_RESPONSES))
    row = load_requirements()["stream-ids-equal-whole"]
    return worst(judgement.verdict for judgement in judge([Run(tuple(all_of_it))], [row])), asked


def test_a_target_that_repeats_both_answers_is_blamed() -> None:
    verdict, asked = after_asking_again(WHOLE, STREAM, answers=lambda stream, _: stream)
    assert (verdict, asked) == (Verdict.FAIL, {"whole": 2, "stream": 2})


def replace_key(stream: Stream, key: str) -> Stream:
    return replace(stream, asked=replace(stream.asked, key=key))


def as_whole(stream: Stream, _turn: int = 1) -> Stream:
    return AS_WHOLE if stream.asked.stream else WHOLE


def at_last_as_whole(stream: Stream, turn: int) -> Stream:
    return as_whole(stream) if turn > 1 else stream


@pytest.mark.parametrize("answers", [as_whole, at_last_as_whole])
def test_a_target_that_answers_otherwise_now_is_not(answers: Callable[[Stream, int], Stream]) -> None:
    verdict, _ = after_asking_again(WHOLE, STREAM, answers=answers)
    assert verdict is Verdict.WARN


def test_answers_that_were_repeated_in_the_run_are_asked_again_too() -> None:
    """Two of them may be alike by chance as well."""
    repeated = [named(answer, f"{answer.exchange.name}-again") for answer in (WHOLE, STREAM)]
    verdict, asked = after_asking_again(WHOLE, STREAM, *repeated, answers=as_whole)
    assert verdict is Verdict.WARN
    assert asked.total() > 0


def test_one_confirmed_difference_is_enough_for_a_requirement_at_an_endpoint() -> None:
    """A defect of all streams was asked about 132 times for one scenario."""
    crowd = [
        named(replace_key(stream, f"key-{number}"), f"sglang-generate/{number}/{form}")
        for number in range(20)
        for form, stream in (("whole", WHOLE), ("stream", STREAM))
    ]
    verdict, asked = after_asking_again(*crowd, answers=lambda stream, _: stream)
    assert (verdict, asked) == (Verdict.FAIL, {"whole": 2, "stream": 2})


def test_once_one_difference_fell_the_others_are_asked_again() -> None:
    crowd = [
        named(replace_key(stream, f"key-{number}"), f"sglang-generate/{number}/{form}")
        for number in range(3)
        for form, stream in (("whole", WHOLE), ("stream", STREAM))
    ]
    steps = []

    def answers(stream: Stream, _turn: int) -> Stream:
        steps.append(stream.exchange.name)
        return replace_key(as_whole(stream), stream.asked.key)

    _, asked = after_asking_again(*crowd, answers=answers)
    assert asked == {"whole": 6, "stream": 6}
    assert {name.split("/")[1] for name in steps[:4]} == {steps[0].split("/")[1]}


def test_a_target_that_does_not_repeat_itself_elsewhere_is_asked_more_often() -> None:
    elsewhere = [
        named(whole(item, key="other", prompt_key="q"), f"sglang-generate/one/other-{number}")
        for number, item in enumerate((Reply(), GOES_ANOTHER_WAY))
    ]
    _, asked = after_asking_again(WHOLE, STREAM, *elsewhere, answers=lambda stream, _: stream)
    assert asked == {"whole": 6, "stream": 6}


def test_two_alike_answers_are_too_few_where_a_target_does_not_repeat_itself_elsewhere() -> None:
    """What there was no more time to ask again is left open: in a crowd, two may be alike by chance."""
    twins = [named(answer, f"{answer.exchange.name}-twin") for answer in (WHOLE, STREAM)]
    elsewhere = [
        named(whole(item, key="other", prompt_key="q"), f"sglang-generate/one/other-{number}")
        for number, item in enumerate((Reply(), GOES_ANOTHER_WAY))
    ]
    row = load_requirements()["stream-ids-equal-whole"]

    def verdict(*streams: Stream) -> Verdict:
        return worst(judgement.verdict for judgement in judge([Run(streams)], [row]))

    assert verdict(WHOLE, STREAM, *twins) is Verdict.FAIL
    assert verdict(WHOLE, STREAM, *twins, *elsewhere) is Verdict.INCONCLUSIVE
    (open_one,) = judge([Run((WHOLE, STREAM, *twins, *elsewhere))], [row])
    assert (
        "was answered alike 2 times, which is too few because other requests had two answers"
        in open_one.message
    )


def test_a_request_with_an_id_of_its_own_is_asked_again_too() -> None:
    """Each of the two was repeated in the run, and yet by chance: the answers of a crowd fall into two."""
    own_id = named(incremental(GOES_ANOTHER_WAY, prompt_key="p", request_id="a1"), STREAM.exchange.name)
    twins = [named(answer, f"{answer.exchange.name}-twin") for answer in (WHOLE, own_id)]
    verdict, asked = after_asking_again(WHOLE, own_id, *twins, answers=as_whole)
    assert (verdict, asked["stream"] > 0) == (Verdict.WARN, True)


def test_it_is_asked_again_under_another_id() -> None:
    body = {"rid": "a1", "text": "a1 and more", "batch": [{"rid": "a1"}], "seed": 1}
    request = HttpRequest("POST", "/generate", body=body, headers=(("x-request-id", "a1"), ("x-other", "b")))
    again = under_another_id(request, "a1", "a2")
    assert again.body == {"rid": "a2", "text": "a1 and more", "batch": [{"rid": "a2"}], "seed": 1}
    assert again.headers == (("x-request-id", "a2"), ("x-other", "b"))


def test_what_is_seen_only_in_answers_to_what_was_asked_again_is_confirmed_too() -> None:
    """Here the ids, of which no row doubted anything before the texts of another request were asked again."""
    texts = [
        named(whole(Reply(ids=None), prompt_key="p"), "sglang-generate/one/whole"),
        named(incremental(Reply(ids=None, text="abcxyz"), prompt_key="p"), "sglang-generate/one/stream"),
    ]
    alike = {"key": "other", "prompt_key": "q"}
    later = [
        named(item, f"sglang-generate/two/{item.delivery}-{number}")
        for item in (whole(**alike), incremental(GOES_ANOTHER_WAY, **alike))
        for number in range(2)
    ]
    all_of_it = list(texts)

    async def ask_again(stream: Stream, turn: int) -> None:
        if turn == 1 and stream.asked.key != "other":
            all_of_it.extend(item for item in later if item not in all_of_it)
        answer = whole(**alike) if stream.asked.key == "other" and not stream.asked.stream else stream
        if stream.asked.key == "other" and stream.asked.stream:
            answer = incremental(**alike)
        all_of_it.append(named(answer, f"{stream.exchange.name}-confirm-{turn}"))

    asyncio.run(confirm(lambda: Run(tuple(all_of_it)), ask_again, ACROSS_RESPONSES))
    row = load_requirements()["stream-ids-equal-whole"]
    assert worst(judgement.verdict for judgement in judge([Run(tuple(all_of_it))], [row])) is Verdict.WARN


@pytest.mark.parametrize("repeats", [True, False])
def test_a_gateway_and_its_worker_are_each_asked_again(repeats: bool) -> None:
    """They are asked the same, and yet are two servers. Each gave its answer twice, perhaps by chance."""
    asked: Counter[str] = Counter()
    theirs = {WORKER: WHOLE, GATEWAY: whole(GOES_ANOTHER_WAY, prompt_key="p")}
    answered = {
        side: [
            with_exchange(named(event, f"sglang-generate/{side}/{name}"), scenario=side)
            for name in ("a", "b")
        ]
        for side, event in theirs.items()
    }

    async def ask_again(stream: Stream, turn: int) -> None:
        side = stream.exchange.scenario
        asked[side] += 1
        name = f"{stream.exchange.name}-confirm-{turn}"
        answered[side].append(with_exchange(named(stream if repeats else WHOLE, name), scenario=side))

    def run() -> Run:
        beside = side_by_side(answered[WORKER], answered[GATEWAY])
        return Run((), beside=tuple(beside), worker_asked=True)

    asyncio.run(confirm(run, ask_again, ACROSS_TARGETS))
    assert asked == {WORKER: 2, GATEWAY: 2} if repeats else asked[GATEWAY] > 0
    row = load_requirements()["gateway-keeps-the-ids"]
    verdict = worst(judgement.verdict for judgement in judge([run()], [row]))
    assert verdict is (Verdict.FAIL if repeats else Verdict.INCONCLUSIVE)


def test_what_chance_does_not_explain_is_not_asked_again() -> None:
    lost = named(incremental(Reply(ids=IDS[:5], text="abcde")), "sglang-generate/one/stream")
    verdict, asked = after_asking_again(WHOLE, lost, answers=lambda stream, _: stream)
    assert (verdict, asked) == (Verdict.FAIL, {})


def test_nothing_is_asked_again_of_a_target_that_contradicts_nothing() -> None:
    verdict, asked = after_asking_again(WHOLE, AS_WHOLE, answers=as_whole)
    assert (verdict is Verdict.FAIL, asked) == (False, {})
