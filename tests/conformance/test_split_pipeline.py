"""The split pipeline of vLLM 0.33.0 as it was recorded: each row is judged on it, whole and streamed."""

from __future__ import annotations

import pytest
from control_calls import posted
from live_captures import judged, live_run
from split_pairs import ASKED, CHAT, WHOLE
from test_checks_pairs import observe

from tokenwire.checks.check import Target
from tokenwire.dialects.control import ControlCall
from tokenwire.judging.verdict import Verdict

HOLDS = (
    *("rendered-ids-are-run", "rendered-request-answers-alike"),
    *("derendered-message-is-the-chats", "derendered-logprobs-are-the-chats"),
    *("derendered-deltas-add-up", "impossible-derender-refused"),
)
OTHERS = ("conversations-of-a-batch-stand-alone", "counted-tokens-are-the-prompts")


@pytest.mark.parametrize("requirement", HOLDS)
def test_what_the_server_keeps_is_seen(requirement: str) -> None:
    [judgement] = judged(live_run("vllm-0.33-split-pipeline-steps"), requirement)
    assert judgement.verdict is Verdict.PASS


def test_a_lost_count_is_a_warning() -> None:
    [judgement] = judged(live_run("vllm-0.33-split-pipeline-steps"), "derendered-counts-are-the-chats")
    assert judgement.verdict is Verdict.WARN
    assert "reasoning_tokens is None, but 20" in judgement.violations[0].message


ODD: dict[str, ControlCall] = {
    "a batch without conversations": posted(f"{CHAT}/batch", {}, {"choices": [{}]}),
    "a batch of words": posted(f"{CHAT}/batch", {"messages": "hi"}, []),
    "nothing is rendered": posted(f"{CHAT}/render", ASKED, None),
    "words are rendered": posted(f"{CHAT}/render", ASKED, {"token_ids": "hi", "sampling_params": 1}),
    "choices of numbers": posted(f"{CHAT}/derender", {"generate_response": {"choices": [1, "a"]}}, {}),
    "no choices": posted(f"{CHAT}/derender", {"generate_chunk": {"choices": 5}, "stream_state": 1}, []),
    "ids of words": posted(
        f"{CHAT}/derender", {"generate_chunk": {"choices": [{"token_ids": "ab"}]}}, {"chunk": 5}
    ),
    "a message of words": posted(
        f"{CHAT}/derender", {"chat_request": ASKED, "generate_response": {"choices": []}}, {"choices": "a"}
    ),
    "words are counted": posted("/v1/messages/count_tokens", {}, {"input_tokens": "many"}),
}


@pytest.mark.parametrize("call", ODD.values(), ids=ODD)
def test_odd_requests_and_answers_end_no_check(call: ControlCall) -> None:
    target = Target(calls=(call,))
    for requirement in (*HOLDS, "derendered-counts-are-the-chats", *OTHERS):
        observe(requirement, (WHOLE,), target)
