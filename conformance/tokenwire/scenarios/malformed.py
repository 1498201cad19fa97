"""Scenarios with invalid values in requests.

A valid request after each invalid request shows if the invalid request did harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import OMIT, Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.dialects.dialect import Unsupported
from tokenwire.scenarios.forms import plain_ask, with_controls, with_parameter
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import put

_DEEP = 100_000

_BEYOND: Mapping[str, int] = {
    "two-to-31": 2**31,
    "two-to-63": 2**63,
    "two-to-70": 2**70,
}

_MANY = 10_000_000
"""More than the number of ids in any vocabulary."""

_WRONG_TYPES: Mapping[str, tuple[Any, ...]] = {
    "max_new_tokens": ("many", 2.5, {}),
    "n": ("two", 1.5),
    "temperature": ("warm", []),
    "stop": (5, {"at": "end"}),
    "stop_token_ids": ("eos", {"id": 2}),
    "ignore_eos": ("perhaps", {}),
    "stream": ("later",),
    "stream_interval": ("often", 1.5),
    "logprobs": ("all of them", {}),
    "top_logprobs": ("few", 0.5),
    "seed": ("lucky", {}),
}

_IMPOSSIBLE: Mapping[str, tuple[Any, ...]] = {
    "max_new_tokens": (-1,),
    "n": (0, -1),
    "temperature": (-1.0,),
    "min_new_tokens": (-1, 1000),
    "stream_interval": (0, -2),
    "logprob_start": (-2,),
}

_WRONG_IN_STREAMS: Mapping[str, tuple[Any, ...]] = {
    "max_new_tokens": (-1, "many"),
    "temperature": (-1.0,),
    "stop": (5,),
}

_BODIES: Mapping[str, bytes] = {
    "empty": b"",
    "cut-off": b'{"input_ids": [1, 2, ',
    "list": b"[1, 2, 3]",
    "string": b'"hello"',
    "null": b"null",
    "not-utf8": b'{"text": "\xff\xfe"}',
    "deep": b'{"input_ids": ' + b"[" * _DEEP + b"]" * _DEEP + b"}",
}


def _of_fields(talk: Conversation, ask: Ask, wrong: Mapping[str, tuple[Any, ...]]) -> Steps:
    """Yield a valid request twice, then the request with each invalid value.

    The valid request is repeated after the invalid values of every second field.
    """
    control = _plain(talk)
    yield {"control": control}
    yield {"control-again": control}
    variants = {
        name: [replace(ask, wrong={name: value}) for value in values] for name, values in wrong.items()
    }
    sayable = [name for name, asks in variants.items() if any(map(talk.can_say, asks))]
    for name, asks in variants.items():
        yield from ({f"{name}-{position}": variant} for position, variant in enumerate(asks))
        if name in {*sayable[1::2], *sayable[-1:]}:
            yield {f"{name}-control": control}


def _plain(talk: Conversation) -> Ask:
    return replace(plain_ask(talk), max_new_tokens=4)


@scenario(budget=Budget.STANDARD, perilous=2)
def _unknown_ids(talk: Conversation) -> Steps:
    """Ids outside of any vocabulary, and the vocabulary size as an id, if it is known.

    These ids are in the prompt and among stop ids, biased ids and ids with requested logprobs. Also more top
    logprobs than any vocabulary has ids. These requests must be refused.
    """
    ask = _plain(talk)
    size = talk.vocabulary_size
    bad = dict(_of_size(ask, size))
    for label, token in (("negative", -1), ("two-to-31", 2**31)):
        bad[f"stop-{label}"] = replace(ask, wrong={"stop_token_ids": [token]}, ignore_eos=False)
        bad[f"chosen-{label}"] = replace(ask, logprobs=True, wrong={"chosen_ids": [token]})
        if talk.dialect.request.prompt_chosen is not None and token > 0:
            rows: dict[str, Any] = {}
            put(rows, talk.dialect.request.prompt_chosen, [[token]] * (len(PROMPT) - 1))
            bad[f"chosen-of-prompt-{label}"] = replace(ask, raw=rows)
        if talk.dialect.request.logit_bias is not None:
            bad[f"bias-{label}"] = with_parameter(talk, ask, "logit_bias", {str(token): 1.0})
    bad["top-beyond"] = replace(ask, logprobs=True, top_logprobs=_MANY)
    for label, token in _BEYOND.items():
        bad[f"prompt-{label}"] = replace(ask, wrong={"input_ids": [*PROMPT[:3], token]})
    yield from with_controls(talk, ask, bad, again=True)
    # A refusal may have mentioned the vocabulary size, so the size may be known only now.
    if size is None and (late := _of_size(ask, talk.vocabulary_size)):
        yield late
        yield {"prompt-size-control": ask}


def _of_size(ask: Ask, size: int | None) -> dict[str, Ask | HttpRequest]:
    """Return a request whose prompt contains the vocabulary size as an id, if it is known."""
    return {} if size is None else {"prompt-size": replace(ask, wrong={"input_ids": [*PROMPT[:3], size]})}


@scenario(budget=Budget.STANDARD, perilous=3)
def _negative_ids(talk: Conversation) -> Steps:
    """A prompt with a negative id, without and with streaming.

    It must be refused, and must not harm another request. It is sent last, because an unchecked negative
    index has crashed more servers than any other request.
    """
    bad = {
        "whole": replace(_plain(talk), wrong={"input_ids": [*PROMPT[:3], -1]}),
        "stream": replace(_plain(talk), stream=True, wrong={"input_ids": [-1]}),
    }
    yield from with_controls(talk, _plain(talk), bad, again=True)


@scenario(budget=Budget.STANDARD, perilous=1)
def _wrong_types(talk: Conversation) -> Steps:
    """Fields with a value of the wrong type that no parser can convert. Each request is refused."""
    yield from _of_fields(talk, _plain(talk), _WRONG_TYPES)


@scenario(budget=Budget.STANDARD, perilous=1)
def _impossible_values(talk: Conversation) -> Steps:
    """Numbers below the possible range, and a minimum number of tokens above the maximum.

    Each request is refused.
    """
    yield from _of_fields(talk, _plain(talk), _IMPOSSIBLE)


@scenario(budget=Budget.STANDARD, perilous=1)
def _wrong_in_streams(talk: Conversation) -> Steps:
    """The same invalid values in streaming requests.

    These requests are refused, by a status or by an event, and other requests are not harmed.
    """
    yield from _of_fields(talk, replace(_plain(talk), stream=True), _WRONG_IN_STREAMS)


@scenario(budget=Budget.STANDARD, perilous=1)
def _no_prompt(talk: Conversation) -> Steps:
    """A request without any prompt, and lists that do not have one entry for each prompt of a batch.

    Each is refused.
    """
    ask = _plain(talk)
    nothing = dict.fromkeys(("input_ids", "text", "messages", "prompt", "token_ids"), OMIT)
    bad: dict[str, Ask | HttpRequest] = {"nothing": replace(ask, raw=nothing)}
    batch = replace(ask, input_ids=(PROMPT, PROMPT[:3]), messages=(), text=(), batch=True)
    whole = talk.dialect.render(batch, talk.model)
    if not isinstance(whole, Unsupported):
        yield {"batch": batch}
        bad["three-ids-for-two"] = replace(batch, wrong={"request_id": ["a", "b", "c"]})
        params = whole.body.get("sampling_params") if isinstance(whole.body, dict) else None
        if params is not None:
            bad["one-of-two-params"] = replace(batch, raw={"sampling_params": [params]})
    yield from with_controls(talk, _plain(talk), bad, again=True)


@scenario(budget=Budget.STANDARD, perilous=1)
def _unreadable_bodies(talk: Conversation) -> Steps:
    """Bodies that are not a JSON object, from an empty body to arrays that are nested a hundred thousand
    times.
    """
    method, path = talk.dialect.endpoint.methods[0], talk.dialect.endpoint.path
    bad: dict[str, Ask | HttpRequest] = {
        label: HttpRequest(method, path, raw_body=body, headers=(("content-type", "application/json"),))
        for label, body in _BODIES.items()
    }
    request = talk.dialect.render(_plain(talk), talk.model)
    if not isinstance(request, Unsupported):
        body = json.dumps(request.body).encode()
        bad["content-type"] = HttpRequest(
            method, path, raw_body=body, headers=(("content-type", "text/plain"),)
        )
    control = _plain(talk)
    yield {"control": control}
    yield {"control-again": control}
    yield from ({label: body} for label, body in bad.items())
    yield {"last-control": control}


@scenario()
def _text_features(talk: Conversation) -> Steps:
    """Requests that need a tokenizer: a text prompt, messages, a stop string, a stop pattern.

    A server without a tokenizer refuses them.
    """
    ask = _plain(talk)
    words = replace(ask, input_ids=(), messages=())
    asks = {
        "text": replace(words, text=("Hello",)),
        "messages": replace(words, text=(), messages=({"role": "user", "content": "Hello"},)),
        "stop-string": replace(ask, stop=("zzz",)),
        "stop-regex": replace(ask, stop_regex=("z+",)),
    }
    yield from with_controls(talk, ask, asks, again=True)
