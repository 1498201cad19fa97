"""Captures of live servers: each breaks the rows that its server breaks, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from live_captures import RECORDINGS, live_run

from tokenwire.judging.judge import judge
from tokenwire.judging.verdict import SEVERITY, Verdict

TABLE: dict[str, dict[str, Any]] = yaml.safe_load(
    (RECORDINGS.parent / "live-captures.yaml").read_text("utf-8")
)
ELSEWHERE = {
    "blame-least-tokens": "test_death",
    "blame-parrot": "test_cause_table",
    "dynamo-503-death": "test_death",
    "dynamo-random": "test_determinism",
    "echo-taken-for-parrot": "test_parrot_recognition",
    "hf-error-breaks-frame": "test_live_answers",
    "hf-temperature": "test_checks_sampling",
    "id-in-use-passes": "test_checks_abort",
    "litellm-usage-zero": "test_live_answers",
    "router-marker-in-pieces": "test_live_answers",
    "stop-string-shown": "test_cause_table",
    "vllm-0.33-python-standard": "test_vllm_front_ends",
    "vllm-0.33-rust-standard": "test_vllm_front_ends",
    "vllm-candidates-of-neighbours": "test_vllm_front_ends",
    "vllm-tail-missed": "test_tokenizer",
}
"""The captures that another file of tests judges."""
RED = {Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR}


@pytest.mark.parametrize("name", TABLE)
def test_a_capture_breaks_the_rows_that_its_server_breaks(name: str) -> None:
    found = sorted(judge([live_run(name)]), key=lambda judgement: SEVERITY[judgement.verdict])
    red = {
        judgement.requirement.id: judgement.verdict.name for judgement in found if judgement.verdict in RED
    }
    assert red == TABLE[name].get("red", {}), TABLE[name].get("did")


def test_each_capture_has_a_row_in_the_table_or_a_test_of_its_own() -> None:
    captures = {path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("*.jsonl.gz")}
    assert captures == TABLE.keys() | ELSEWHERE.keys()
    assert not TABLE.keys() & ELSEWHERE.keys()
    for name, file in ELSEWHERE.items():
        assert f'"{name}' in (RECORDINGS.parents[1] / f"{file}.py").read_text("utf-8"), name


def test_the_request_that_ended_the_server_is_blamed_and_no_look_at_its_health() -> None:
    """The live report named the 14th look, its replay the request before that."""
    deaths = live_run("blame-vitals").deaths
    assert [death.name for death in deaths] == ["openai-responses/unknown-ids/top-beyond"]
