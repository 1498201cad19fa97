"""The scenario for request ids."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.scenarios.forms import forms


@scenario(chat=False)
def _request_id(talk: Conversation) -> Steps:
    """A request id that the client chooses, without and with streaming.

    The answer carries it, equal in all events.
    """
    run = talk.new_id()
    asks = forms(Ask(input_ids=(PROMPT,), max_new_tokens=8, ignore_eos=True))
    yield {form: replace(ask, request_id=f"{run}-{form}") for form, ask in asks.items()}
