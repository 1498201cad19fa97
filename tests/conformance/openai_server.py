"""A correct OpenAI-compatible server without a network: chat, completions, the legal habits of families.

Its tokens are words, chosen by a checksum of what stands before them. It tells no ids.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tokenwire.asking.preflight import Preflight, preflight
from tokenwire.asking.scenario import Conversation, Transcript, load_scenarios
from tokenwire.dialects.dialect import load_dialects
from tokenwire.judging.run import Run
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, Read

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "tiny"
_VOCABULARY = [f" {first}{rest}" for first in "bdfklmnprst" for rest in ("a", "el", "ino", "ust", "oven")]
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "max_tokens": (int,),
    "n": (int,),
    "temperature": (int, float),
    "stop": (str, list),
    "stream": (bool,),
    "stream_options": (dict,),
    "seed": (int,),
}
_CHAT_FIELDS = {**_FIELDS, "messages": (list,), "logprobs": (bool,), "top_logprobs": (int,)}
_TEXT_FIELDS = {**_FIELDS, "prompt": (str, list), "logprobs": (int,), "echo": (bool,)}
_LEAST = {"max_tokens": 0, "n": 1, "temperature": 0, "top_logprobs": 0, "logprobs": 0}


@dataclass(frozen=True)
class Habits:
    """What a family writes beside what OpenAI writes, and may."""

    filters: bool = False
    """Azure: streams begin with an event on the prompt, and events on what was filtered come in between and
    after the finish reason.
    """
    thoughts: int = 0
    """So many tokens of a chat answer are thoughts: `reasoning_content`, beside the content."""
    thought_logprobs: bool = True
    """Thoughts have logprobs, in a list of their own."""
    stops_in_thoughts: bool = False
    """Stop strings are looked for in thoughts, too."""
    usage_always: bool = False
    finish: str = ""
    """Another word for the finish reason `stop`."""
    owned_by: str = "openai"
    token_bytes: bool = True
    """Logprobs of chat tell the bytes of each token; TGI's do not."""


@dataclass(frozen=True)
class _Written:
    """One choice: its tokens, the text that is shown of them, and why it ended."""

    tokens: list[str]
    text: str
    finish: str
    prompt: str

    def pieces(self) -> Iterator[str]:
        """The text that each token adds."""
        shown = 0
        for token in self.tokens:
            yield self.text[shown : shown + len(token)]
            shown += len(token)


def _logprob(token: str, place: int) -> float:
    return -1.0 - crc32(f"{token}{place}".encode()) % 1000 / 1000


def _top(token: str, place: int, count: int) -> dict[str, float]:
    others = [word for word in _VOCABULARY if word != token][: max(0, count - 1)]
    lower = {word: _logprob(token, place) - 1 - rank for rank, word in enumerate(others)}
    return {token: _logprob(token, place)} | lower if count else {}


def _entry(token: str, place: int, count: int, *, token_bytes: bool) -> dict[str, Any]:
    def named(word: str, logprob: float) -> dict[str, Any]:
        return {"token": word, "logprob": logprob, **({"bytes": list(word.encode())} if token_bytes else {})}

    top = [named(word, logprob) for word, logprob in _top(token, place, count).items()]
    return named(token, _logprob(token, place)) | {"top_logprobs": top}


def _lists(tokens: Sequence[str], start: int, offset: int, count: int) -> dict[str, Any]:
    offsets = itertools.accumulate(map(len, tokens[:-1]), initial=offset)
    return {
        "tokens": list(tokens),
        "token_logprobs": [_logprob(token, start + place) for place, token in enumerate(tokens)],
        "top_logprobs": [_top(token, start + place, count) for place, token in enumerate(tokens)],
        "text_offset": list(offsets) if tokens else [],
    }


class _RefusalError(ValueError):
    status = 400


class _UnknownModelError(_RefusalError):
    status = 404


@dataclass
class OpenAIServer:
    """Stands in for the recorder: asks are answered as the server would."""

    habits: Habits = field(default_factory=Habits)
    _seeds: Iterator[int] = field(default_factory=itertools.count)

    async def send(self, name: str, scenario: str, request: HttpRequest, **_: Any) -> Exchange:
        status, media_type, data = self._answer(request)
        return Exchange(
            name,
            request,
            scenario,
            status,
            (("content-type", media_type),),
            (Read(0.01, data),),
            Ending.COMPLETE,
            started=f"{next(self._seeds):09}",
        )

    def first_words(self) -> Preflight:
        return asyncio.run(preflight("http://target", self, list(load_dialects().values())))

    def run(self, *scenarios: str) -> Run:
        """What came of asking some scenarios, or all of them, in the dialects that are detected."""
        found = self.first_words()
        transcript = Transcript()

        async def talk() -> None:
            for name, scenario in load_scenarios().items():
                for dialect in found.speaks if not scenarios or name in scenarios else ():
                    if scenario.chat in (None, dialect.chat) and not scenario.worker:
                        conversation = Conversation(
                            name, dialect, self, found.advertised, transcript, found.model
                        )
                        await scenario.run(conversation)

        asyncio.run(talk())
        return Run(tuple(transcript.streams), found.advertised)

    def _answer(self, request: HttpRequest) -> tuple[int, str, bytes]:
        try:
            if (request.method, request.path) == ("GET", "/v1/models"):
                listed = [{"id": MODEL, "object": "model", "owned_by": self.habits.owned_by}]
                return 200, "application/json", json.dumps({"object": "list", "data": listed}).encode()
            if request.method != "POST" or request.path not in (CHAT, COMPLETIONS):
                raise _UnknownModelError(f"no such endpoint: {request.method} {request.path}")
            return self._complete(request.path == CHAT, _read(request))
        except _RefusalError as refusal:
            error = {"message": str(refusal), "type": "invalid_request_error", "param": None, "code": None}
            return refusal.status, "application/json", json.dumps({"error": error}).encode()

    def _complete(self, chat: bool, body: Mapping[str, Any]) -> tuple[int, str, bytes]:
        _demand_legal(body, _CHAT_FIELDS if chat else _TEXT_FIELDS)
        prompts = _prompts(chat, body)
        choices = [self._write(prompt, body) for prompt in prompts for _ in range(body.get("n", 1))]
        kind = "chat.completion" if chat else "text_completion"
        head = {"id": f"{kind}-{next(self._seeds)}", "object": kind, "created": 1, "model": MODEL}
        write = self._chat_choice if chat else self._text_choice
        usage = self._usage(prompts, choices)
        if not body.get("stream"):
            answer = {**head, "choices": [write(index, item, body) for index, item in enumerate(choices)]}
            return 200, "application/json", json.dumps({**answer, "usage": usage}).encode()
        if chat:
            head["object"] = "chat.completion.chunk"
        stream = self._chat_events if chat else self._text_events
        events: list[Mapping[str, Any]] = [
            {**head, "choices": [choice]}
            for index, item in enumerate(choices)
            for choice in stream(index, item, body)
        ]
        if chat and self.habits.filters:
            events = list(_with_filters(events))
        if self.habits.usage_always or (body.get("stream_options") or {}).get("include_usage"):
            events.append({**head, "choices": [], "usage": usage})
        data = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
        return 200, "text/event-stream", data + b"data: [DONE]\n\n"

    def _write(self, prompt: str, body: Mapping[str, Any]) -> _Written:
        greedy = body.get("temperature", 1) == 0
        sample = "" if greedy else body.get("seed", next(self._seeds))
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        tokens: list[str] = []
        for place in range(body.get("max_tokens", 16)):
            tokens.append(_VOCABULARY[crc32(f"{prompt}{sample}{place}".encode()) % len(_VOCABULARY)])
            text = "".join(tokens[self.habits.thoughts :])
            ends = [text.index(stop) for stop in stops if stop in text]
            if ends:
                return _Written(tokens, text[: min(ends)], self.habits.finish or "stop", prompt)
            thoughts = "".join(tokens[: self.habits.thoughts])
            if self.habits.stops_in_thoughts and any(stop in thoughts for stop in stops):
                return _Written(tokens, "", "stop", prompt)
        return _Written(tokens, "".join(tokens[self.habits.thoughts :]), "length", prompt)

    def _usage(self, prompts: Sequence[str], choices: Sequence[_Written]) -> dict[str, Any]:
        asked = sum(len(prompt.split()) for prompt in prompts)
        made = sum(len(choice.tokens) for choice in choices)
        usage = {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
        thoughts = sum(min(self.habits.thoughts, len(choice.tokens)) for choice in choices)
        return usage | ({"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {})

    def _chat_logprobs(self, written: _Written, body: Mapping[str, Any]) -> Any:
        if not body.get("logprobs"):
            return None
        entries = [
            _entry(token, place, body.get("top_logprobs", 0), token_bytes=self.habits.token_bytes)
            for place, token in enumerate(written.tokens)
        ]
        found = {"content": entries[self.habits.thoughts :]}
        if self.habits.thought_logprobs:
            found["reasoning_content"] = entries[: self.habits.thoughts]
        return found

    def _chat_choice(self, index: int, written: _Written, body: Mapping[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": written.text}
        if self.habits.thoughts:
            message["reasoning_content"] = "".join(written.tokens[: self.habits.thoughts])
        return {
            "index": index,
            "message": message,
            "logprobs": self._chat_logprobs(written, body),
            "finish_reason": written.finish,
        }

    def _chat_events(self, index: int, written: _Written, body: Mapping[str, Any]) -> Iterator[Any]:
        def chunk(delta: Mapping[str, Any], logprobs: Any = None, finish: str | None = None) -> Any:
            return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

        yield chunk({"role": "assistant", "content": ""})
        thoughts, asked, top = self.habits.thoughts, body.get("logprobs"), body.get("top_logprobs", 0)
        shown = 0
        for place, token in enumerate(written.tokens):
            entries = [_entry(token, place, top, token_bytes=self.habits.token_bytes)]
            if place < thoughts:
                found = {"content": None, "reasoning_content": entries}
                with_them = asked and self.habits.thought_logprobs
                yield chunk({"content": None, "reasoning_content": token}, found if with_them else None)
                continue
            piece = written.text[shown : shown + len(token)]
            shown += len(token)
            yield chunk({"content": piece}, {"content": entries} if asked else None)
        yield chunk({}, None, written.finish)

    def _text_choice(self, index: int, written: _Written, body: Mapping[str, Any]) -> dict[str, Any]:
        echo = written.prompt if body.get("echo") else ""
        choice = {"index": index, "text": echo + written.text, "finish_reason": written.finish}
        count = body.get("logprobs")
        if count is None:
            return choice
        tokens = written.tokens[self.habits.thoughts :]
        lists = _lists(tokens, 0, len(echo), count)
        if echo:
            words = [word if number == 0 else f" {word}" for number, word in enumerate(echo.split())]
            before = _lists(words, 500, 0, count)
            before["token_logprobs"][0] = before["top_logprobs"][0] = None
            lists = {name: before[name] + lists[name] for name in lists}
        return {**choice, "logprobs": lists}

    def _text_events(self, index: int, written: _Written, body: Mapping[str, Any]) -> Iterator[Any]:
        whole = self._text_choice(index, written, body)
        found = whole.get("logprobs")
        echo = written.prompt if body.get("echo") else ""
        before = len(echo.split())
        if echo:
            part = {name: entries[:before] for name, entries in found.items()} if found else None
            yield {"index": index, "text": echo, "logprobs": part, "finish_reason": None}
        for number, piece in enumerate(written.pieces()):
            place = slice(before + number, before + number + 1)
            part = {name: entries[place] for name, entries in found.items()} if found else None
            yield {"index": index, "text": piece, "logprobs": part, "finish_reason": None}
        yield {"index": index, "text": "", "logprobs": None, "finish_reason": written.finish}


def _read(request: HttpRequest) -> Mapping[str, Any]:
    try:
        body = request.body if request.raw_body is None else json.loads(request.raw_body.decode())
    except (ValueError, RecursionError) as error:
        raise _RefusalError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _RefusalError(f"the body is {body!r:.40}, not an object")
    return {name: value for name, value in body.items() if value is not None}


def _demand_legal(body: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]) -> None:
    for name, value in body.items():
        if name not in fields:
            raise _RefusalError(f"Unrecognized request argument supplied: {name}")
        fits = isinstance(value, fields[name]) and (bool in fields[name] or not isinstance(value, bool))
        if isinstance(value, list) and name == "stop":
            fits = all(isinstance(item, str) for item in value)
        too_small = fits and name in _LEAST and not isinstance(value, bool) and value < _LEAST[name]
        if not fits or too_small or (isinstance(value, float) and not math.isfinite(value)):
            raise _RefusalError(f"Invalid value for {name}: {value!r:.80}")
    if body.get("model") != MODEL:
        raise _UnknownModelError(f"The model {body.get('model')!r} does not exist")


def text_of(message: Mapping[str, Any]) -> str:
    """Return the content of a message: a text, or the joined texts of its parts."""
    content = message.get("content", "")
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return str(content)


def _prompts(chat: bool, body: Mapping[str, Any]) -> list[str]:
    if chat:
        messages = body.get("messages")
        if not messages or not all(isinstance(message, dict) and "role" in message for message in messages):
            raise _RefusalError(f"Invalid value for messages: {messages!r:.80}")
        return [" ".join(text_of(message) for message in messages)]
    prompt = body.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not prompts or not all(isinstance(item, str) and item for item in prompts):
        raise _RefusalError(f"Invalid value for prompt: {prompt!r:.80}")
    return list(prompts)


def _with_filters(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Azure's annotations: on the prompt at the head, on the content in the middle and at the end."""
    blank = {"id": "", "object": "", "created": 0, "model": ""}
    on_prompt = {"prompt_index": 0, "content_filter_results": {}}
    offsets = {"check_offset": 0, "start_offset": 0, "end_offset": 9}
    filtered: dict[str, Any] = {"index": 0, "finish_reason": None, "content_filter_results": {}}
    later = {**blank, "choices": [{**filtered, "content_filter_offsets": offsets}], "usage": None}
    yield {**blank, "choices": [], "prompt_filter_results": [on_prompt]}
    for number, event in enumerate(events):
        yield event
        if number == len(events) // 2:
            yield later
    yield later
