"""The scenario on channels: it finds out how a server says what it is told, and which markup it reads."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
from canned import CannedSender
from channel_answers import FORMS, call, piece, streamed, text, thought, whole
from item_answers import message, response

from tokenwire.asking.scenario import Conversation, Transcript, load_scenarios
from tokenwire.cli import app
from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.markup import Markup, load_markup, read_markup
from tokenwire.judging.judge import judge
from tokenwire.judging.run import Run
from tokenwire.judging.verdict import Verdict
from tokenwire.parrot.encoding import encoder
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.speaker import Speaker
from tokenwire.parrot.vocabulary import Vocabulary, words_of
from tokenwire.record import Stream
from tokenwire.requirement import load_requirements
from tokenwire.target.advertised import Advertised
from tokenwire.wire.exchange import Exchange, HttpRequest


@dataclass
class Grammatical(CannedSender):
    """A server whose grammar holds from the first token on where thinking is off; its parsers are right."""

    form: str = "hermes"
    grammar: bool = True

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        body = dict(request.body or {})
        thinks = body.get("chat_template_kwargs") != {"enable_thinking": False}
        pattern = body.get("regex", "") if self.grammar and not thinks else "hmm, hm"
        answer = re.sub(r"\\(.)", r"\1", pattern)
        budget = body.get("max_completion_tokens", 400)
        pieces = re.findall(r"\s+|\w+|\W", answer)
        cut = len(pieces) > budget
        spoken = "".join(pieces[:budget])
        form = FORMS[self.form] if "tools" in body else None
        reading = read_markup(spoken, Markup(load_markup()[0]["think"], form))
        calls = [
            piece(call.name, json.dumps(call.arguments), index) for index, call in enumerate(reading.calls)
        ]
        known = {key: body[key] for key in ("stop", "n") if key in body}
        finish = "length" if cut else None
        content = "".join(reading.contents).strip() + (reading.cut or "")
        if body.get("stream"):
            before, *behind = (
                text(part) for part in (*reading.contents[:-1], reading.contents[-1] + (reading.cut or ""))
            )
            parts = [delta for pair in zip(map(call, calls), behind, strict=True) for delta in pair]
            deltas = [thought(reading.reasoning), before, *parts]
            stream = streamed(spoken, *deltas, finish=finish, **known)
        else:
            stream = whole(
                spoken, content, *calls, reasoning=reading.reasoning or None, finish=finish, **known
            )
        self.names.append(name)
        return replace(stream.exchange, name=name, scenario=scenario, request=request)


def talked(sender: CannedSender, dialect: str = "sglang-chat", **how: Any) -> tuple[list[Stream], Transcript]:
    transcript = Transcript()
    talk = Conversation("channels", load_dialects()[dialect], sender, Advertised(), transcript, **how)
    asyncio.run(load_scenarios()["channels"].run(talk))
    return transcript.streams, transcript


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_the_way_and_the_form_are_found_out_by_asking(form: str) -> None:
    sender = Grammatical(form=form)
    streams, _ = talked(sender)
    labels = [name.removeprefix("sglang-chat/channels/") for name in sender.names]
    tried = list(FORMS)[: list(FORMS).index(form) + 1]
    assert labels[: 2 + len(tried)] == ["way-0", "way-1", *(f"form-{name}" for name in tried)]
    assert {"calls-whole", "calls-stream", "rich-arguments-stream", "cut-call-whole"} <= set(labels)
    rows = [row for row in load_requirements().values() if row.chapter == "channels"]
    run = Run(tuple(streams))
    assert run.markup.form == FORMS[form]
    assert run.capabilities["forced-text"].established == "seen in sglang-chat/channels/way-1"
    verdicts = {judgement.requirement.id: judgement.verdict for judgement in judge([run], rows)}
    assert {name for name, verdict in verdicts.items() if verdict is Verdict.FAIL} == set()
    assert verdicts["channels-hold-all-text"] is verdicts["stream-channels-equal-whole"] is Verdict.PASS


def test_a_form_that_is_named_is_not_looked_for() -> None:
    sender = Grammatical(form="qwen3_xml")
    talked(sender, tool_calls="qwen3_xml")
    assert not [name for name in sender.names if "form-" in name]
    assert "sglang-chat/channels/calls-stream" in sender.names


def test_a_server_without_a_grammar_is_asked_no_texts_and_the_report_says_why() -> None:
    sender = Grammatical(grammar=False)
    _, transcript = talked(sender)
    assert len(sender.names) == 2
    assert "no grammar applies" in transcript.not_asked["sglang-chat/channels/texts"]
    plain = Grammatical()
    talked(plain, "openai-chat")
    assert plain.names == []


class LooksForItsMarkerInThePrompt(Grammatical):
    """Streams of a prompt that holds the end of thoughts are not taken apart (SGLang, vLLM: the last marker
    anywhere decides).
    """

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        exchange = await super().send(name, scenario, request, **how)
        body = dict(request.body or {})
        if not body.get("stream") or "</think>" not in body["messages"][0]["content"]:
            return exchange
        answer = re.sub(r"\\(.)", r"\1", body["regex"])
        stream = streamed(answer, text(answer))
        return replace(stream.exchange, name=name, scenario=scenario, request=request)


def test_a_marker_in_the_prompt_takes_no_stream_apart_otherwise() -> None:
    verdicts = {}
    for sender in (Grammatical(), LooksForItsMarkerInThePrompt()):
        streams, _ = talked(sender)
        row = load_requirements()["stream-channels-equal-whole"]
        verdicts[type(sender)] = judge([Run(tuple(streams))], [row])[0].verdict
    assert verdicts == {Grammatical: Verdict.PASS, LooksForItsMarkerInThePrompt: Verdict.FAIL}


class RefusesLogprobs(CannedSender):
    """A server whose parsers stand in the way of logprobs."""

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        self.status = 400 if "include" in (request.body or {}) else 200
        self.body = json.dumps(response(message())).encode() if self.status == 200 else b'{"error": {}}'
        return await super().send(name, scenario, request, **how)


def test_texts_are_asked_without_logprobs_where_these_are_refused() -> None:
    words = words_of(Vocabulary.BYTE_LEVEL)
    parrot = Speaker(Parrot(len(words.pieces), 1024), words, encoder(Vocabulary.BYTE_LEVEL))
    scored = {}
    for sender in (RefusesLogprobs(), CannedSender(json.dumps(response(message())).encode())):
        streams, _ = talked(sender, "openai-responses", parrot=parrot, tool_calls="hermes")
        scored[type(sender)] = {stream.asked.logprobs for stream in streams[1:]}
        assert streams[0].asked.logprobs
        assert len(streams) > 30
    assert scored == {RefusesLogprobs: {False}, CannedSender: {True}}


def test_a_form_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["check", "--target", "http://127.0.0.1:9", "--channels", "latin"])
    assert "latin is not a format of tool calls" in re.sub(r"\W+", " ", capsys.readouterr().err)


@pytest.mark.parametrize("dialect", ["sglang-chat", "vllm-chat"])
def test_what_a_grammar_admits_is_read_back(dialect: str) -> None:
    grammar = load_dialects()[dialect].request.says
    assert grammar is not None
    for words in ('a{"b": [1]}/c-d.e?\\n\n<é😀>', "Hello.", ""):
        assert grammar.text(grammar.body(words, 1)) == words
    assert (
        grammar.text(grammar.body("a", 0) | {"regex": "a|b", "structured_outputs": {"regex": "a|b"}}) is None
    )
    assert grammar.text({}) is None
