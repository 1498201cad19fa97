"""Every recording of a real server is judged as `fixtures/expected.yaml` says, exchange by exchange.

A verdict that changes here changes for every user of the suite: look at the event, then at the sentence.
Where the new verdict is right, `python tests/end_to_end/test_recorded_servers.py` writes the file anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tokenwire.judge import judge
from tokenwire.replay import replay
from tokenwire.tokenizer import LocalTokenizer
from tokenwire.verdict import Verdict

FIXTURES = Path(__file__).parents[2] / "fixtures"
EXPECTED = FIXTURES / "expected.yaml"
CAPTURES = sorted(path.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("*/*/*.jsonl.gz"))
MODELS = {"sglang": "tiny-qwen2", "vllm": "tiny-llama"}
"""Which model the recorded servers had."""
RED = {Verdict.FAIL, Verdict.WARN, Verdict.HARNESS_ERROR}


def judged(capture: str) -> dict[str, Any]:
    """How many requirements pass, and which are violated by which exchanges."""
    tokenizer = LocalTokenizer(FIXTURES / "models" / MODELS[capture.partition("/")[0]])
    judgements = judge(replay([FIXTURES / capture], tokenizer=tokenizer).runs)
    violated = {
        f"{one.verdict} {one.requirement.id}": sorted({seen.place.exchange for seen in one.violations})
        for one in judgements
        if one.verdict in RED
    }
    return {"PASS": sum(one.verdict is Verdict.PASS for one in judgements), "violated": violated}


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_recorded_server_is_judged_as_before(capture: str) -> None:
    expected = yaml.safe_load(EXPECTED.read_text("utf-8"))
    assert judged(capture) == expected[capture]


def test_every_capture_has_its_verdicts() -> None:
    assert sorted(yaml.safe_load(EXPECTED.read_text("utf-8"))) == CAPTURES


TITO = {"asked-or-refused", "prompt-tokens-count-the-input-ids", "malformed-input-ids-refused"}
CUSTOMIZED = {"customized-info-whole", "whole-accumulates", "coalescing-keeps-all"}


@pytest.mark.parametrize("case", ["cumul_int1", "incr_int1", "incr_int4"])
def test_the_release_before_the_three_changes_is_red_and_the_one_with_them_is_not(case: str) -> None:
    """SGLang PRs #27205 and #23751: the old release breaks what the new one keeps."""
    before = {red.split()[1] for red in judged(f"sglang/0.5.12.post1/{case}.jsonl.gz")["violated"]}
    after = {red.split()[1] for red in judged(f"sglang/0.5.13/{case}.jsonl.gz")["violated"]}
    assert before >= TITO | CUSTOMIZED
    # The newer release ignores `return_token_ids`, a field that came later (PR #30917), and nothing else.
    assert after == {"asked-or-refused"}


if __name__ == "__main__":
    EXPECTED.write_text(
        yaml.safe_dump({capture: judged(capture) for capture in CAPTURES}, width=110), "utf-8"
    )
