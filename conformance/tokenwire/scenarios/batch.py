"""Scenarios for several choices in one answer: batches of prompts, and samples of one prompt."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.scenarios.forms import forms
from tokenwire.wire.exchange import HttpRequest

_PROMPTS = (PROMPT, PROMPT[:3], PROMPT[2:9])
"""Prompts of different lengths. If a server swaps prompts, the returned prompt ids show it."""
_BATCH = Ask(input_ids=_PROMPTS, batch=True, max_new_tokens=8, return_prompt_token_ids=True)


@scenario(chat=False)
def _samples(_: Conversation) -> Steps:
    """One prompt with three samples, without and with streaming.

    The answer has the choices 0 to 2, each with its own ids and the prompt's ids.
    """
    ask = Ask(input_ids=(PROMPT,), n=3, max_new_tokens=10, temperature=1.0, logprobs=True)
    yield forms(replace(ask, return_prompt_token_ids=True))


@scenario(chat=False)
def _batch_of_prompts(_: Conversation) -> Steps:
    """Three prompts of different lengths in one request, without and with streaming.

    There is one choice for each prompt, in the order of the prompts.
    """
    ask = replace(_BATCH, max_new_tokens=12, ignore_eos=True, logprobs=True)
    yield forms(ask, again=True, intervals=(4,))


@scenario(chat=False)
def _batch_with_samples(_: Conversation) -> Steps:
    """Two prompts with two samples each.

    The answer has four choices; the samples of a prompt are neighbours.
    """
    yield forms(replace(_BATCH, input_ids=_PROMPTS[:2], n=2))


@scenario(chat=False)
def _batch_of_one(_: Conversation) -> Steps:
    """A list with a single prompt. Such a list is a batch, so the answer is a list with a single choice."""
    yield forms(replace(_BATCH, input_ids=(PROMPT,)))


_BUDGETS = (9, 6, 4, 1)
"""Token limits, one for each of four prompts. The last prompt's answer is the shortest."""


def stops_apart(answers: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return stop ids that end the answers at different places, the last one early.

    Answers with equal ids get no stop.
    """
    late = {token for ids in answers[:-1] for token in ids}
    early = next((token for token in answers[-1][1:] if token not in late), None)
    rest = {token for ids in answers[1:] for token in ids}
    then = next((token for token in answers[0][len(answers[0]) // 2 :] if token not in rest), None)
    return tuple(token for token in (early, then) if token is not None)


@scenario(chat=False)
async def _uneven_ends(talk: Conversation) -> None:
    """One request with several prompts, whose answers end at different tokens.

    The answer to the last prompt ends first. The answers end by stop ids, by stop strings and, if each prompt
    can have its own limit, by token limits. Also samples that end at a stop string.
    """
    prompts = (PROMPT[1:], PROMPT[3:5], PROMPT[:9], PROMPT * 2)
    ask = Ask(input_ids=prompts, batch=True, max_new_tokens=16, logprobs=True)
    free = await talk.ask("unstopped", ask)
    if free is None or len(free.choices) < len(prompts):
        return
    asks: dict[str, Ask] = {}
    ids = [choice.output_ids or () for choice in free.choices]
    if stops := stops_apart(ids) if all(ids) else ():
        asks["ids"] = replace(ask, stop_token_ids=stops)
        for position in (0, -1):
            alone = replace(asks["ids"], input_ids=(prompts[position],), batch=False)
            await talk.ask_all({f"alone{position}": alone, f"alone{position}-again": alone})
    letters = Counter(letter for choice in free.choices for letter in choice.text or "" if letter.isalnum())
    if often := tuple(letter for letter, _ in letters.most_common(2)):
        sampled = replace(ask, input_ids=prompts[:1], batch=False, n=4, temperature=1.0)
        asks |= {"strings": replace(ask, stop=often), "samples": replace(sampled, stop=often)}
    request = talk.dialect.render(ask, talk.model)
    params = request.body.get("sampling_params") if isinstance(request, HttpRequest) else None
    if params is not None:
        budgets = [params | {"max_new_tokens": budget} for budget in _BUDGETS]
        asks["budgets"] = replace(ask, raw={"sampling_params": budgets})
    for label, ending in asks.items():
        streamed = replace(ending, stream=True)
        await talk.ask_all({label: ending, f"{label}-stream": streamed})
        if ending.temperature == 0.0:
            await talk.ask(f"{label}-interval-4", replace(streamed, stream_interval=4))


@scenario(chat=False)
def _batch_and_singles(_: Conversation) -> Steps:
    """Prompts of different lengths, each sent twice alone, and then all in one batch.

    The batch must give the same answers.
    """
    ask = Ask(max_new_tokens=12, ignore_eos=True, logprobs=True)
    prompts = (PROMPT[1:], PROMPT[3:5], PROMPT[:9], PROMPT * 3)
    for position, ids in enumerate(prompts):
        single = replace(ask, input_ids=(ids,))
        yield {f"single-{position}": single, f"single-{position}-again": single}
    together = replace(ask, input_ids=prompts, batch=True)
    yield forms(together)
    yield {"top-logprobs": replace(together, top_logprobs=2)}
