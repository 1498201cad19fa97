"""The server of `tokenwire demo`: `POST /generate` with SGLang's formats and an invented model.

The server needs only Python. Each token is a byte, and the token's id is the value of the byte. The server
can imitate faults of real servers in its streams.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tokenwire.local_server import LocalHandler, serving

FAULTS = {
    "token-lost": "the sixth token of a stream is lost",
    "logprobs-unsliced": "events of a stream bring the logprobs of all tokens so far, not of the new ones",
    "prompt-tokens-grow": "in streams, prompt_tokens counts the new tokens, too",
}
"""The faults, with descriptions. Each fault was observed in a real server."""

_CONTEXT = 4096
_LOST = 5
_TOKEN_S = 0.002
"""Seconds for each token of a stream."""
_FIELDS = {
    "input_ids",
    "text",
    "sampling_params",
    "stream",
    "rid",
    "return_prompt_token_ids",
    "return_logprob",
}
_SAMPLING = {"max_new_tokens", "n", "stop", "stop_token_ids", "stream_interval", "temperature", "ignore_eos"}
_ABOUT = {
    "/server_info": {"version": "demo", "incremental_streaming_output": True, "context_length": _CONTEXT},
    "/model_info": {"model_path": "demo", "vocab_size": 256},
}


class _RefusedError(ValueError):
    """A request was refused. The message names the field."""


@dataclass(frozen=True)
class _Request:
    """A parsed request."""

    prompts: Sequence[Sequence[int]]
    request_ids: Sequence[str]
    n: int
    budget: int
    stops: Sequence[str]
    stop_ids: Sequence[int]
    interval: int
    stream: bool
    return_prompt_ids: bool
    return_logprobs: bool
    is_list: bool


@dataclass(frozen=True)
class _State:
    """The state of a choice after one of its tokens: all content that was generated so far."""

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: Mapping[str, Any] | None


def _next_token(ids: Sequence[int]) -> tuple[int, float]:
    """Return the next token with its logprob.

    The token is a lower-case letter that depends on all ids before it.
    """
    mixed = sum(position * token for position, token in enumerate(ids, 1))
    return ord("a") + (mixed + ids[-1] * 7) % 26, -(1 + mixed % 997) / 20_000


def _states(request: _Request, prompt: Sequence[int]) -> Iterator[_State]:
    """Yield the state of a choice after each of its tokens. If the budget is 0, yield only the
    empty state.
    """
    ids: list[int] = []
    logprobs: list[float] = []
    finish: dict[str, Any] | None = None if request.budget else {"type": "length", "length": 0}
    held = max((len(stop) - 1 for stop in request.stops), default=0)
    if finish:
        yield _State((), "", (), finish)
    while not finish:
        token, logprob = _next_token([*prompt, *ids])
        ids.append(token)
        logprobs.append(logprob)
        text = bytes(ids).decode()
        found = [stop for stop in request.stops if stop in text]
        if token in request.stop_ids:
            text, finish = text[:-1], {"type": "stop", "matched": token}
        elif found:
            text, finish = text[: text.index(found[0])], {"type": "stop", "matched": found[0]}
        elif len(ids) == request.budget:
            finish = {"type": "length", "length": len(ids)}
        else:  # the text's end is held back, because it may begin a stop string
            text = text[: max(len(text) - held, 0)]
        yield _State(tuple(ids), text, tuple(logprobs), finish)


def _document(
    request: _Request, prompt: Sequence[int], request_id: str, state: _State, before: _State | None = None
) -> dict[str, Any]:
    """Return the JSON document of a state.

    The document is cumulative, or has only the content that is new since the state `before`.
    """
    start, shown = (len(before.ids), len(before.text)) if before else (0, 0)
    meta: dict[str, Any] = {"id": request_id, "finish_reason": state.finish, "cached_tokens": 0}
    meta |= {"prompt_tokens": len(prompt), "completion_tokens": len(state.ids)}
    if request.return_logprobs:
        entries = zip(state.logprobs[start:], state.ids[start:], strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in entries]
    document = {"text": state.text[shown:], "output_ids": list(state.ids[start:]), "meta_info": meta}
    return document | ({"prompt_token_ids": list(prompt)} if request.return_prompt_ids else {})


def _with_faults(
    faults: frozenset[str], document: dict[str, Any], before: _State | None, state: _State
) -> None:
    """Apply the selected faults to an event of a stream."""
    meta = document["meta_info"]
    first = len(before.ids) if before else 0
    if "logprobs-unsliced" in faults and "output_token_logprobs" in meta:
        entries = zip(state.logprobs, state.ids, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in entries]
    elif "token-lost" in faults and len(state.ids) > _LOST:
        if first <= _LOST:
            del document["output_ids"][_LOST - first]
        if "length" in (meta["finish_reason"] or {}):
            meta["finish_reason"] = {"type": "length", "length": len(state.ids) - 1}
    if "prompt-tokens-grow" in faults and len(state.ids) > 1:
        meta["prompt_tokens"] += len(state.ids) - 1


def _events(request: _Request, faults: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, one choice after the other.

    The first event of a choice has one token, and later events have `interval` tokens.
    """
    for index, request_id in enumerate(request.request_ids):
        prompt = request.prompts[index // request.n]
        before: _State | None = None
        for state in _states(request, prompt):
            time.sleep(_TOKEN_S)
            if state.finish is None and (len(state.ids) - 1) % request.interval:
                continue
            document = _document(request, prompt, request_id, state, before)
            _with_faults(faults, document, before, state)
            yield document | ({"index": index} if request.is_list else {})
            before = state


def _answers(request: _Request) -> Any:
    answers = []
    for index, request_id in enumerate(request.request_ids):
        prompt = request.prompts[index // request.n]
        *_, last = _states(request, prompt)
        answers.append(_document(request, prompt, request_id, last))
    return answers if request.is_list else answers[0]


def _parse(body: Any) -> _Request:
    """Parse a request. Raises _RefusedError for every unknown field and invalid value."""
    if not isinstance(body, dict):
        raise _RefusedError("the body must be a JSON object")
    sampling = body.get("sampling_params") or {}
    _demand(isinstance(sampling, dict), "sampling_params", sampling)
    if ("input_ids" in body) == ("text" in body):
        raise _RefusedError("the request must have either input_ids or text, and not both")
    form, kind = ("text", str) if "text" in body else ("input_ids", list)
    is_batch = isinstance(body[form], list) and all(isinstance(prompt, kind) for prompt in body[form])
    given = body[form] if is_batch else [body[form]]
    prompts = [
        list(prompt.encode()) if isinstance(prompt, str) and form == "text" else prompt for prompt in given
    ]
    _demand(bool(prompts) and all(map(_is_prompt, prompts)), form, body[form])
    room = _CONTEXT - max(map(len, prompts))
    budget = _whole_number(sampling, "max_new_tokens", 128, 0)
    _demand(budget <= room, "max_new_tokens", f"{budget}, with room for {room}")
    n = _whole_number(sampling, "n", 1, 1)
    temperature = 0 if sampling.get("temperature") is None else sampling["temperature"]
    _demand(type(temperature) in {int, float} and temperature >= 0, "temperature", temperature)
    stops = _list_of_field(sampling, "stop", str)
    _demand(all(stops), "stop", "an empty string")
    stop_ids = _list_of_field(sampling, "stop_token_ids", int)
    _demand(all(0 <= token < 256 for token in stop_ids), "stop_token_ids", stop_ids)
    for flag in ("stream", "return_prompt_token_ids", "return_logprob"):
        _demand(body.get(flag) in (None, True, False), flag, body.get(flag))
    _demand(sampling.get("ignore_eos") in (None, True, False), "ignore_eos", sampling.get("ignore_eos"))
    for name in [*(body.keys() - _FIELDS), *(sampling.keys() - _SAMPLING)]:
        raise _RefusedError(f"{name} is not a field of this server")
    return _Request(
        prompts,
        _request_ids(body.get("rid"), len(prompts), n),
        n,
        budget,
        stops,
        stop_ids,
        _whole_number(sampling, "stream_interval", 0, 0) or 1,
        bool(body.get("stream")),
        bool(body.get("return_prompt_token_ids")),
        bool(body.get("return_logprob")),
        is_batch or n > 1,
    )


def _demand(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise _RefusedError(f"{name} cannot be {str(value)[:80]}")


def _is_prompt(ids: Any) -> bool:
    return (
        isinstance(ids, list) and ids != [] and all(type(token) is int and 0 <= token < 256 for token in ids)
    )


def _whole_number(fields: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = default if fields.get(name) is None else fields[name]
    _demand(type(value) is int and value >= least, name, value)
    return int(value)


def _list_of_field(fields: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """Return the value of a field as a list. A single value becomes a list with one entry."""
    value = fields.get(name)
    values = value if isinstance(value, list) else [] if value is None else [value]
    for entry in values:
        _demand(type(entry) is kind, name, entry)
    return values


def _request_ids(rid: Any, prompts: int, n: int) -> list[str]:
    """Return the request ids that the client sent, if there is an id for each choice.

    Otherwise return new ids.
    """
    given = rid if isinstance(rid, list) else [rid]
    if len(given) == prompts and n == 1 and all(isinstance(name, str) for name in given):
        return given
    _demand(rid is None or n > 1, "rid", rid)
    return [uuid.uuid4().hex for _ in range(prompts * n)]


class _Handler(LocalHandler):
    faults: ClassVar[frozenset[str]] = frozenset()

    def do_GET(self) -> None:  # noqa: N802  # the name is defined by the base class
        about = _ABOUT.get(self.path)
        self.send_json(200 if about else 404, about or _error(f"there is no {self.path} here", 404))

    def do_POST(self) -> None:  # noqa: N802  # the name is defined by the base class
        if (body := self.body()) is None:
            return
        if self.path != "/generate":
            self.send_json(404, _error(f"there is no {self.path} here", 404))
            return
        try:
            request = _parse(json.loads(body))
        except (ValueError, RecursionError) as error:
            words = str(error) if isinstance(error, _RefusedError) else "the body is not JSON"
            self.send_json(400, _error(words, 400))
            return
        if request.stream:
            with contextlib.suppress(OSError):  # the client has disconnected
                self._stream(request)
        else:
            self.send_json(200, _answers(request))

    def _stream(self, request: _Request) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in _events(request, self.faults):
            self.send_chunk(f"data: {json.dumps(event)}\n\n".encode())
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")


def _error(words: str, code: int) -> dict[str, Any]:
    return {"error": {"message": words, "code": code}}


def demo_server(faults: Sequence[str] = (), port: int = 0) -> contextlib.AbstractContextManager[str]:
    """Run the server on the loopback interface within the block, and yield its URL. Raises OSError."""

    class Handler(_Handler):
        pass

    Handler.faults = frozenset(faults)
    return serving(Handler, port)
