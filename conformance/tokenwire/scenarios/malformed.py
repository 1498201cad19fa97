"""Requests with values that they must not have; after each comes a good one, to see whether harm was done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import OMIT, Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, scenario
from tokenwire.dialects.dialect import Unsupported
from tokenwire.scenarios.plain_ask import plain_ask, with_parameter
from tokenwire.wire.exchange import HttpRequest

_DEEP = 100_000

_BEYOND: Mapping[str, int] = {
    "two-to-31": 2**31,
    "two-to-63": 2**63,
    "two-to-70": 2**70,
}

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


async def _each_with_a_control(talk: Conversation, asks: Mapping[str, Ask | HttpRequest]) -> None:
    """A good request twice, then each bad one with the same good one behind it."""
    control = replace(plain_ask(talk), max_new_tokens=4)
    await talk.ask("control", control)
    await talk.ask("control-again", control)
    for label, bad in asks.items():
        sent = await (talk.send(label, bad) if isinstance(bad, HttpRequest) else talk.ask(label, bad))
        if sent is not None:
            await talk.ask(f"{label}-control", control)


@scenario(budget=Budget.STANDARD, perilous=2)
async def unknown_ids(talk: Conversation) -> None:
    """Ids that no vocabulary has: among stop ids, biased ids and ids whose logprobs are asked for, and beyond
    every vocabulary in the prompt; then the id that equals the size of the server's. None of them is run.
    """
    ask = replace(plain_ask(talk), max_new_tokens=4)
    bad: dict[str, Ask | HttpRequest] = {}
    for label, token in (("negative", -1), ("two-to-31", 2**31)):
        bad[f"stop-{label}"] = replace(ask, wrong={"stop_token_ids": [token]}, ignore_eos=False)
        bad[f"chosen-{label}"] = replace(ask, logprobs=True, wrong={"chosen_ids": [token]})
        bad[f"bias-{label}"] = with_parameter(talk, ask, "logit_bias", {str(token): 1.0})
    for label, token in _BEYOND.items():
        bad[f"prompt-{label}"] = replace(ask, wrong={"input_ids": [*PROMPT[:3], token]})
    await _each_with_a_control(talk, bad)
    size = talk.vocabulary_size  # the refusals may have told it
    if size is not None:
        await talk.ask("prompt-size", replace(ask, wrong={"input_ids": [*PROMPT[:3], size]}))
        await talk.ask("prompt-size-control", ask)


@scenario(budget=Budget.STANDARD, perilous=3)
async def negative_ids(talk: Conversation) -> None:
    """A prompt with an id below 0, whole and streamed: it is not run and harms no other. Nothing is asked
    after these: an unchecked index below 0 has ended more servers than all else.
    """
    ask = replace(plain_ask(talk), max_new_tokens=4)
    bad: dict[str, Ask | HttpRequest] = {
        "whole": replace(ask, wrong={"input_ids": [*PROMPT[:3], -1]}),
        "stream": replace(ask, stream=True, wrong={"input_ids": [-1]}),
    }
    await _each_with_a_control(talk, bad)


def _table(ask: Ask, table: Mapping[str, tuple[Any, ...]]) -> dict[str, Ask | HttpRequest]:
    return {
        f"{name}-{position}": replace(ask, wrong={name: value})
        for name, values in table.items()
        for position, value in enumerate(values)
    }


@scenario(budget=Budget.STANDARD, perilous=True)
async def wrong_types(talk: Conversation) -> None:
    """Fields with values of another type, which no reader can take for the right one: each is refused."""
    await _each_with_a_control(talk, _table(replace(plain_ask(talk), max_new_tokens=4), _WRONG_TYPES))


@scenario(budget=Budget.STANDARD, perilous=True)
async def impossible_values(talk: Conversation) -> None:
    """Numbers below what makes sense, and more tokens asked for at least than at most: each is refused."""
    await _each_with_a_control(talk, _table(replace(plain_ask(talk), max_new_tokens=4), _IMPOSSIBLE))


@scenario(budget=Budget.STANDARD, perilous=True)
async def wrong_in_streams(talk: Conversation) -> None:
    """The same mistakes in requests for streams: refused, by a status or in band, without harm to others."""
    ask = replace(plain_ask(talk), max_new_tokens=4, stream=True)
    bad = _table(ask, {"max_new_tokens": (-1, "many"), "temperature": (-1.0,), "stop": (5,)})
    await _each_with_a_control(talk, bad)


@scenario(budget=Budget.STANDARD, perilous=True)
async def no_prompt(talk: Conversation) -> None:
    """A request without any prompt, and lists for each prompt that do not fit a batch: each is refused."""
    ask = replace(plain_ask(talk), max_new_tokens=4)
    nothing = dict.fromkeys(("input_ids", "text", "messages", "prompt", "token_ids"), OMIT)
    bad: dict[str, Ask | HttpRequest] = {"nothing": replace(ask, raw=nothing)}
    batch = replace(ask, input_ids=(PROMPT, PROMPT[:3]), messages=(), text=(), batch=True)
    whole = talk.dialect.render(batch, talk.model)
    if not isinstance(whole, Unsupported):
        await talk.ask("batch", batch)
        bad["three-ids-for-two"] = replace(batch, wrong={"request_id": ["a", "b", "c"]})
        params = whole.body.get("sampling_params") if isinstance(whole.body, dict) else None
        if params is not None:
            bad["one-of-two-params"] = replace(batch, raw={"sampling_params": [params]})
    await _each_with_a_control(talk, bad)


@scenario(budget=Budget.STANDARD, perilous=True)
async def unreadable_bodies(talk: Conversation) -> None:
    """Bodies that are no JSON object, from nothing at all to arrays nested a hundred thousand deep."""
    endpoint = talk.dialect.endpoint
    json_type = (("content-type", "application/json"),)
    bad: dict[str, Ask | HttpRequest] = {
        label: HttpRequest(endpoint.methods[0], endpoint.path, raw_body=body, headers=json_type)
        for label, body in _BODIES.items()
    }
    request = talk.dialect.render(replace(plain_ask(talk), max_new_tokens=4), talk.model)
    if not isinstance(request, Unsupported):
        plain = (("content-type", "text/plain"),)
        body = json.dumps(request.body).encode()
        bad["content-type"] = HttpRequest(request.method, request.path, raw_body=body, headers=plain)
    await _each_with_a_control(talk, bad)


@scenario()
async def text_features(talk: Conversation) -> None:
    """What needs a tokenizer: a text prompt, messages, a stop string, a pattern. A server without one
    refuses them.
    """
    ask = replace(plain_ask(talk), max_new_tokens=4)
    words = replace(ask, input_ids=(), messages=())
    asks = {
        "text": replace(words, text=("Hello",)),
        "messages": replace(words, text=(), messages=({"role": "user", "content": "Hello"},)),
        "stop-string": replace(ask, stop=("zzz",)),
        "stop-regex": replace(ask, stop_regex=("z+",)),
    }
    await _each_with_a_control(talk, asks)
