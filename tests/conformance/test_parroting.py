"""A target that parrots is found by one request, and told scripts in every form that its endpoints take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from canned import CannedSender
from recorded import IDS, document

from tokenwire.ask import Asked
from tokenwire.asking.parroting import find_parrot
from tokenwire.asking.preflight import preflight
from tokenwire.asking.scenario import Conversation, Transcript, load_scenarios
from tokenwire.dialects.dialect import load_dialects
from tokenwire.parrot.encoding import chat_text, encoder
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.script import truth
from tokenwire.parrot.speaker import Speaker
from tokenwire.parrot.vocabulary import Vocabulary, words_of
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Exchange, HttpRequest

IDS_CHAT = "sglang-chat"


def speaker_of(kind: Vocabulary, distance: int = 1024) -> Speaker:
    words = words_of(kind)
    law = Parrot(len(words.pieces), distance)
    return Speaker(law, words, encoder(kind))


class ParrotSender(CannedSender):
    """Answers what the parrot of a vocabulary says, at one endpoint."""

    def __init__(self, path: str, speaker: Speaker, template: str = "") -> None:
        super().__init__()
        self._path, self._speaker, self._template = path, speaker, template

    async def send(self, name: str, scenario: str, request: HttpRequest, **rest: object) -> Exchange:
        self.status = 200 if request.path == self._path else 404
        if self.status == 200:
            self.body = json.dumps(self._answer(request.body)).encode()
        return await super().send(name, scenario, request, **rest)

    def _answer(self, body: dict[str, object]) -> object:
        prompt, budget = self.prompt(body), 4
        for part in (body, body.get("sampling_params", {})):
            assert isinstance(part, dict)
            budget = next(
                (
                    part[key]
                    for key in ("max_new_tokens", "max_tokens", "max_completion_tokens")
                    if key in part
                ),
                budget,
            )
        right = truth(
            self._speaker.law, self._speaker.words, prompt, Asked(greedy=True, max_new_tokens=budget)
        )
        assert right is not None
        if "sampling_params" in body:
            info = {"id": "a", "finish_reason": {"type": "length", "length": budget}}
            counts = {"prompt_tokens": len(prompt), "completion_tokens": budget}
            return {"text": right.text, "output_ids": right.ids, "meta_info": info | counts}
        shown = {"message": {"role": "assistant", "content": right.text}} if "messages" in body else {}
        choice = {"index": 0, "text": right.text, "finish_reason": "length", "logprobs": None} | shown
        usage = {"prompt_tokens": len(prompt), "completion_tokens": budget, "total_tokens": 0}
        return {"id": "a", "object": "x", "created": 1, "model": "m", "choices": [choice], "usage": usage}

    def prompt(self, body: dict[str, object]) -> Sequence[int]:
        if "messages" in body and "input_ids" not in body:
            return self._speaker.encode(self._template + (chat_text(body["messages"]) or ""))
        found = body.get("input_ids") or body.get("prompt")
        return self._speaker.encode(found) if isinstance(found, str) else found  # type: ignore[return-value]


def found_by(sender: CannedSender, *dialects: str, named: bool = False) -> Speaker | None:
    async def find() -> Speaker | None:
        wanted = [load_dialects()[name] for name in dialects]
        found = await preflight("http://target", sender, wanted, named=named)
        assert found.speaks
        return await find_parrot(found, sender)

    return asyncio.run(find())


@pytest.mark.parametrize("kind", Vocabulary)
@pytest.mark.parametrize(
    ("path", "dialect"),
    [("/generate", "sglang-generate"), ("/v1/completions", "openai-completions"),
     ("/v1/chat/completions", "openai-chat")],
)  # fmt: skip
def test_a_parrot_is_found_with_its_vocabulary_by_one_request(
    path: str, dialect: str, kind: Vocabulary
) -> None:
    sender = ParrotSender(path, speaker_of(kind))
    found = found_by(sender, dialect)
    assert found is not None
    assert (found.words, found.law.distance, found.templated) == (words_of(kind), 1024, True)
    assert [name for name in sender.names if name.endswith("script")] == [f"preflight/{dialect}-script"]


def test_words_that_answer_messages_do_not_tell_that_a_target_is_no_parrot() -> None:
    """A template puts ids around them: what the reference then says first is a line end and `user`."""

    class Templated(ParrotSender):
        def _answer(self, body: dict[str, object]) -> object:
            answer = super()._answer(body)
            assert isinstance(answer, dict)
            if "input_ids" not in body:
                answer["choices"][0]["message"]["content"] = "\nuser"
            return answer

    sender = Templated("/v1/chat/completions", speaker_of(Vocabulary.BYTE_LEVEL, 512))
    assert found_by(sender, IDS_CHAT, named=True) is not None


@pytest.mark.parametrize("distance", [256, 512])
def test_other_distances_are_told_apart_as_far_as_scripts_reach(distance: int) -> None:
    right = speaker_of(Vocabulary.BYTE_LEVEL, distance)
    found = found_by(ParrotSender("/generate", right), "sglang-generate")
    assert found is not None
    generate, script = load_dialects()["sglang-generate"], tuple(range(20, 220))
    ask = found.ask(generate, script)
    assert ask is not None
    assert right.law.answer(ask.input_ids[0], 200) == script


def test_another_chat_template_is_no_way_to_tell_a_script() -> None:
    sender = ParrotSender("/v1/chat/completions", speaker_of(Vocabulary.BYTE_LEVEL), "A system prompt.\n")
    found = found_by(sender, "openai-chat")
    assert found is None or not found.templated


def test_who_does_not_repeat_itself_is_not_asked_for_a_script() -> None:
    sender = CannedSender(json.dumps(document(IDS, finished=True)).encode())
    assert found_by(sender, "sglang-generate") is None
    assert not [name for name in sender.names if "script" in name]


SCRIPT = "The parrot says 漢字かな 😀 again."


@pytest.mark.parametrize("kind", Vocabulary)
@pytest.mark.parametrize("name", ["sglang-generate", "openai-chat", "vllm-chat"])
def test_a_script_is_said_whatever_the_form_of_the_prompt(name: str, kind: Vocabulary) -> None:
    speaker, dialect = speaker_of(kind), load_dialects()[name]
    script = (*speaker.encode(SCRIPT), speaker.end)
    ask = speaker.ask(dialect, script)
    assert ask is not None
    request = dialect.render(replace(ask, max_new_tokens=len(script)))
    assert isinstance(request, HttpRequest)
    prompt = ParrotSender("", speaker).prompt(request.body)
    assert speaker.law.answer(prompt, len(script)) == script


def test_a_script_that_no_text_becomes_is_not_said_in_words() -> None:
    speaker = speaker_of(Vocabulary.BYTE_LEVEL)
    chat = load_dialects()["openai-chat"]
    assert speaker.ask(chat, speaker.bytes(b"\xf0\x9f")) is None
    assert speaker.ask(chat, speaker.bytes("the parrot")) is None, "a tokenizer makes fewer ids of it"
    assert replace(speaker, templated=False).ask(chat, speaker.encode("it")) is None
    assert speaker.ask(load_dialects()["sglang-generate"], (5,) * 1025) is None


@pytest.mark.parametrize(("name", "most"), [("sglang-generate", 64), (IDS_CHAT, 80), ("openai-chat", 80)])
def test_scenarios_of_scripts_are_asked_of_parrots_alone_and_take_few_requests(name: str, most: int) -> None:
    dialect, sender = load_dialects()[name], CannedSender()
    found = {item.name: item for item in load_scenarios().values() if item.parrot}

    def talk(scenario: str, speaker: Speaker | None) -> Conversation:
        return Conversation(scenario, dialect, sender, Advertised(), Transcript(), parrot=speaker)

    for item in found.values():
        asyncio.run(item.run(talk(item.name, None)))
    assert sender.names == []
    for item in found.values():
        asyncio.run(item.run(talk(item.name, speaker_of(Vocabulary.BYTE_LEVEL))))
    in_words = {"script-abort", "script-prompts", *(name for name in found if name.startswith("scheduled-"))}
    """No text becomes these scripts, or the family knows no abort, or passes no schedule on."""
    asked = {item.split("/")[1] for item in sender.names}
    of_messages = set() if dialect.chat else {"plain-path", "usual-shapes"}
    assert asked == found.keys() - of_messages - (in_words if name == "openai-chat" else set())
    assert len(sender.names) == len(set(sender.names)) <= most
