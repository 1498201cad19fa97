"""Measure the host's work for each token of a long output, beside repeating it for the whole output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import re2
import torch
from torch import Tensor

from tokenwire_reference.core.detokenizer import Detokenizer, Spelling, spelling
from tokenwire_reference.core.request import SamplingParams
from tokenwire_reference.core.sampling import OutputCounts, SamplingRow, adjust
from tokenwire_reference.core.stopping import StopRules
from tokenwire_reference.extras.builtin import TRAINING_TEXT, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
IDS: list[int] = (TOKENIZER.encode(" ".join(TRAINING_TEXT)) * 100)[:4000]
SPELLED = spelling(TOKENIZER, skip_special_tokens=True)


def _incremental(ids: Sequence[int]) -> str:
    detokenizer = Detokenizer(SPELLED)
    return "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()


def _decode_everything(ids: Sequence[int]) -> str:
    shown = ""
    for count in range(1, len(ids) + 1):
        text = SPELLED.decode(ids[:count])
        shown += text.removesuffix("\ufffd")[len(shown) :]
    return shown + text[len(shown) :]


@pytest.mark.benchmark(group=f"text: {len(IDS)} ids, one at a time")
@pytest.mark.parametrize("detokenize", [_incremental, _decode_everything])
def test_text(benchmark: Any, detokenize: Any) -> None:
    assert benchmark.pedantic(detokenize, (IDS,), rounds=2) == TOKENIZER.decode(IDS)


def _rules() -> StopRules:
    return StopRules(SamplingParams(stop=("never sent",)), frozenset(), len(IDS) + 1, Detokenizer(SPELLED))


def _look_at_the_last_id(ids: Sequence[int]) -> None:
    rules = _rules()
    for count in range(1, len(ids) + 1):
        assert rules.check(ids[:count]) is None


def _look_at_everything(ids: Sequence[int]) -> None:
    for count in range(1, len(ids) + 1):
        assert "never sent" not in SPELLED.decode(ids[:count])


@pytest.mark.benchmark(group=f"stop strings: {len(IDS)} ids, looked at one by one")
@pytest.mark.parametrize("check", [_look_at_the_last_id, _look_at_everything])
def test_stop_strings(benchmark: Any, check: Any) -> None:
    benchmark.pedantic(check, (IDS,), rounds=2)


PIECES = [SPELLED.decode([token_id]) for token_id in IDS] * 12
PATTERNS = {
    "ids that say a word": (r"(?i)(never|nowhere)\s+said\b", PIECES),
    "a match that may go on to the end": (r"(?s)[a-z].*never sent", PIECES),
    "ids that say a hundred letters": (r"(?i)(never|nowhere)\s+said\b", ["abcdefghij" * 10] * 8000),
}


def _search_the_end(pattern: str, pieces: Sequence[str]) -> None:
    detokenizer = Detokenizer(Spelling(lambda ids: "".join(pieces[i] for i in ids)))
    rules = StopRules(SamplingParams(stop_regex=(pattern,)), frozenset(), 10**6, detokenizer)
    for count in range(1, len(pieces) + 1):
        assert rules.check(range(count)) is None


def _search_everything(pattern: str, pieces: Sequence[str]) -> None:
    """Search as the rules did before: the text was kept, and searched from its beginning."""
    text, compiled = bytearray(), re2.compile(pattern)
    for piece in pieces:
        text += piece.encode()
        assert not compiled.search(text)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("check", [_search_the_end, _search_everything])
def test_stop_patterns(benchmark: Any, check: Any, name: str) -> None:
    benchmark.group = f"stop patterns, looked for at each id: {name}"
    benchmark.pedantic(check, PATTERNS[name], rounds=1)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


PENALTIES = SamplingParams(frequency_penalty=0.5, presence_penalty=0.2, repetition_penalty=1.1)


def _count_what_is_new(logits: Tensor) -> Tensor:
    output_ids: list[int] = []
    counts = OutputCounts(output_ids, logits)
    for token_id in IDS:
        output_ids.append(token_id)
        adjusted = adjust(logits, [SamplingRow(PENALTIES, 0, 0, counts.times())])
    return adjusted


def _count_everything(logits: Tensor) -> Tensor:
    """Adjust as `adjust` did before: the logits of the sampled ids, from a counter of all of them."""
    for count in range(1, len(IDS) + 1):
        counter = Counter(IDS[:count])
        adjusted = logits.clone()
        (values,) = adjusted
        seen, times = torch.tensor(list(counter)), torch.tensor(list(counter.values()), dtype=values.dtype)
        less = values[seen] - (PENALTIES.frequency_penalty * times + PENALTIES.presence_penalty)
        by = PENALTIES.repetition_penalty
        values[seen] = torch.where(less > 0, less / by, less * by)
    return adjusted


@pytest.mark.benchmark(group=f"penalties: {len(IDS)} ids, a step for each")
@pytest.mark.parametrize("penalise", [_count_what_is_new, _count_everything])
def test_penalties(benchmark: Any, penalise: Any) -> None:
    logits = torch.linspace(-9, 9, len(TOKENIZER))[None]
    adjusted = benchmark.pedantic(penalise, (logits,), rounds=2)
    assert torch.equal(adjusted, _count_everything(logits))
