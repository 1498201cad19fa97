"""The text that the channels of a choice should contain, from the right answer.

This text is known even if the answer has neither ids nor logprobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from tokenwire.ask import Asked
from tokenwire.checks.check import Target
from tokenwire.checks.reading.channels import SPENT, MarkedText, hides_reasoning, offered, said_of
from tokenwire.checks.reading.fields import usage_count
from tokenwire.dialects.dialect import is_chat
from tokenwire.dialects.markup import Markup
from tokenwire.parrot.law import Repeater
from tokenwire.parrot.recognition import KnownModel
from tokenwire.parrot.script import Truth, truth
from tokenwire.record import BROKEN, Choice, Stream

_LEAVE_TOKENS = frozenset(
    {
        *("tools", "tool_choice", "parallel_tool_calls", "previous_response_id"),
        *("chat_template_kwargs", "reasoning", "reasoning_effort", "thinking"),
    }
)
"""Request fields that do not change the generated tokens, unless they force or forbid a call."""


def known_marked_text(stream: Stream, choice: Choice, target: Target) -> MarkedText | None:
    """Return the text of the tokens of a choice. If the tokens are unknown, return the text of the right
    answer. None if both are unknown.
    """
    stated = said_of(stream, choice, target.markup, target.detokenizer)
    if stated is not None or target.model is None:
        return stated
    return right_marked_text(target.model, stream, choice, target.markup)


def right_marked_text(model: KnownModel, stream: Stream, choice: Choice, markup: Markup) -> MarkedText | None:
    """Return the right text of a choice including its markup. None if it is unknown."""
    right = _right(stream, choice, model)
    special = model.words.special - model.words.ends
    if right is None or special.intersection(right.ids) or BROKEN in right.text:
        return None  # a parser may need special tokens, and a broken character may be visible or not
    alone = stream.asked.tools is not None and stream.asked.tools.alone
    spent = right.finish == SPENT
    return MarkedText(right.text, markup, offered(stream), spent, False, False, alone)


def _right(stream: Stream, choice: Choice, model: KnownModel) -> Truth | None:
    if hides_reasoning(stream):
        return None
    asked = _as_free(stream.asked)
    prompts, place = model.prompts(stream), choice.index // max(stream.asked.n, 1)
    if not is_chat(stream) or asked is None or asked.max_new_tokens is None or not 0 <= place < len(prompts):
        return None
    ending = model.ending(stream, asked.max_new_tokens)
    if ending is not None:
        ids, lag = ending
        return truth(Repeater(lag), model.words, ids, asked)
    prompt, count = prompts[place], usage_count(stream, "prompt_tokens")
    if prompt is None or (count is not None and count != len(prompt) * asked.prompts):
        return None  # the server ran another prompt, which other requirements judge
    length = len(prompt) + asked.max_new_tokens
    fits = model.longest is None or length <= model.longest
    return truth(model.law, model.words, prompt, asked) if fits else None


def _as_free(asked: Asked) -> Asked | None:
    """Return the request without its tools.

    None if anything except the budget influences or ends its answer.
    """
    stops = asked.stop or asked.stop_token_ids or asked.stop_regex or asked.min_new_tokens or asked.echo
    free = asked.tools is None or (asked.tools.demand == "auto" and not asked.tools.strict)
    if not asked.greedy or stops or not free or asked.constraints or not asked.skip_special_tokens:
        return None
    other: Mapping[str, object] = json.loads(asked.other_sampling or "{}")
    return replace(asked, other_sampling="", constrained=False) if other.keys() <= _LEAVE_TOKENS else None
