"""Scenarios for sampling fields: biases, minimum tokens, temperature, truncation, penalties.

Each field has a visible effect.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import Conversation, Steps, scenario, token_ids
from tokenwire.scenarios.forms import plain_ask, with_sayable
from tokenwire.target.tokenizer import KnownVocabulary, LocalTokenizer, Tokenizer

_FORCED = 40
"""A small id that is valid in nearly every vocabulary."""
_FEW_IDS = (_FORCED, 11)
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
    of tokens suspends; also with sets of allowed ids and banned words, if the endpoint has these
    fields. Also at temperature 1: several times, with samples, and truncated by top_k, top_p and
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
    await _restricted(talk, ask, ids)
    await _sampled(talk, replace(ask, max_new_tokens=48))


async def _restricted(talk: Conversation, ask: Ask, ids: Sequence[int]) -> None:
    """Send the request with allowed ids, and with a ban of a word that the model says."""
    asks = {"allowed": replace(ask, allowed_token_ids=_FEW_IDS)}
    if word := _word_in(talk, ids):
        asks["bad-words"] = replace(ask, bad_words=(word,))
    await talk.ask_all({label: one for label, one in asks.items() if talk.can_say(one)})


def _word_in(talk: Conversation, ids: Sequence[int]) -> str:
    """Return the text of an id that is a word, and that is one token with and without a space before it.

    A server bans the tokens of a word by its own encoding. So nothing is returned for an unknown encoding.
    """
    tokenizer: Tokenizer | None = talk.transcript.tokenizer
    encode = tokenizer.known.encode if isinstance(tokenizer, LocalTokenizer) else None
    if talk.parrot is not None:
        tokenizer, encode = KnownVocabulary(talk.parrot.words), talk.parrot.encode
    if encode is None or tokenizer is None:
        return ""
    texts = (tokenizer.decode((token,)) or "" for token in ids)
    words = (text for text in texts if re.fullmatch(" ?[A-Za-z]+", text))
    return next((word for word in words if all(len(encode(w)) == 1 for w in (word, word.lstrip()))), "")


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
