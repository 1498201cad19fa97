"""Scenarios that find out if a target is deterministic, and if it ignores unknown fields."""

from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask, Budget
from tokenwire.asking.flags import flagged, plain
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.dialects.dialect import Unsupported
from tokenwire.scenarios.forms import forms
from tokenwire.target.honesty import UNKNOWN_FIELD, UNKNOWN_MODEL, UNKNOWN_PARAMETER, UNKNOWN_PATH
from tokenwire.wire.exchange import HttpRequest


@scenario()
def _probe(talk: Conversation) -> Steps:
    """The same greedy request three times at once. Equal ids show that the target is deterministic."""
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=32, ignore_eos=True, return_token_ids=talk.chat)
    yield {"first": ask, "second": ask, "third": ask}


@scenario()
def _honesty(talk: Conversation) -> Steps:
    """A field, a sampling parameter, a model and a path with invented names.

    A server that answers normally may have ignored other names as well.
    """
    ask = plain(talk.dialect)
    request = talk.dialect.render(ask, talk.model)
    body = {} if isinstance(request, Unsupported) else request.body
    name = talk.new_id("_")
    unknown: dict[str, dict[str, Any]] = {UNKNOWN_FIELD: {name: True}, UNKNOWN_MODEL: {"model": name}}
    holder = next((key for key, value in body.items() if isinstance(value, dict)), None)
    if holder is not None:
        unknown[UNKNOWN_PARAMETER] = {holder: {name: True}}
    yield {label: replace(ask, raw=raw) for label, raw in unknown.items()}
    yield {UNKNOWN_PATH: HttpRequest("POST", f"/{name}", {})}


@scenario(budget=Budget.STANDARD)
def _every_flag(talk: Conversation) -> Steps:
    """Each flag alone, and all flags together, without and with streaming, for one answer, two samples and a
    batch. If a server supports a flag only in one of these forms, the output is missing in another.
    """
    ask = plain(talk.dialect)
    answers = {"one": ask, "samples": replace(ask, n=2)}
    if ask.input_ids:
        answers["batch"] = replace(ask, input_ids=(PROMPT, PROMPT[:5]))
    for label, ask in answers.items():
        for form, asked in forms(ask, label).items():
            yield {
                f"{form}-{flag}": flagged_ask for flag, flagged_ask in flagged(talk.dialect, asked).items()
            }
