"""Conversations of an agent with a parrot: each turn is known, however servers write the history."""

from __future__ import annotations

import pytest

from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.history import SentCall, parted
from tokenwire.parrot.encoding import chat_text, encoder, last_text, most_tokens
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.speaker import Speaker
from tokenwire.parrot.vocabulary import Vocabulary, words_of

SAID = "<think>\nNow I know.\n</think>\n\nIt is warm."
CALL = SentCall("call1", "get_weather", {"city": "Paris", "days": 2}, "")
USER = {"role": "user", "content": "Hello."}
DOORS = [name for name, dialect in load_dialects().items() if dialect.request.turns is not None]


def speaker_of(kind: Vocabulary) -> Speaker:
    words = words_of(kind)
    return Speaker(Parrot(len(words.pieces)), words, encoder(kind))


@pytest.mark.parametrize("kind", Vocabulary)
@pytest.mark.parametrize("door", DOORS)
def test_a_result_is_answered_with_its_script_however_the_history_is_written(
    door: str, kind: Vocabulary
) -> None:
    turns, speaker = load_dialects()[door].request.turns, speaker_of(kind)
    assert turns is not None
    script = (*speaker.encode(SAID), speaker.end)
    behind = (USER, *turns.turn([CALL], reasoning="Hm."))
    result = speaker.reply(script, "tool", behind)
    assert result is not None
    told = SentCall(CALL.id, CALL.name, CALL.arguments, result)
    text = last_text([USER, *turns.turn([told])])
    assert text is not None
    last, most = speaker.encode(text), most_tokens(behind, speaker.encode)
    for before in (0, 1, most // 2, most):
        prompt = (*speaker.encode("x") * before, *last)
        assert speaker.law.answer(prompt, len(script)) == script, before


@pytest.mark.parametrize("door", DOORS)
def test_all_forms_of_a_turn_are_told_apart(door: str) -> None:
    turns = load_dialects()[door].request.turns
    assert turns is not None
    told = SentCall("call1", "get_weather", {"city": "Paris"}, "warm")
    bare, thought = ([USER, *turns.turn([told], reasoning=reasoning)] for reasoning in ("", "Hm."))
    ours, theirs = parted(bare), parted(thought)
    assert (ours.results, theirs.results) == (("warm",), ("warm",))
    assert (ours.reasoning, bool(theirs.reasoning)) == ("", True)
    assert ours.without_reasoning == theirs.without_reasoning == tuple(bare)
    assert "warm" not in str(ours.without_results)
    assert (ours.has_turns, parted([USER]).has_turns) == (True, False)


def test_a_template_is_not_known_to_write_what_servers_give_it_otherwise() -> None:
    called = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    assert chat_text([{"role": "assistant", "content": None, "tool_calls": [called]}]) == (
        "<|im_start|>assistant\n<tool_call>f a=1</tool_call><|im_end|>\n<|im_start|>assistant\n"
    )
    for message in (
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1.5}'}}],
        },
        {"role": "user", "content": [{"type": "text", "text": "hm"}]},
    ):
        assert chat_text([message]) is None
