"""Scenarios for token limits: small limits, limits near a stop, and limits at the end of the context."""

from dataclasses import replace

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import (
    PROMPT,
    Conversation,
    Steps,
    only_choice,
    scenario,
    text_of,
    together,
    token_ids,
)
from tokenwire.asking.tap import Tap
from tokenwire.scenarios.forms import forms, plain_ask, worded

_LONGEST = 8192
"""The longest context that is filled repeatedly, unless the budget of the run is large."""
_MORE = 16
"""Tokens of an answer without a limit beyond the default of an engine."""
_OF_TOKENS = "max_tokens"
"""A token limit field of which 0 is tested, even if 0 means no limit in another field."""


@scenario(chat=False)
def _budget_sweep(_: Conversation) -> Steps:
    """Token limits of two, three and eight tokens without a stop.

    Each answer has as many tokens as the limit.
    """
    for budget in (2, 3, 8):
        yield forms(Ask(input_ids=(PROMPT,), max_new_tokens=budget, ignore_eos=True), f"{budget}")


def _first_of_its_kind(ids: tuple[int, ...]) -> int | None:
    """Return the position of an id that occurs for the first time there, from position 4 on; None if there is
    none.
    """
    return next(
        (position for position, token in enumerate(ids) if position >= 3 and token not in ids[:position]),
        None,
    )


@scenario()
async def _stop_around_the_budget(talk: Conversation) -> None:
    """A stop at a known place, and token limits that end before it, at it and after it, without and with
    streaming. The finish is stop if the limit includes the token of the stop, and length otherwise.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=24, return_token_ids=talk.chat)
    ids = token_ids(await talk.ask("unstopped", ask))
    position = _first_of_its_kind(ids)
    if position is None:
        return
    stopped = replace(ask, stop_token_ids=(ids[position],))
    await talk.ask("far", stopped)
    asks: dict[str, Ask] = {}
    for label, budget in (("before", position), ("at", position + 1), ("after", position + 2)):
        limited = replace(stopped, return_token_ids=False, max_new_tokens=budget)
        asks |= {label: limited, f"{label}-stream": replace(limited, stream=True, usage=True)}
    await talk.ask_all(asks)


@scenario()
async def _stop_string_around_the_budget(talk: Conversation) -> None:
    """A stop string from a known answer, with every token limit from 1 to the length of the answer.

    One of the limits ends at the token that completes the stop string.
    """
    ask = replace(worded(talk, "Tell me about the sea."), max_new_tokens=12, ignore_eos=not talk.chat)
    text = text_of(await talk.ask("unstopped", ask))
    stop = next(
        (character for character in text[2:] if character.isalnum() and text.index(character) >= 2), None
    )
    if stop is None:
        return
    stopped = replace(ask, stop=(stop,))
    await talk.ask("far", stopped)
    await talk.ask_all(
        {f"{budget}-tokens": replace(stopped, max_new_tokens=budget) for budget in range(1, 6)}
    )


@scenario()
async def _no_budget(talk: Conversation) -> None:
    """A token limit of 0 with every kind of logprobs or with the prompt's ids, without and with streaming.

    Without tokens, there are no entries, but the prompt has its ids. In some fields, 0 means no limit. If a
    server then generates up to the end of its context or the time limit, the request is sent only once.
    """
    ask = replace(plain_ask(talk), max_new_tokens=0, logprobs=True)
    if talk.dialect.policy.zero_budget == "unspecified":
        if (_OF_TOKENS,) not in talk.dialect.request.fields["max_new_tokens"]:
            return
        ask = replace(ask, max_new_tokens=None, raw={_OF_TOKENS: 0})
    answer = await talk.ask("sampled", ask)
    first = only_choice(answer)
    silent = answer is not None and answer.exchange.status is None
    if silent or (first is not None and (first.output_ids or first.text)):
        return
    kinds = {
        "sampled": ask,
        "top": replace(ask, top_logprobs=2),
        "chosen": replace(ask, chosen_ids=PROMPT[:2]),
        "prompt": replace(ask, top_logprobs=2, logprob_start=0),
        "prompt-ids": replace(ask, return_prompt_token_ids=True),
    }
    streamed = {f"{kind}-stream": replace(ask, stream=True) for kind, ask in kinds.items()}
    del kinds["sampled"]
    await talk.ask_all(kinds | streamed)


@scenario()
async def _unnamed_budget(talk: Conversation) -> None:
    """A stream without a token limit, which the client leaves after more tokens than the defaults of engines;
    and, in a small context, a whole answer to a prompt that leaves room for a few more.
    """
    least, context = talk.dialect.policy.default_budget_exceeds, talk.advertised.context_length
    ask = replace(plain_ask(talk), max_new_tokens=None, ignore_eos=True)
    if least is None or not talk.can_say(ask):
        return
    tap = Tap()

    async def leave() -> None:
        await tap.events(least + _MORE)
        tap.hang_up()

    await together(talk.ask("stream", replace(ask, stream=True), tap=tap), leave())
    if context is not None and ask.input_ids and least + _MORE < context <= _LONGEST:
        ids = tuple(10 + (7 * position) % 240 for position in range(context - least - _MORE))
        await talk.ask("whole", replace(ask, input_ids=(ids,)))


@scenario(budget=Budget.STANDARD)
def _context_border(talk: Conversation) -> Steps:
    """Prompts about as long as the context that the target reports, with a limit of one token.

    Each is either refused, or processed completely. All endpoints must decide alike, with and without
    streaming.
    """
    context = talk.advertised.context_length
    too_long = context is not None and context > _LONGEST and talk.budget is not Budget.SOAK
    if context is None or too_long or not (talk.chat or talk.dialect.takes_ids):
        return
    for length in range(context - 8, context + 2):
        ids = tuple(10 + (7 * position) % 240 for position in range(length))
        yield forms(Ask(input_ids=(ids,), max_new_tokens=1, ignore_eos=True), f"{length}")
