"""The split pipeline of vLLM 0.33.0 as it was recorded: each row is judged on it, whole and streamed."""

from __future__ import annotations

import pytest
from live_captures import judged, live_run

from tokenwire.judging.verdict import Verdict

HOLDS = (
    *("rendered-ids-are-run", "rendered-request-answers-alike"),
    *("derendered-message-is-the-chats", "derendered-logprobs-are-the-chats"),
    *("derendered-deltas-add-up", "impossible-derender-refused"),
)


@pytest.mark.parametrize("requirement", HOLDS)
def test_what_the_server_keeps_is_seen(requirement: str) -> None:
    [judgement] = judged(live_run("vllm-0.33-split-pipeline-steps"), requirement)
    assert judgement.verdict is Verdict.PASS


def test_a_lost_count_is_a_warning() -> None:
    [judgement] = judged(live_run("vllm-0.33-split-pipeline-steps"), "derendered-counts-are-the-chats")
    assert judgement.verdict is Verdict.WARN
    assert "reasoning_tokens is None, but 20" in judgement.violations[0].message
