"""vLLM's `/inference/v1/generate`: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import (
    hold_against_schema,
    read_body,
    read_object,
    refuse_unsupported,
    understood,
)
from tokenwire_reference.doors.chat_channels import ChannelsAsked, ChoiceChannels, read_channels
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.sampling_fields import refuse_unknown_ids
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.vllm.answering import VllmAnswer
from tokenwire_reference.doors.vllm.call import PADDING, UNSUPPORTED, LogprobsAsked, VllmCall, read_call
from tokenwire_reference.doors.vllm.chat import chat_message

ID_PREFIX = "generate-tokens-"


async def generate(http_request: HttpRequest) -> Response:
    """Answer POST /inference/v1/generate."""
    served = served_by(http_request)
    given = await read_object(http_request)
    call, channels = await understood(http_request, lambda: _read(given, http_request.headers, served))
    return await _GenerateAnswer(call, channels, served).answer(http_request)


def _read(given: dict[str, Any], headers: Headers, served: Served) -> tuple[VllmCall, ChannelsAsked]:
    """Parse a body. Raises RefusalError."""
    body = hold_against_schema(given, "vllm-generate-request")
    refuse_unsupported(given, UNSUPPORTED)
    refuse_unsupported(given["sampling_params"], UNSUPPORTED)
    params = body["sampling_params"]
    mode, channels = body.get("output_mode") or "tokens", ChannelsAsked()
    if mode != "tokens" and served.tokenizer is None:
        raise RefusalError(
            f"output_mode {mode} needs a tokenizer and the server runs without one; ask for tokens",
            param="output_mode",
        )
    if mode == "derender":
        channels = _channels(body, served)
    refuse_unknown_ids("token_ids", body["token_ids"], served.model.vocab_size)
    call = read_call(
        body,
        params,
        [body["token_ids"]],
        served,
        headers,
        prefix=ID_PREFIX,
        budget=params.get("max_tokens"),
        logprobs=LogprobsAsked(
            top=params.get("logprobs"),
            prompt=params.get("prompt_logprobs"),
            as_token_ids=False,
            chosen=_chosen(params),
            of_prompt=_rows_of_ids(body, served),
            first_row=params.get("prompt_logprob_start") or 0,
        ),
    )
    return call, channels


def _chosen(params: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids whose logprobs replace the likeliest. Raises RefusalError."""
    ids, count = params.get("logprob_token_ids"), params.get("logprobs")
    if ids and count != len(ids):
        raise RefusalError(
            f"logprob_token_ids has {len(ids)} ids and logprobs is {count}; set logprobs to their number",
            param="logprob_token_ids",
        )
    return tuple(ids or ())


def _rows_of_ids(body: Mapping[str, Any], served: Served) -> tuple[tuple[int, ...], ...]:
    """Return the ids to score at each position of the prompt. Raises RefusalError."""
    name, params = "prompt_logprob_token_ids", body["sampling_params"]
    rows, start = params.get(name), params.get("prompt_logprob_start")
    if rows is None:
        if start is not None:
            raise RefusalError(
                f"prompt_logprob_start is {start} without {name}; set both or neither",
                param="prompt_logprob_start",
            )
        return ()
    if body.get("stream"):
        raise RefusalError(f"{name} is not available in a stream; set stream to false", param=name)
    due = max(0, len(body["token_ids"]) - 1 - (start or 0))
    if len(rows) != due or not any(rows):
        raise RefusalError(
            f"{name} has {len(rows)} rows for a prompt with {due} scored positions (length, minus 1, minus "
            "prompt_logprob_start); send a row of ids for each",
            param=name,
        )
    ids = [token for row in rows for token in row if token != PADDING]
    refuse_unknown_ids(name, ids, served.model.vocab_size)
    return tuple(map(tuple, rows))


def _channels(body: Mapping[str, Any], served: Served) -> ChannelsAsked:
    """Return the channels of an answer in the mode derender. Raises RefusalError."""
    if body.get("stream"):
        raise RefusalError(
            "output_mode derender is for whole answers; set stream to false, or send each event to "
            "/v1/chat/completions/derender",
            param="output_mode",
        )
    if body.get("parse_context") is None:
        raise RefusalError(
            "output_mode derender needs the parse_context that /v1/chat/completions/render returns",
            param="parse_context",
        )
    return read_channels(body["parse_context"], served)


class _GenerateAnswer(VllmAnswer):
    """Formats one answer of `/inference/v1/generate`: with the ids only, with text, or with the message."""

    last_fields: Mapping[str, Any] = {}

    def __init__(self, call: VllmCall, channels: ChannelsAsked, served: Served) -> None:
        super().__init__(call, served)
        self._asked = channels
        self._mode = call.body.get("output_mode") or "tokens"

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        call, nothing = self.call, ("mm_placeholders", "kv_transfer_params", "ec_transfer_params")
        return {
            "request_id": call.id,
            "model": call.model,
            "created": self._created,
            "usage": self.usage(choices),
            "prompt_logprobs": self.logprobs.of_prompt(choices[0]),
            "prompt_token_id_logprobs": self.logprobs.of_ids(choices[0]),
            "prompt_token_ids": self.prompt_token_ids(choices[0]),
            **dict.fromkeys(nothing),
            "metrics": self.metrics(choices),
            "output_mode": self._mode,
            "choices": [self._choice(choice) for choice in choices],
        }

    def chunks_of(self, emission: Emission) -> list[dict[str, Any]]:
        """Return one chunk. The first chunk of each choice has the prompt's ids."""
        prompt = self.prompt_token_ids(emission) if emission.first else None
        return [self.chunk([self._choice(emission)], **({"prompt_token_ids": prompt} if prompt else {}))]

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"request_id": self.call.id, "usage": None, **more}
        return {**head, "output_mode": self._mode, "choices": choices}

    def _choice(self, emission: Emission) -> dict[str, Any]:
        finish = self.call.finish_fields(emission)
        shown: dict[str, Any] = {}
        if self._mode == "text":
            shown = {"text": emission.text}
        elif self._mode == "derender":
            channels = ChoiceChannels(emission.record, self._asked, self.call.tokenizer)
            channels.consume(emission)
            shown = {"message": chat_message(channels.message)}
            if emission.finish is not None:
                finish["finish_reason"] = channels.finish_reason(emission.finish)
        return {
            "index": emission.index,
            **finish,
            "token_ids": emission.output_ids,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": emission.weight_versions if emission.finish else None,
            **shown,
            "logprobs": self._content(emission),
        }

    def _content(self, emission: Emission) -> dict[str, Any] | None:
        if self.call.logprobs.top is None:
            return None
        by_id = self._mode == "tokens"
        return self.logprobs.as_ids(emission) if by_id else self.logprobs.as_content(emission)


async def abort_requests(http_request: HttpRequest) -> Response:
    """Abort requests by the ids that clients have chosen or that answers contain.

    Unknown ids are not errors.
    """
    served = served_by(http_request)
    body = await read_body(http_request, "abort-requests-request")
    for name in body["request_ids"]:
        served.manager.abort(name)
        served.manager.abort(ID_PREFIX + name)
    return Response()
