"""vLLM's `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.doors.body import hold_against_schema, read_object, refuse_unsupported, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.prompts import read_prompts
from tokenwire_reference.doors.reader import Emission
from tokenwire_reference.doors.served import Served, served_by
from tokenwire_reference.doors.usage import Consumed
from tokenwire_reference.doors.vllm.answering import FINGERPRINT, VllmAnswer
from tokenwire_reference.doors.vllm.call import UNSUPPORTED, LogprobsAsked, VllmCall, read_call

DEFAULT_MAX_TOKENS = 16


async def completions(http_request: HttpRequest) -> Response:
    """Answer POST /v1/completions in vLLM's shapes."""
    served = served_by(http_request)
    given = await read_object(http_request)
    call = await understood(http_request, lambda: read_completion(given, http_request.headers, served))
    return await CompletionAnswer(call, served, echo=bool(call.body.get("echo"))).answer(http_request)


def read_completion(given: dict[str, Any], headers: Headers, served: Served) -> VllmCall:
    """Parse a body. Raises RefusalError."""
    if given.get("prompt") in ("", [], [""], [[]], None):
        raise RefusalError("prompt is empty or not there; send a text or token ids", param="prompt")
    body = hold_against_schema(given, "vllm-completion-request")
    refuse_unsupported(given, UNSUPPORTED)
    prompts, _ = read_prompts(body["prompt"], "prompt", served)
    budget, top, prompt_top = body.get("max_tokens"), body.get("logprobs"), body.get("prompt_logprobs")
    echo = bool(body.get("echo"))
    if echo and served.tokenizer is None:
        raise RefusalError("echo needs a tokenizer and the server runs without one", param="echo")
    if body.get("logprob_token_ids") and (top is None or echo):
        raise RefusalError(
            "logprob_token_ids needs logprobs, and no echo; set logprobs, and leave echo out",
            param="logprob_token_ids",
        )
    return read_call(
        body,
        body,
        prompts,
        served,
        headers,
        prefix="cmpl-",
        budget=DEFAULT_MAX_TOKENS if budget is None else budget,
        logprobs=LogprobsAsked(
            top=top,
            prompt=top if echo and prompt_top is None else prompt_top,
            as_token_ids=bool(body.get("return_tokens_as_token_ids")),
            chosen=tuple(body.get("logprob_token_ids") or ()),
        ),
    )


class CompletionAnswer(VllmAnswer):
    """Formats one completions answer in vLLM's shapes, and counts the text offsets of its choices."""

    chunk_kind = "text_completion"

    def __init__(self, call: VllmCall, served: Served, *, echo: bool) -> None:
        super().__init__(call, served)
        self._echo = echo
        self._offsets = [self.logprobs.offsets(request) for request in call.requests]

    def whole(self, choices: Sequence[Emission]) -> dict[str, Any]:
        return {
            **self.head(self.chunk_kind),
            "choices": [self._choice(choice) for choice in choices],
            "service_tier": None,
            **FINGERPRINT,
            "usage": self.usage(choices),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self.metrics(choices),
        }

    def _choice(self, choice: Emission) -> dict[str, Any]:
        return {
            **self._text(choice),
            "token_ids": self.token_ids(choice),
            "prompt_logprobs": self.logprobs.of_prompt(choice),
            "prompt_token_ids": self.prompt_token_ids(choice),
            "routed_experts": None,
        }

    def chunks_of(self, emission: Emission) -> list[dict[str, Any]]:
        """Return one chunk. The first chunk of each choice has the prompt's ids."""
        choice = {
            **self._text(emission),
            "prompt_token_ids": self.prompt_token_ids(emission) if emission.first else None,
            "token_ids": self.token_ids(emission),
        }
        more = {"usage": Consumed.by([emission], 1).totals} if self.call.continuous_usage else {}
        return [self.chunk([choice], **more)]

    def _text(self, emission: Emission) -> dict[str, Any]:
        echo = self._echo and emission.first
        return {
            "index": emission.index,
            "text": (self._prompt_text(emission) if echo else "") + emission.text,
            "logprobs": self._lists(emission, echo=echo),
            **self.call.finish_fields(emission),
            **self.weight_versions(emission),
        }

    def _prompt_text(self, emission: Emission) -> str:
        assert self.call.tokenizer is not None, "an echo without a tokenizer is refused"
        return self.call.tokenizer.decode(emission.record.prompt_token_ids)

    def _lists(self, emission: Emission, *, echo: bool) -> dict[str, Any] | None:
        if self.call.logprobs.top is None:
            return None
        return self.logprobs.as_lists(emission, self._offsets[emission.index], echo=echo)
