"""The plainest request that an endpoint has words for, whatever form of prompt it takes."""

from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation
from tokenwire.dialects.dialect import Unsupported

_WORDS = "Count to ten."

_ASKS = (
    Ask(input_ids=(PROMPT,), ignore_eos=True),
    Ask(messages=({"role": "user", "content": _WORDS},)),
    Ask(text=(_WORDS,)),
)


def plain_ask(talk: Conversation) -> Ask:
    """Ids where the endpoint takes them, else messages, else text."""
    return next((ask for ask in _ASKS if has_words(talk, ask)), _ASKS[0])


def has_words(talk: Conversation, ask: Ask) -> bool:
    """Whether the endpoint has a way to say what an ask wants."""
    return not isinstance(talk.dialect.render(ask, talk.model), Unsupported)


def with_parameter(talk: Conversation, ask: Ask, name: str, value: Any) -> Ask:
    """The ask with a parameter that dialects have no word for, where the endpoint has its sampling
    parameters.
    """
    request = talk.dialect.render(ask, talk.model)
    nested = not isinstance(request, Unsupported) and "sampling_params" in request.body
    return replace(ask, raw={"sampling_params": {name: value}} if nested else {name: value})
