"""Scenarios for endpoints without sampling: embeddings, scores and probabilities."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.dialects.decisions import decision_requests
from tokenwire.scenarios.forms import with_sayable

_INPUTS = (PROMPT, PROMPT[:5], PROMPT[4:9])
_KEPT = 4
_LONGEST = 32768
"""The longest context that is filled only to see a refusal."""


@scenario(results=True)
def _results(talk: Conversation) -> Steps:
    """Three inputs, sent together, each alone, and with another format of the result.

    If the endpoint can truncate inputs, also one input, its beginning and its end. If the endpoint can limit
    the number of results, also the best two results. The same input always has the same result.
    """
    together = with_sayable(talk, Ask(input_ids=_INPUTS), return_prompt_token_ids=True)
    yield {"batch": together}
    yield {f"alone-{position}": replace(together, input_ids=(ids,)) for position, ids in enumerate(_INPUTS)}
    for label, form in talk.dialect.request.same_results.items():
        yield {label: replace(together, raw=form)}
    if truncated := talk.dialect.limited("truncate", _KEPT):
        alone = Ask(input_ids=(PROMPT,))
        yield {"head": replace(alone, input_ids=(PROMPT[:_KEPT],))}
        yield {"tail": replace(alone, input_ids=(PROMPT[-_KEPT:],))}
        yield {"truncated": replace(alone, raw=truncated)}
    if best := talk.dialect.limited("most", 2):
        yield {"best": replace(together, raw=best)}


@scenario(results=True, perilous=2)
def _bad_inputs(talk: Conversation) -> Steps:
    """Inputs without a result: an empty input, an input with an id that no vocabulary has, and an input
    longer than the context. The empty input is sent alone and with another input, as text and as ids. A valid
    request follows after every two of these requests.
    """
    control = Ask(input_ids=_INPUTS[1:2])
    bad: dict[str, dict[str, Any]] = {
        "empty-text": {"text": [""]},
        "empty-beside-another": {"text": ["a", ""]},
        "empty-ids": {"input_ids": [[]]},
        "unknown-id": {"input_ids": [[*PROMPT[:3], 2**31 - 1]]},
    }
    length = talk.advertised.context_length
    if length is not None and length <= _LONGEST:
        bad["long"] = {"input_ids": [PROMPT[0]] * (length + 1)}
    yield {"control": control}
    for position, (label, wrong) in enumerate(bad.items()):
        ask = Ask(text=("a",), wrong=wrong) if "text" in wrong else replace(control, wrong=wrong)
        yield {label: ask}
        if position % 2 and talk.can_say(ask):
            yield {f"{label}-control": control}


@scenario(chat=True)
async def _decisions(talk: Conversation) -> None:
    """Three questions about one text: a choice, a yes or no, and a score. Each question follows alone,
    if the endpoint answers them or refuses them: a tokenizer may have tokens for some kinds of answers only.
    """
    for number, (whole, *alone) in enumerate(decision_requests(talk.dialect.family, talk.model)):
        answer = await talk.call(f"all-{number}", whole)
        if answer is not None and (answer.done or answer.exchange.status == HTTPStatus.BAD_REQUEST):
            for position, request in enumerate(alone):
                await talk.call(f"alone-{number}-{position}", request)
