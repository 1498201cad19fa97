"""Sentences that need an engine of chosen steps: each is a requirement that a released server violates.

The captures are fixtures, which the engine made below the servers' own front ends.
"""

from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tokenwire.baselines.expected import expected_file, read_expected
from tokenwire.judging.verdict import Verdict
from tokenwire.requirement import load_requirements

FIXTURES = Path(__file__).parents[2] / "fixtures"


class Violated(NamedTuple):
    """A requirement that says a sentence, and the exchange of a capture that violates it."""

    requirement: str
    capture: str
    exchange: str


SENTENCES = {
    "a batch of mixed customized_info is answered": Violated(
        "requests-do-not-break-the-server", "sglang/0.5.13/engine", "*/scheduled-batches/*"
    ),
    "a neighbour's key does not appear": Violated(
        "customized-info-has-a-value", "sglang/0.5.23/engine-incremental", "*/scheduled-batches/no-key-*"
    ),
    "a late key is beside its ids, streamed": Violated(
        "customized-info-incremental", "sglang/0.5.23/engine-incremental", "*/scheduled-batches/late-key-*"
    ),
    "a late key is beside its ids, in a whole answer": Violated(
        "customized-info-whole", "sglang/0.5.23/engine-cumulative", "*/scheduled-batches/late-key-*"
    ),
    "the stop that comes first in the text wins": Violated(
        "nothing-follows-a-stop-string", "sglang/0.5.23/engine-cumulative", "*/scheduled-steps/stops-*"
    ),
    "it wins however many tokens a step brought": Violated(
        "stop-wins-within-the-budget", "sglang/0.5.13/engine", "*/scheduled-steps/stop-*"
    ),
    "an answer does not depend on tokens per step": Violated(
        "stream-series-equal-whole", "vllm/0.33.0-rust/engine", "*/scheduled-steps/text-*"
    ),
    "an end without a token is an end, streamed": Violated(
        "requests-do-not-break-the-server", "vllm/0.33.0-rust/engine", "*/scheduled-ends/late-abort-stream"
    ),
    "an end without a token is an end, in a whole answer": Violated(
        "requests-do-not-break-the-server", "vllm/0.33.0-rust/engine", "*/scheduled-ends/early-abort-whole"
    ),
    "the head of a stop string is not shown": Violated(
        "stop-prefix-held-back", "sglang/0.5.23/engine-incremental", "*/scheduled-steps/border-*"
    ),
    "the end of a text is shown": Violated(
        "incomplete-tail-is-shown", "vllm/0.33.0/engine", "*/scheduled-steps/cut-*"
    ),
}


@pytest.mark.parametrize("found", SENTENCES.values(), ids=list(SENTENCES))
def test_a_sentence_is_a_requirement_that_a_released_server_violates(found: Violated) -> None:
    assert load_requirements()[found.requirement].kills, "a fault of the reference shows that it can fail"
    outcome = read_expected(FIXTURES / expected_file(f"{found.capture}.jsonl.gz")).outcomes[found.requirement]
    assert outcome.verdict in {Verdict.FAIL, Verdict.WARN}
    assert any(fnmatch(name, found.exchange) for name in outcome.exchanges)
