"""Scenarios with requests that must be refused. A valid request follows each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.flags import FLAGS
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, scenario
from tokenwire.scenarios.forms import plain_ask, with_controls, with_parameter

_CONTROL = Ask(input_ids=(PROMPT,), max_new_tokens=8, ignore_eos=True)

_MALFORMED: Mapping[str, Any] = {
    "empty": [],
    "string": "12 13",
    "number": 12,
    "string-entry": [12, "13"],
    "fraction-entry": [12, 13.5],
    "null-entry": [12, None],
    "boolean-entry": [12, True],
    "object": {"ids": [12, 13]},
    "empty-in-a-batch": [[], [12, 13]],
}
_NO_PATTERN = "(["


@scenario(perilous=True)
def _malformed_ids(talk: Conversation) -> Steps:
    """Requests whose input_ids are not a list of integers, or are empty.

    Each is refused, and the request after it is answered as before.
    """
    control = replace(_CONTROL, return_token_ids=talk.chat)
    yield {"control": control}
    for label, value in _MALFORMED.items():
        yield {label: replace(control, wrong={"input_ids": value})}
        yield {f"{label}-control": control}


@scenario(chat=True, perilous=True)
def _refused_in_stream(_: Conversation) -> Steps:
    """A chat stream that requests token-in-token-out fields.

    The request is refused before any event, and no other request is harmed.
    """
    control = replace(_CONTROL, return_token_ids=True)
    yield {"control": control}
    for flag in ("prompt-ids", "meta-info", "token-ids"):
        yield {flag: replace(_CONTROL, stream=True, **FLAGS[flag])}
        yield {f"{flag}-control": control}


@scenario(perilous=True)
def _refused_late(talk: Conversation) -> Steps:
    """Streams that a server may refuse only when they are scheduled.

    The requests have an invalid pattern as a stop or as a grammar, or prompt logprobs from a position after
    the prompt. The streams must not deliver any token.
    """
    control = replace(plain_ask(talk), max_new_tokens=8)
    streamed = replace(control, stream=True)
    grammar = with_parameter(talk, streamed, "regex", _NO_PATTERN)
    start = replace(streamed, logprobs=True, wrong={"logprob_start": len(PROMPT) + 50})
    bad = {"stop-pattern": replace(streamed, stop_regex=(_NO_PATTERN,)), "grammar": grammar, "start": start}
    yield from with_controls(talk, control, bad)
