"""`/generate`: prompts in, text and token ids out, whole or as a stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.request import SERIES_ASKED_FOR, Request, SamplingParams
from tokenwire_reference.core.request_extras import ROUTED_EXPERTS_START, Extra
from tokenwire_reference.doors.adapters import adapter_named
from tokenwire_reference.doors.answering import answer
from tokenwire_reference.doors.body import hold_against_schema, read_object, refuse_unsupported, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import Json
from tokenwire_reference.doors.limits import refuse_many_samples
from tokenwire_reference.doors.prompts import read_prompts, refused
from tokenwire_reference.doors.reader import Delivery, Emission
from tokenwire_reference.doors.sampling_fields import (
    read_sampling_params,
    refuse_unknown_ids,
    refuse_what_does_not_fit,
    with_own_seed,
)
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.sglang.meta_info import meta_info
from tokenwire_reference.extras.constraints import PLAIN, Channelled
from tokenwire_reference.extras.images import put_images, takes_images
from tokenwire_reference.running.ranks import DP_RANK


def read_sampling(given: Mapping[str, Any], served: Served, channelled: Channelled = PLAIN) -> SamplingParams:
    """Return sampling parameters from their native names. Raises RefusalError for unusable values."""
    fields = {
        **given,
        "ignore_stop_token_ids": given.get("ignore_eos"),
        "only_ids": None,
        "banned_words": None,
    }
    return read_sampling_params(fields, served, channelled)


_UNSUPPORTED = (
    *("input_embeds", "video_data", "audio_data", "session_id"),
    "return_indexer_topk",
    *("return_flat_raw_top_logprobs", "return_flat_raw_output_top_logprobs", "custom_logit_processor"),
    *("max_thinking_tokens", "watermark"),
)

_OF_LOGPROBS: Mapping[str, Any] = {"top_logprobs_num": 0, "token_ids_logprob": [], "logprob_start_len": -1}
_FOR_EACH = (
    *("return_logprob", "top_logprobs_num", "logprob_start_len"),
    *("extra_key", "cache_salt", "lora_path", *SERIES_ASKED_FOR),
)
"""The fields that have one value for all prompts, or a list with one value for each prompt."""


@dataclass(frozen=True)
class GenerateCall:
    """One call of `/generate`, ready for the engine."""

    requests: Sequence[Request]
    is_batch: bool
    """True if the answer is a list, and events have an index."""
    group: str | None
    body: Mapping[str, Any]


async def generate(http_request: HttpRequest) -> Response:
    """Answer POST and PUT /generate."""
    served = served_by(http_request)
    body = await read_object(http_request)
    call = await understood(http_request, lambda: read_call(body, served))
    incremental = served.args.incremental_streaming_output
    return await answer(
        http_request,
        served,
        call.requests,
        _Answer(call, served),
        group=call.group,
        stream=bool(call.body.get("stream")),
        delivery=Delivery.INCREMENTAL if incremental else Delivery.CUMULATIVE,
    )


class _Answer:
    """Writes an object for each choice, or an event for each emission."""

    def __init__(self, call: GenerateCall, served: Served) -> None:
        self._call = call
        self._served = served
        self._states: dict[int, list[Any]] = {}
        """The number of hidden states sent so far, by choice."""

    def whole(self, choices: Sequence[Emission]) -> Json:
        answers = list(map(self._object, choices))
        return answers if self._call.is_batch else answers[0]

    def of(self, emission: Emission) -> Iterable[dict[str, Any]]:
        event = self._object(emission)
        if self._served.args.incremental_streaming_output and "hidden_states" in event["meta_info"]:
            # As in SGLang, every event has all hidden states so far.
            states = self._states.setdefault(emission.index, [])
            states += event["meta_info"]["hidden_states"]
            event["meta_info"]["hidden_states"] = list(states)
        if self._call.is_batch:
            event["index"] = emission.index
        return [event]

    def closing(self) -> Iterable[Json]:
        return ()

    def failed(self, refusal: RefusalError) -> Json:
        return refusal.native_event()

    def _object(self, emission: Emission) -> dict[str, Any]:
        body, tokenizer = self._call.body, self._served.tokenizer
        answer: dict[str, Any] = {} if tokenizer is None else {"text": emission.text}
        answer["output_ids"] = emission.output_ids
        answer["meta_info"] = meta_info(emission, tokenizer if body.get("return_text_in_logprobs") else None)
        if body.get("return_prompt_token_ids"):
            answer["prompt_token_ids"] = emission.record.prompt_token_ids
        return answer


def read_call(given: dict[str, Any], served: Served) -> GenerateCall:
    """Parse a body into requests, prompt by prompt and sample by sample. Raises RefusalError.

    A single request has the rid itself. The requests of a batch, or of several samples, have the ids `rid_0`,
    `rid_1`, …; the rid itself then aborts all of them.
    """
    refuse_unsupported(given, _UNSUPPORTED)
    if given.get("text") is None and given.get("input_ids") is None:
        raise RefusalError("neither text nor input_ids is given; send one of them as the prompt")
    if given.get("input_ids") == []:
        raise RefusalError("input_ids is empty; send at least one token id")
    body = hold_against_schema(given, "generate-request")
    if body.get("return_text_in_logprobs") and served.tokenizer is None:
        raise RefusalError(
            "return_text_in_logprobs needs a tokenizer; start the server without --skip-tokenizer-init"
        )
    prompts, is_batch = _prompts(body, served)
    session = body.get("session_params")
    if session is not None:
        if is_batch:
            raise RefusalError("session_params need a single prompt, and the request has a batch")
        prompts = [[*served.sessions.history(session), *prompts[0]]]
    given_params = _for_each(body.get("sampling_params"), "sampling_params", len(prompts))
    # An object shared by a whole batch is parsed once.
    read = {id(params): read_sampling(params or {}, served) for params in _distinct(given_params)}
    sampling = [read[id(params)] for params in given_params]
    counts = {params.n for params in sampling}
    if len(counts) > 1:
        raise RefusalError(f"n differs between the prompts of a batch: {sorted(counts)}; send one n for all")
    n = counts.pop()
    wanted = _wanted(body, len(prompts), served)
    refuse_many_samples(prompts, n)
    rids = _rids(body.get("rid"), len(prompts), n, is_batch)
    stream = body.get("stream", False)
    requests = [
        Request(rids[i * n + j], prompt, with_own_seed(sampling[i], j), stream, **wanted[i])
        for i, prompt in enumerate(map(tuple, prompts))
        for j in range(n)
    ]
    _refuse_logprobs_without_asking(body, requests)
    for request in requests[::n]:
        _check(request, served)
    if session is not None:
        if n > 1:
            raise RefusalError(f"n is {n}, and a turn of a session has one sample; send 1")
        served.sessions.add(session["id"], requests[0])
    rid = body.get("rid")
    return GenerateCall(
        requests=requests,
        is_batch=is_batch or n > 1,
        group=rid if isinstance(rid, str) else None,
        body=body,
    )


def _prompts(body: dict[str, Any], served: Served) -> tuple[list[list[int]], bool]:
    """Return the prompts as ids, and a flag that is True for a batch. input_ids take precedence over text and
    images.
    """
    images = body.get("image_data")
    if images and not takes_images(served.tokenizer):
        raise RefusalError("image_data is not supported by this model; leave it out", param="image_data")
    if (ids := body.get("input_ids")) is not None:
        return read_prompts(ids, "input_ids", served)
    return read_prompts(_with_images(body["text"], images) if images else body["text"], "text", served)


def _with_images(text: str | list[str], images: Json) -> str | list[str]:
    """Return texts with their images: image_data is one image or a list of images; for a batch, a list with
    one image or list for each text.
    """
    if isinstance(text, list):
        pairs = zip(text, _for_each(images, "image_data", len(text)), strict=True)
        return [str(_with_images(prompt, shown)) if shown else prompt for prompt, shown in pairs]
    sources = images if isinstance(images, list) else [images]
    if not all(isinstance(source, str) for source in sources):
        raise RefusalError(f"image_data is {images!r:.60}; send base64 strings", param="image_data")
    with refused("image_data"):
        return put_images(text, sources)


def _for_each(value: Json, name: str, count: int) -> list[Any]:
    """Return one value for each prompt: a list unchanged, anything else repeated."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RefusalError(
            f"{name} has {len(value)} entries for {count} prompts; send one value, or one for each"
        )
    return value


def _distinct(values: Iterable[Any]) -> Iterable[Any]:
    """Return the distinct objects, compared by identity."""
    return {id(value): value for value in values}.values()


def _wanted(body: Mapping[str, Any], count: int, served: Served) -> list[dict[str, Any]]:
    """Return the requested outputs for each prompt, by field of `Request`."""
    columns = {name: _for_each(body.get(name), name, count) for name in _FOR_EACH}
    columns["adapter"] = [adapter_named(name, served) for name in columns.pop("lora_path")]
    ids = body.get("token_ids_logprob") or ()
    nested = ids and isinstance(ids[0], list)
    lists = _for_each(ids, "token_ids_logprob", count) if nested else [tuple(ids)] * count
    columns["token_ids_logprob"] = list(map(tuple, lists))
    extras: dict[Extra[Any], Any] = {DP_RANK: body.get("routed_dp_rank")}
    if body.get("return_routed_experts"):
        extras[ROUTED_EXPERTS_START] = body.get("routed_experts_start_len") or 0
    return [
        {
            name: column[i]
            for name, column in columns.items()
            if column[i] not in (None, "") and (name not in _OF_LOGPROBS or columns["return_logprob"][i])
        }
        | {"extras": extras}
        for i in range(count)
    ]


def _rids(rid: str | list[str] | None, prompts: int, n: int, is_batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(prompts * n)]
    if isinstance(rid, str):
        return [rid] if not is_batch and n == 1 else [f"{rid}_{i}" for i in range(prompts * n)]
    names = _for_each(rid, "rid", prompts)
    return names if n == 1 else [f"{name}_{j}" for name in names for j in range(n)]


def _refuse_logprobs_without_asking(body: Mapping[str, Any], requests: Sequence[Request]) -> None:
    """Refuse logprob fields if return_logprob is not true, because the server would silently ignore the
    fields.
    """
    named = [name for name, default in _OF_LOGPROBS.items() if body.get(name) not in (None, default)]
    if named and not any(request.return_logprob for request in requests):
        raise RefusalError(
            f"{' and '.join(named)} requests logprobs, but return_logprob is not true; set it to true"
        )


def _check(request: Request, served: Served) -> None:
    prompt_tokens = len(request.prompt_token_ids)
    refuse_what_does_not_fit(prompt_tokens, request.sampling, served.model.context_length)
    refuse_unknown_ids("token_ids_logprob", request.token_ids_logprob, served.model.vocab_size)
    if request.top_logprobs_num > served.model.vocab_size:
        raise RefusalError(
            f"top_logprobs_num {request.top_logprobs_num} is above the vocabulary of "
            f"{served.model.vocab_size} tokens"
        )
    experts_start = ROUTED_EXPERTS_START.of(request)
    if (experts_start or 0) > prompt_tokens:
        raise RefusalError(
            f"routed_experts_start_len {experts_start} is beyond the prompt of "
            f"{prompt_tokens} tokens; send a smaller one"
        )
    if experts_start is not None and served.args.enable_hierarchical_cache:
        raise RefusalError(
            "return_routed_experts needs a cache of one tier: pages that come back to the device have none"
        )
    if request.logprob_start_len > prompt_tokens:
        raise RefusalError(
            f"logprob_start_len {request.logprob_start_len} is beyond the prompt of {prompt_tokens} tokens; "
            "send a smaller one, or -1 for no prompt logprobs"
        )
