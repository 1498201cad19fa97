"""Scenarios for ids that are not complete characters, prompts that end within one, and special tokens."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, only_choice, scenario, text_of, token_ids
from tokenwire.record import Choice, Stream
from tokenwire.scenarios.forms import forms

_PROMPTS = (PROMPT, (240, 159, 152, 10), (97, 98, 99, 100, 101, 102, 103))
"""Small ids that are valid in nearly every vocabulary.

In many vocabularies they are bytes that are not characters.
"""
_LIKELY_SPECIAL = (0, 1, 2)
"""Ids that are special tokens in many vocabularies."""


def ends_within_a_character(choice: Choice | None) -> int | None:
    """Return a number of ids after which the text may end within a character: after the first id without new
    text. This id may also be a special token. The answer to the next request shows if the text ends within a
    character.
    """
    if choice is None:
        return None
    count = shown = 0
    for emission in choice.emissions[:-1]:
        ids, text = emission.output_ids, emission.text
        if not isinstance(ids, list) or not isinstance(text, str):
            return None
        incremental = choice.delivery == "incremental"
        new_ids = len(ids) if incremental else len(ids) - count
        new_text = len(text) if incremental else len(text) - shown
        count, shown = count + new_ids, shown + new_text
        if new_ids == 1 and new_text == 0:
            return count
    return None


@scenario(chat=False, at_most=len(_PROMPTS) + 7)
async def _broken_characters(talk: Conversation) -> None:
    """Requests whose token limit or prompt ends within a character.

    The incomplete text of the answer arrives at the end. The incomplete text of the prompt does not arrive.
    """
    for number, prompt in enumerate(_PROMPTS):
        ask = Ask(input_ids=(prompt,), max_new_tokens=48, ignore_eos=True)
        streamed = replace(ask, stream=True)
        seen = await talk.ask(f"seen-{number}", replace(streamed, stream_interval=1))
        seen = seen or await talk.ask(f"seen-{number}-again", streamed)
        count = ends_within_a_character(only_choice(seen))
        if count is None:
            continue
        ids = token_ids(seen)
        asks = forms(replace(ask, max_new_tokens=count), "ends")
        broken_prompt = prompt + ids[:count]
        begins = Ask(input_ids=(broken_prompt,), max_new_tokens=8, ignore_eos=True)
        asks |= forms(begins, "begins")
        if shown := text_of(seen)[:1].strip("\ufffd"):
            # If a server includes the end of the prompt in the text, it may find the stop there.
            stopped = replace(begins, stop=(shown,), max_new_tokens=16)
            otherwise = (*broken_prompt[:-1], *ids[:1], ids[count - 1])
            asks |= forms(replace(stopped, input_ids=(otherwise,)), "begins-stop")
        asks["ends-interval"] = replace(streamed, max_new_tokens=count, stream_interval=3)
        await talk.ask_all(asks)
        return


@scenario(chat=False)
async def _special_tokens(talk: Conversation) -> None:
    """Ids that are probably special tokens, forced by a bias, with and without the flag that shows them."""
    natural = await talk.ask("natural", Ask(input_ids=(PROMPT,), max_new_tokens=8))
    candidates = dict.fromkeys([*_LIKELY_SPECIAL, *_ending(natural)])
    for token in candidates:
        ask = Ask(input_ids=(PROMPT,), max_new_tokens=3, ignore_eos=True, logit_bias={token: 100.0})
        shown = replace(ask, skip_special_tokens=False)
        apart = {f"apart-{token}": replace(shown, spaces_between_special_tokens=False)}
        await talk.ask_all(forms(ask, f"hidden-{token}") | forms(shown, f"shown-{token}") | apart)


def _ending(stream: Stream | None) -> tuple[int, ...]:
    """Return the stop id that ended an answer, if its finish reason contains it."""
    choice = only_choice(stream)
    matched = choice.finish.matched if choice is not None and choice.finish is not None else None
    return (matched,) if type(matched) is int else ()
