"""Flags: request options that add output beside the tokens, such as usage or logprobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT
from tokenwire.dialects.dialect import Dialect, Unsupported
from tokenwire.wire.exchange import HttpRequest
from tokenwire.wire.json_pointer import Keys, put

FLAGS: Mapping[str, Mapping[str, Any]] = {
    "prompt-ids": {"return_prompt_token_ids": True},
    "token-ids": {"return_token_ids": True},
    "meta-info": {"return_meta_info": True},
    "logprobs": {"logprobs": True},
    "top-logprobs": {"logprobs": True, "top_logprobs": 2},
    "chosen-ids": {"logprobs": True, "chosen_ids": (40, 11)},
    "logprob-texts": {"logprobs": True, "logprob_texts": True},
    "prompt-logprobs": {"logprobs": True, "logprob_start": 0},
    "echo": {"echo": True},
    "usage": {"usage": True},
    "continuous-usage": {"usage": True, "continuous_usage": True},
}
"""The request fields that set each flag, by a label for the flag."""

_OF_STREAMS = ("usage", "continuous-usage")
"""Flags that are set only for streams. A response that is not a stream always contains its usage."""


_PLAIN = (
    Ask(input_ids=(PROMPT,), max_new_tokens=4),
    Ask(messages=({"role": "user", "content": "Hello"},), max_new_tokens=4),
    Ask(text=("Hello",), max_new_tokens=4),
)
"""A prompt as ids, as text and as messages. The first form that a dialect supports is used."""


def plain(dialect: Dialect) -> Ask:
    """Return the smallest request that a dialect supports. Raises ValueError if it supports none."""
    for ask in filter(dialect.can_say, _PLAIN):
        return ask
    raise ValueError(f"dialect {dialect.name!r} takes no input_ids, messages or text; its table is wrong")


def flagged(dialect: Dialect, ask: Ask) -> dict[str, Ask]:
    """Return a variant of the request for each flag of the dialect, by label, without duplicates."""
    asks = {
        label: replace(ask, **fields)
        for label, fields in FLAGS.items()
        if ask.stream or label not in _OF_STREAMS
    }
    asks |= {
        str(keys[-1]).replace("_", "-"): replace(ask, raw=_set_at(keys, _enabling(dialect, ask, keys)))
        for keys in dialect.request.asks
    }
    sent: dict[str, Ask] = {}
    requests: list[HttpRequest] = []
    for label, with_flag in asks.items():
        request = dialect.render(with_flag)
        if not isinstance(request, Unsupported) and request not in requests:
            sent[label] = with_flag
            requests.append(request)
    return sent


def _enabling(dialect: Dialect, ask: Ask, keys: Keys) -> Any:
    """Return the value that enables an output: true, or a row of ids for each position of the prompt."""
    if keys != dialect.request.prompt_chosen:
        return True
    return [[*FLAGS["chosen-ids"]["chosen_ids"]]] * (len(ask.input_ids[0]) - 1 if ask.input_ids else 1)


def _set_at(keys: Keys, value: Any) -> dict[str, Any]:
    """Return a JSON object with a value at this JSON pointer."""
    body: dict[str, Any] = {}
    put(body, keys, value)
    return body
