"""Scenarios for sampling fields: biases, minimum tokens, temperature, truncation, penalties.

Each field has a visible effect.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import Conversation, Steps, scenario, token_ids
from tokenwire.scenarios.forms import plain_ask, with_sayable

_FORCED = 40
"""A small id that is valid in nearly every vocabulary."""
_REPORTED = {"return_token_ids": True, "logprobs": True}
_NEUTRAL: Mapping[str, Any] = {"top_k": -1, "top_p": 1.0, "min_p": 0.0}
"""Fields that are sent with neutral values, because the model's generation config may set other values."""
_TRUNCATED: Mapping[str, Mapping[str, Any]] = {
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.05},
    "min-p": {"min_p": 0.9},
}
_SAMPLES = 3


@scenario()
async def _sampling_fields(talk: Conversation) -> None:
    """One prompt, greedy: with biases that force or exclude an id, and with a stop id that a minimum number
    of tokens suspends. Also at temperature 1: several times, with samples, and truncated by top_k, top_p and
    min_p.
    """
    ask = with_sayable(talk, replace(plain_ask(talk), max_new_tokens=12), **_REPORTED)
    ids = token_ids(await talk.ask("natural", ask))
    forced = replace(ask, logit_bias={_FORCED: 100.0})
    streamed = replace(forced, stream=True, return_token_ids=False)
    await talk.ask_all({"forced": forced, "forced-stream": streamed})
    if ids:
        await talk.ask("banned", replace(ask, logit_bias={ids[0]: -100.0}))
        early = next((token for token in ids[1:4] if token != ids[0]), ids[0])
        await talk.ask("not-yet", replace(ask, ignore_eos=False, stop_token_ids=(early,), min_new_tokens=8))
    await _sampled(talk, replace(ask, max_new_tokens=48))


async def _sampled(talk: Conversation, ask: Ask) -> None:
    """Yield the request at temperature 1, without and with truncation, next to the greedy request."""
    warm = with_sayable(talk, replace(ask, temperature=1.0), **_NEUTRAL)
    asks = {"greedy": ask} | {f"sampled-{number}": warm for number in range(_SAMPLES)}
    asks["samples"] = replace(warm, n=_SAMPLES)
    short = replace(ask, temperature=1.0, max_new_tokens=16, top_logprobs=5)
    short = replace(short, stream=True, return_token_ids=False)
    for label, fields in _TRUNCATED.items():
        asks[label] = replace(short, **fields)
    await talk.ask_all(asks)


@scenario(budget=Budget.STANDARD)
def _penalties(talk: Conversation) -> Steps:
    """A biased id under a frequency penalty, until the penalty exceeds the bias.

    Also bias and penalty with top logprobs, which may be computed before or after them.
    """
    ask = with_sayable(talk, replace(plain_ask(talk), max_new_tokens=64), **_REPORTED)
    penalised = replace(ask, logit_bias={_FORCED: 40.0}, frequency_penalty=2.0)
    yield {
        "whole": penalised,
        "stream": replace(penalised, stream=True, return_token_ids=False),
        "top-logprobs": replace(penalised, max_new_tokens=16, top_logprobs=2),
    }
