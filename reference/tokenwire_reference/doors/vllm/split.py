"""The split pipeline of chat and of completions. `render` returns the ids of a request, as a request for
`/inference/v1/generate`. `derender` turns the ids that `/inference/v1/generate` returned into an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.detokenizer import Detokenizer
from tokenwire_reference.core.request import FinishReason, Request
from tokenwire_reference.doors.body import hold_against_schema, read_object, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.reader import Emission, finish_text
from tokenwire_reference.doors.sampling_fields import refuse_unknown_ids
from tokenwire_reference.doors.schemas import request_schema
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.doors.vllm.call import VllmCall
from tokenwire_reference.doors.vllm.chat import ChatAnswer, read_chat
from tokenwire_reference.doors.vllm.completions import CompletionAnswer, read_completion

_PARSED = (
    *("tools", "tool_choice", "parallel_tool_calls"),
    *("include_reasoning", "chat_template_kwargs", "reasoning_effort"),
)
"""The fields of a chat request that parsers of the output need."""
_NOT_RENDERED = ("response_format", "structured_outputs", "thinking_token_budget")


async def render(http_request: HttpRequest) -> Response:
    """Answer POST /v1/chat/completions/render."""
    served = served_by(http_request)
    given = await read_object(http_request)
    return json_answer(await understood(http_request, lambda: _rendered(given, http_request.headers, served)))


def _rendered(given: dict[str, Any], headers: Headers, served: Served) -> dict[str, Any]:
    """Return the request for `/inference/v1/generate` that runs a chat request. Raises RefusalError."""
    call, _ = read_chat(given, headers, served)
    return _request_for(call, call.requests[0], "/v1/chat/completions")


async def render_completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/completions/render with a request for each prompt."""
    served = served_by(http_request)
    given = await read_object(http_request)

    def rendered() -> list[dict[str, Any]]:
        call = read_completion(given, http_request.headers, served)
        if call.body.get("echo"):
            raise RefusalError("echo cannot be rendered; send the request to /v1/completions", param="echo")
        return [_request_for(call, request, "/v1/completions") for request in call.requests[:: call.n]]

    return json_answer(await understood(http_request, rendered))


def _request_for(call: VllmCall, request: Request, path: str) -> dict[str, Any]:
    """Return the request for `/inference/v1/generate` that runs a prompt. Raises RefusalError."""
    body = call.body
    if request.sampling.constraint is not None:
        named = next((name for name in _NOT_RENDERED if body.get(name) is not None), "tool_choice")
        raise RefusalError(f"{named} cannot be rendered; send the request to {path}", param=named)
    names = request_schema("vllm-generate-request")["$defs"]["vllmSamplingParams"]["properties"]
    asked = {**body, "max_tokens": request.sampling.max_new_tokens, "logprobs": call.logprobs.top}
    params = {name: asked[name] for name in names if asked.get(name) is not None}
    return {
        "request_id": call.id,
        "token_ids": request.prompt_token_ids,
        **dict.fromkeys(("token_offsets", "features", "content_parts")),
        "sampling_params": params,
        "model": call.model,
        "return_token_ids": body.get("return_token_ids"),
        "output_mode": "tokens",
        "parse_context": {name: body[name] for name in _PARSED if name in body},
        "stream": call.stream,
        "stream_options": body.get("stream_options"),
        **dict.fromkeys(("kv_transfer_params", "ec_transfer_params")),
        **({"cache_salt": body["cache_salt"]} if body.get("cache_salt") else {}),
    }


async def derender(http_request: HttpRequest) -> Response:
    """Answer POST /v1/chat/completions/derender, for a whole answer or for one event of a stream."""
    served = served_by(http_request)
    given = await read_object(http_request)

    def read() -> dict[str, Any]:
        body = hold_against_schema(given, "vllm-derender-request")
        derendering = _Derendering.of(body, http_request.headers, served)
        return derendering.chunk() if body.get("stream") else derendering.whole()

    return json_answer(await understood(http_request, read))


async def derender_completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/completions/derender, for whole answers."""
    served = served_by(http_request)
    given = await read_object(http_request)

    def read() -> dict[str, Any]:
        body = hold_against_schema(given, "vllm-derender-completions-request")
        if not body.get("completion_request"):
            raise RefusalError("completion_request is missing; send it", param="completion_request")
        call = read_completion(given["completion_request"], http_request.headers, served)
        answers = [
            hold_against_schema({"generate_response": answer}, "vllm-derender-request")["generate_response"]
            for answer in given["generate_responses"]
        ]
        choices = [choice for answer in answers for choice in answer["choices"]]
        if len(choices) != len(call.requests):
            raise RefusalError(f"{len(choices)} of {len(call.requests)} choices were sent", param="choices")
        emissions = []
        for index, (choice, request) in enumerate(zip(choices, call.requests, strict=True)):
            refuse_unknown_ids("token_ids", choice["token_ids"], served.model.vocab_size)
            emissions.append(replace(_whole_emission(call, choice, request), index=index))
        scored = all(choice.get("logprobs") for choice in choices)
        named = replace(
            call,
            id=answers[0].get("request_id") or call.id,
            logprobs=call.logprobs if scored else replace(call.logprobs, top=None),
        )
        return CompletionAnswer(named, served, echo=False).whole(emissions)

    return json_answer(await understood(http_request, read))


def _whole_emission(call: VllmCall, choice: Mapping[str, Any], request: Request) -> Emission:
    """Return a whole choice as one emission. Raises RefusalError if it has not ended."""
    finish = _finish(choice)
    if finish is None:
        raise RefusalError("a choice has no finish_reason; send whole answers", param="finish_reason")
    text = finish_text(_detokenizer(call, request), "", choice["token_ids"], finish, request.sampling)
    return _emission(request, choice, choice["token_ids"], text, finish)


def _detokenizer(call: VllmCall, request: Request) -> Detokenizer:
    if call.tokenizer is None:
        raise RefusalError("ids cannot be derendered by a server without a tokenizer", param="token_ids")
    return Detokenizer.of(call.tokenizer, request.sampling, request.prompt_token_ids)


@dataclass(frozen=True)
class _Derendering:
    """A request to turn ids into a chat answer."""

    body: Mapping[str, Any]
    call: VllmCall
    answer: ChatAnswer
    generated: Mapping[str, Any]
    """The answer of `/inference/v1/generate`, or one event of it."""

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: Headers, served: Served) -> Self:
        """Return the request in a body. Raises RefusalError."""
        name = "generate_chunk" if body.get("stream") else "generate_response"
        generated, chat = body.get(name), body.get("chat_request")
        for field, value in ((name, generated), ("chat_request", chat)):
            if value is None:
                raise RefusalError(f"{field} is missing; send it", param=field)
        assert generated is not None, "it was checked"
        assert chat is not None, "it was checked"
        call, channels = read_chat(chat, headers, served)
        prompt = body.get("prompt_token_ids") or call.requests[0].prompt_token_ids
        refuse_unknown_ids("prompt_token_ids", prompt, served.model.vocab_size)
        told = body.get("prompt_tokens")
        if told is not None and told != len(prompt):
            raise RefusalError(
                f"prompt_tokens is {told}, but the prompt has {len(prompt)} tokens; send one of both",
                param="prompt_tokens",
            )
        scored = all(choice.get("logprobs") for choice in generated["choices"])
        call = replace(
            call,
            id=generated.get("request_id") or call.id,
            requests=[replace(request, prompt_token_ids=tuple(prompt)) for request in call.requests],
            logprobs=call.logprobs if scored else replace(call.logprobs, top=None),
        )
        self = cls(body, call, ChatAnswer(call, channels, served), generated)
        self._refuse_what_no_answer_is(served)
        return self

    def _refuse_what_no_answer_is(self, served: Served) -> None:
        """Raise RefusalError if the request has choices or ids that no answer has."""
        choices, state = self.generated["choices"], self.state["output_token_ids"]
        for name, ids in (
            ("stream_state.output_token_ids", state),
            *(("token_ids", choice["token_ids"]) for choice in choices),
        ):
            refuse_unknown_ids(name, ids, served.model.vocab_size)
            size = len(self.call.requests[0].prompt_token_ids) + len(ids)
            if size > served.model.context_length:
                raise RefusalError(
                    f"the prompt and {name} have {size} tokens together, more than the context length of "
                    f"{served.model.context_length}",
                    param=name,
                )
        for choice in choices:
            entries = (choice.get("logprobs") or {}).get("content")
            if entries is not None and [entry["token_id"] for entry in entries] != choice["token_ids"]:
                raise RefusalError("the logprobs are not those of the token_ids", param="logprobs")
        indexes = [choice["index"] for choice in choices]
        if sorted(set(indexes)) != indexes or any(index >= self.call.n for index in indexes):
            raise RefusalError(
                f"the choices have the indexes {str(indexes)[:60]}, but the chat request has n {self.call.n}",
                param="choices",
            )

    @property
    def state(self) -> Mapping[str, Any]:
        return self.body.get("stream_state") or {"output_token_ids": [], "output_chunk_lens": []}

    def whole(self) -> dict[str, Any]:
        """Return the whole answer. Raises RefusalError."""
        choices = self.generated["choices"]
        if [choice["index"] for choice in choices] != list(range(self.call.n)):
            raise RefusalError(f"the answer has {len(choices)} of {self.call.n} choices", param="choices")
        requests = self.call.requests
        whole = [_whole_emission(self.call, choice, requests[choice["index"]]) for choice in choices]
        return self.answer.whole(whole)

    def chunk(self) -> dict[str, Any]:
        """Return the chunk of one event, and the state to send with the next event. Raises RefusalError.

        The parsers have no state between two requests, so they process all earlier events again.
        """
        choices, ids, lengths = (
            self.generated["choices"],
            list(self.state["output_token_ids"]),
            list(self.state["output_chunk_lens"]),
        )
        if len(choices) > 1:
            raise RefusalError(
                f"an event has {len(choices)} choices; send each with its own state", param="choices"
            )
        if sum(lengths) != len(ids):
            raise RefusalError(
                f"output_chunk_lens add up to {sum(lengths)}, but there are {len(ids)} output_token_ids",
                param="stream_state",
            )
        request = self.call.requests[choices[0]["index"] if choices else 0]
        if request.sampling.stop:
            raise RefusalError(
                "a stop string cannot be cut from text that was sent before; derender the whole answer, or "
                "use output_mode text",
                param="stop",
            )
        detokenizer, text, begin = _detokenizer(self.call, request), "", 0
        earlier = {"index": self.call.requests.index(request), "logprobs": None}
        for length in lengths:
            new = ids[begin : begin + length]
            piece = detokenizer.push(new)
            self.answer.pass_over(_emission(request, earlier, new, piece, None, before=begin))
            text, begin = text + piece, begin + length
        chunk = self._usage_chunk() if not choices else None
        for choice in choices:
            new, finish = choice["token_ids"], _finish(choice)
            piece = (
                detokenizer.push(new)
                if finish is None
                else finish_text(detokenizer, text, new, finish, request.sampling)[len(text) :]
            )
            *opening, chunk = self.answer.chunks_of(
                _emission(request, choice, new, piece, finish, before=begin)
            )
            for first in opening:  # the role and the first text in one chunk
                role = first["choices"][0]["delta"]
                chunk = first | chunk
                chunk["choices"][0]["delta"] = role | chunk["choices"][0]["delta"]
            ids += new
            lengths += [len(new)] if new else []
        return {
            "chunk": chunk,
            "stream_state": {"output_token_ids": ids, "output_chunk_lens": lengths},
        }

    def _usage_chunk(self) -> dict[str, Any]:
        """Return the chunk of an event without choices, which has the usage of the stream."""
        usage = self.generated.get("usage") or {}
        prompt = len(self.call.requests[0].prompt_token_ids)
        reasoning = self.answer.reasoning_tokens() if self.call.n == 1 else None
        consumed = Consumed(prompt, usage.get("completion_tokens") or 0, 0, reasoning)
        return self.answer.chunk([], usage={**consumed.totals, "completion_tokens_details": consumed.details})


def _finish(choice: Mapping[str, Any]) -> FinishReason | None:
    """Return the end of a choice; None before the end."""
    kind, matched = choice.get("finish_reason"), choice.get("stop_reason")
    if kind is None:
        return None
    if kind == "stop" and matched is None and choice["token_ids"]:
        matched = choice["token_ids"][-1]  # the end of sequence, which has no stop_reason
    return FinishReason(kind, matched=matched)


def _emission(
    request: Request,
    choice: Mapping[str, Any],
    ids: Sequence[int],
    text: str,
    finish: FinishReason | None,
    *,
    before: int = 0,
) -> Emission:
    """Return generated ids as an emission of the request; `before` is the number of earlier ids."""
    scored = (choice.get("logprobs") or {}).get("content") or ()
    return Emission(
        index=choice["index"],
        record=request,
        first=before == 0,
        output_ids=ids,
        text=text,
        series={
            "output_token_logprobs": [_entry(entry) for entry in scored],
            "output_token_ranks": [entry.get("rank") for entry in scored],
            "output_top_logprobs": [_likeliest(entry.get("top_logprobs") or ()) for entry in scored],
        },
        completion_tokens=before + len(ids),
        finish=finish,
        seconds=0.0,
    )


def _entry(entry: Mapping[str, Any]) -> tuple[float, int, None]:
    return entry["logprob"], entry["token_id"], None


def _likeliest(entries: Sequence[Mapping[str, Any]]) -> list[tuple[float, int, None]]:
    """Return candidates, the likeliest first. A sampled id that is not among the likeliest comes last."""
    return [_entry(entry) for entry in sorted(entries, key=lambda entry: -entry["logprob"])]
