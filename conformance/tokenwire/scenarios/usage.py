"""Scenarios for usage: requested at the end of a stream, in every event, and not at all."""

from dataclasses import replace

from tokenwire.asking.scenario import Conversation, Steps, scenario
from tokenwire.scenarios.forms import forms, plain_ask, worded
from tokenwire.wire.exchange import HttpRequest

_OPTIONS = "stream_options"
"""The field with the options of a stream. It has no effect if it is empty."""


@scenario()
def _usage(talk: Conversation) -> Steps:
    """One request without streaming, and then as a stream with each usage option.

    The options are usage at the end, usage in every event, both, none, and an empty `stream_options`. All
    answers report the same counts, and a stream reports counts only if the request enables usage.
    """
    ask = replace(plain_ask(talk), max_new_tokens=16)
    streamed = replace(ask, stream=True)
    asks = forms(ask, again=True) | {
        "at-the-end": replace(streamed, usage=True),
        "everywhere": replace(streamed, usage=True, continuous_usage=True),
        "only-on-the-way": replace(streamed, continuous_usage=True),
    }
    request = talk.dialect.render(asks["at-the-end"], talk.model)
    if isinstance(request, HttpRequest) and _OPTIONS in request.body:
        asks["no-options"] = replace(streamed, raw={_OPTIONS: {}})
    yield asks


@scenario(chat=True)
def _usage_of_samples(talk: Conversation) -> Steps:
    """Two samples of one conversation. Usage counts the tokens of both, and the prompt once."""
    yield forms(replace(worded(talk, "Name a colour."), max_new_tokens=6, n=2, temperature=1.0), usage=True)
