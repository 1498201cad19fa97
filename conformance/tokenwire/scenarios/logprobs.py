"""Scenarios for logprobs: of sampled ids, of the most likely ids, of chosen ids, and of the prompt."""

from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, only_choice, scenario, token_ids
from tokenwire.dialects.logprobs import reported_along
from tokenwire.record import Stream
from tokenwire.scenarios.forms import ask_and_then, forms, plain_ask, with_chosen_ids, with_sayable
from tokenwire.wire.json_pointer import put

_CHOSEN = (40, 11, 97)
"""These ids are not sorted, because the answer must keep the order of the request."""
_LONG = 200
"""More tokens than a server samples before the next request comes.

A cumulative stream repeats the candidates of all earlier tokens, and 400 tokens outgrow the recorder.
"""
_COMES_AGAIN = 12.0
"""A bias with which an id is repeated, so that a penalty changes its logprob."""


@scenario(chat=False)
def _logprob_families(_: Conversation) -> Steps:
    """Logprobs of the sampled ids, of the three most likely and of three chosen ids.

    Without streaming, with streaming, and with several ids in an event.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=24, ignore_eos=True, logprobs=True, top_logprobs=3)
    chosen = replace(ask, chosen_ids=_CHOSEN)
    yield forms(ask, again=True, intervals=(4,), usage=True) | {
        "chosen-whole": chosen,
        "chosen-otherwise": replace(ask, chosen_ids=_CHOSEN[::-1]),
        "chosen-of-samples": replace(chosen, n=2, max_new_tokens=6),
        "chosen-stream": replace(chosen, stream=True, usage=True),
    }


@scenario(chat=False)
def _prompt_logprobs(_: Conversation) -> Steps:
    """Prompt logprobs from the first, second, third, middle and last position and from the end of the prompt.

    Without streaming, and with streaming with the logprobs in the first event.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=6, ignore_eos=True, logprobs=True, top_logprobs=2)
    size = len(PROMPT)
    for start in (0, 1, 2, size // 2, size - 1, size):
        yield {f"from-{start}-whole": replace(ask, logprob_start=start)}
        if start in (0, 2):
            yield {f"from-{start}-stream": replace(ask, logprob_start=start, stream=True)}


@scenario(chat=False)
async def _chosen_prompt_logprobs(talk: Conversation) -> None:
    """Logprobs of chosen ids at each position of the prompt, beside those of the likeliest ids.

    From the first position and from the sixth, without and with streaming. If the endpoint takes ids for each
    position, they change from position to position, and some positions have fewer of them. A request with too
    few rows of ids must be refused.
    """
    binding = talk.dialect.request
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=2, ignore_eos=True, logprobs=True, top_logprobs=2)
    asks: dict[str, Ask] = {}
    for start in (0, 5):
        if binding.prompt_chosen is None:
            one = replace(ask, logprob_start=start, chosen_ids=(PROMPT[start + 1], *_CHOSEN))
        else:
            raw: dict[str, Any] = {}
            put(raw, binding.prompt_chosen, [list(_ids_at(at)) for at in range(start + 1, len(PROMPT))])
            if start and binding.prompt_chosen_start is not None:
                put(raw, binding.prompt_chosen_start, start)
            one = replace(ask, logprob_start=0, raw=raw)
        asks |= {f"from-{start}": one, f"from-{start}-stream": replace(one, stream=True)}
    if binding.prompt_chosen is not None:
        few: dict[str, Any] = {}
        put(few, binding.prompt_chosen, [list(_ids_at(at)) for at in range(2, len(PROMPT))])
        asks["too-few"] = replace(ask, logprob_start=0, raw=few)
    await talk.ask_all({label: one for label, one in asks.items() if talk.can_say(one)})


def _ids_at(position: int) -> tuple[int, ...]:
    """Return different ids for neighbouring positions of the prompt, with the prompt's own id among them."""
    own = PROMPT[position]
    return (own, *_CHOSEN) if position % 2 else (_CHOSEN[1], own)


@scenario(chat=False)
async def _rescored_output(talk: Conversation) -> None:
    """Answers to three prompts with their logprobs.

    Then prompt and output are sent as a new prompt. Its prompt logprobs must equal the logprobs that the
    output had.
    """
    for label, prompt in (("", PROMPT), ("-short", PROMPT[:5]), ("-turned", PROMPT[::-1])):
        ask = Ask(input_ids=(prompt,), max_new_tokens=16, ignore_eos=True, logprobs=True)
        ids = token_ids(await talk.ask(f"sampled{label}", ask))
        if ids:
            back = replace(ask, input_ids=((*prompt, *ids),), max_new_tokens=1)
            await talk.ask(f"scored{label}", replace(back, logprob_start=0, top_logprobs=1))


@scenario(chat=False)
async def _logprobs_at_a_temperature(talk: Conversation) -> None:
    """Top logprobs after one prompt, without and with streaming: greedy, at temperature 0.5, at 1 with top_k,
    with a bias that selects another id, and with a penalty. The differences between logprobs show if logits
    are divided by the temperature, and if biases are added. Their values show if truncation removes ids
    first.
    """
    greedy = Ask(input_ids=(PROMPT,), max_new_tokens=4, ignore_eos=True, logprobs=True, top_logprobs=5)
    warm = replace(greedy, temperature=0.5, seed=7)
    short = replace(greedy, temperature=1.0, seed=7, top_k=2)
    asks = {"whole": warm, "whole-again": warm, "top-k": short, "top-k-again": short}
    streams = {"stream": replace(warm, stream=True), "top-k-stream": replace(short, stream=True)}
    another = _second_likeliest(await talk.ask("greedy", greedy))
    biased = replace(greedy, logit_bias=dict.fromkeys(another, _COMES_AGAIN))
    forced = {
        "bias": biased,
        "bias-stream": replace(biased, stream=True),
        "penalty": replace(biased, frequency_penalty=1.0),
    }
    await talk.ask_all(asks | streams | (forced if biased.logit_bias else {}))


@scenario(budget=Budget.STANDARD, alone=True)
async def _candidates_beside_more(talk: Conversation) -> None:
    """A request for one top logprob, while a stream with five runs. An engine computes one number of
    candidates for all requests of a step, so that the front end has to cut them. Then a request for three
    chosen ids, and one for five top logprobs while a stream with one chosen id runs.
    """
    few = replace(plain_ask(talk), max_new_tokens=8, logprobs=True, top_logprobs=1)
    five = replace(few, top_logprobs=5)
    more = replace(five, max_new_tokens=talk.fitting(_LONG), stream=True)
    more = with_sayable(talk, more, ignore_eos=True)
    if not talk.can_say(few):
        return
    await ask_and_then(talk, "more", more, 1, lambda _: talk.ask("few", few))
    chosen = with_chosen_ids(talk, more, _CHOSEN[:1])
    if chosen != more:
        await talk.ask("chosen-whole", with_chosen_ids(talk, five, _CHOSEN))
        await ask_and_then(talk, "chosen", chosen, 1, lambda _: talk.ask("five", five))


def _second_likeliest(answer: Stream | None) -> tuple[int, ...]:
    """Return the second most likely id at the first position of an answer; the sampled id if others are not
    reported.
    """
    choice = only_choice(answer)
    positions = next((series.positions for _, series in reported_along(choice)), ()) if choice else ()
    top = positions[0].top if positions else None
    known = [(entry.number, entry.id) for entry in top or () if entry.number is not None]
    ids = [token for _, token in sorted(known, key=lambda pair: -pair[0]) if type(token) is int]
    return tuple(ids[1:2]) or token_ids(answer)[:1]


@scenario(chat=False)
async def _echoed_prompt(talk: Conversation) -> None:
    """A prompt as text and as ids, with and without an echo, with and without logprobs, without and with
    streaming; and an echo without new tokens. With a text prompt, ids are not requested, because some servers
    return them instead of the echoed text.
    """
    text = Ask(text=("The sea is",), max_new_tokens=6, ignore_eos=True, raw={"return_token_ids": False})
    ids = Ask(input_ids=(PROMPT,), max_new_tokens=6, ignore_eos=True, return_token_ids=True)
    for label, ask in (("text", text), ("ids", ids)):
        echo, scored = replace(ask, echo=True), replace(ask, logprobs=True, top_logprobs=2)
        both = replace(scored, echo=True)
        if await talk.ask(f"{label}-echo", echo) is None:
            return
        await talk.ask_all(
            {
                f"{label}-plain": ask,
                f"{label}-echo-alone": replace(both, max_new_tokens=0),
                f"{label}-echo-stream": replace(echo, stream=True, usage=True),
                f"{label}-logprobs": scored,
                f"{label}-echo-logprobs": both,
                f"{label}-echo-logprobs-stream": replace(both, stream=True, usage=True),
            }
        )
