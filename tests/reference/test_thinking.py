"""The budget of reasoning: what may follow, id by id."""

from __future__ import annotations

import pytest

from tokenwire_reference.extras.builtin import byte_level_tokenizer
from tokenwire_reference.extras.thinking import ThinkingBudget

TOKENIZER = byte_level_tokenizer()
SIZE = len(TOKENIZER)


def said(text: str, tokens: int, *, begun: bool = False, drafts: int = 0) -> str:
    """Return what a model says that wants to say a text, and may have a number of tokens of reasoning."""
    matcher = ThinkingBudget(tokens, begun, TOKENIZER, SIZE).start()
    ids: list[int] = []
    for wanted in TOKENIZER.encode(text, add_special_tokens=False):
        while True:
            sure = max(0, len(ids) - drafts)
            mask = matcher.allowed(ids[:sure], ids[sure:])
            allowed = [token for token in range(SIZE) if mask[token // 8] >> token % 8 & 1]
            if wanted in allowed:
                ids.append(wanted)
                break
            assert len(allowed) == 1
            ids += allowed
    return str(TOKENIZER.decode(ids))


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize(
    ("text", "tokens", "begun", "result"),
    [
        ("<think>abcdef", 3, False, "<think>abc</think>def"),
        ("<think>abcdef", 0, False, "<think></think>abcdef"),
        ("\n <think>abcdef", 2, False, "\n <think>ab</think>cdef"),
        ("<think>ab</think>cdef", 3, False, "<think>ab</think>cdef"),
        ("abcdef", 1, False, "abcdef"),
        ("abcdef", 2, True, "ab</think>cdef"),
        ("<think>abcdef", 2, True, "<think>ab</think>cdef"),
    ],
)
def test_reasoning_ends_at_its_budget(text: str, tokens: int, begun: bool, result: str, drafts: int) -> None:
    assert said(text, tokens, begun=begun, drafts=drafts) == result


def test_a_marker_that_the_model_has_begun_is_completed() -> None:
    matcher = ThinkingBudget(4, False, TOKENIZER, SIZE).start()
    texts = ("<think>", "a", "b", "<", "/")
    ids = [token for text in texts for token in TOKENIZER.encode(text, add_special_tokens=False)]
    while (mask := matcher.allowed(ids)) and set(mask) != {255}:
        ids += [token for token in range(SIZE) if mask[token // 8] >> token % 8 & 1]
    assert TOKENIZER.decode(ids) == "<think>ab</think>"
