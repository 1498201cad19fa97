"""`/tokenize` and `/detokenize`, in the shapes of SGLang and of vLLM."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenwire_reference.core.tokenizer import Tokenizer
from tokenwire_reference.doors.body import read_body, understood
from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.json_answer import json_answer
from tokenwire_reference.doors.prompts import template_ids
from tokenwire_reference.doors.sampling_fields import refuse_unknown_ids
from tokenwire_reference.doors.served import Served, served_by


async def tokenize(http_request: HttpRequest) -> Response:
    """Answer with the ids of a prompt, of several, or of messages."""
    served = served_by(http_request)
    body = await read_body(http_request, "tokenize-request")
    prompt, messages = body.get("prompt"), body.get("messages")
    if (prompt is None) == (messages is None):
        raise RefusalError("send either prompt or messages, not both", param="prompt")
    tokenizer = _tokenizer(served)
    if messages is not None:
        generate = body.get("add_generation_prompt", True)
        ids: list[Any] = await understood(
            http_request, lambda: template_ids(messages, served, add_generation_prompt=generate, runs=False)
        )
    else:
        special = body.get("add_special_tokens", True)
        texts: list[str] = [prompt] if isinstance(prompt, str) else prompt or []
        lists = await understood(
            http_request, lambda: [tokenizer.encode(text, add_special_tokens=special) for text in texts]
        )
        ids = lists[0] if isinstance(prompt, str) else lists
    nested = isinstance(prompt, list)
    count = [len(row) for row in ids] if nested else len(ids)
    context = served.model.context_length
    if served.args.api_dialect == "sglang":
        return json_answer({"tokens": ids, "count": count, "max_model_len": context})
    if nested:
        raise RefusalError("prompt is a list; this dialect takes one text", param="prompt")
    names = None
    if body.get("return_token_strs"):
        names = await understood(http_request, lambda: [tokenizer.convert_ids_to_tokens(i) for i in ids])
    return json_answer({"count": count, "max_model_len": context, "tokens": ids, "token_strs": names})


async def detokenize(http_request: HttpRequest) -> Response:
    """Answer with the text of some ids, or of several lists of them."""
    served = served_by(http_request)
    body = await read_body(http_request, "detokenize-request")
    tokens = body["tokens"]
    nested = bool(tokens) and isinstance(tokens[0], list)
    tokenizer = _tokenizer(served)
    lists = tokens if nested else [tokens]

    def decode(**options: bool) -> list[str]:
        for i, ids in enumerate(lists):
            refuse_unknown_ids(f"tokens[{i}]" if nested else "tokens", ids, served.model.vocab_size)
        return [tokenizer.decode(ids, **options) for ids in lists]

    if served.args.api_dialect == "vllm":
        if nested:
            raise RefusalError("tokens is a list of lists; this dialect takes one list", param="tokens")
        (text,) = await understood(http_request, decode)
        return json_answer({"prompt": text})
    skip = body.get("skip_special_tokens", True)
    texts = await understood(http_request, lambda: decode(skip_special_tokens=skip))
    return json_answer({"text": texts if nested else texts[0]})


def _tokenizer(served: Served) -> Tokenizer:
    if served.tokenizer is None:
        raise RefusalError(
            "this needs a tokenizer and the server runs without one; start it without --skip-tokenizer-init"
        )
    return served.tokenizer
