"""Scenarios for prompts as ids, and for the ids that a server makes of a prompt."""

import base64
import random
from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, Steps, only_choice, scenario
from tokenwire.record import Stream
from tokenwire.scenarios.forms import forms, worded

_NEVER_MERGED = (97, 97, 97, 97, 220, 220, 98, 98, 98, 98)
"""Repeated ids that a byte-pair tokenizer would merge, so no text is tokenized to these ids."""

_RANDOM = tuple(random.Random(23751).randint(10, 250) for _ in range(40))


_PROMPTS = {"plain": PROMPT, "never-merged": _NEVER_MERGED, "random": _RANDOM, "one": PROMPT[:1]}


@scenario(chat=False)
def _prompt_ids(_: Conversation) -> Steps:
    """Prompts of ids that no text is tokenized to.

    The ids come back as prompt_token_ids exactly as sent, even if nothing is generated, and only if they are
    requested.
    """
    for label, ids in _PROMPTS.items():
        plain = Ask(input_ids=(ids,), max_new_tokens=6, ignore_eos=True)
        ask = replace(plain, return_prompt_token_ids=True)
        yield forms(ask, label) | {f"{label}-not-asked": plain}
    yield {"no-output": Ask(input_ids=(PROMPT,), max_new_tokens=0, return_prompt_token_ids=True)}


def _ids_of_prompt(stream: Stream | None) -> tuple[int, ...]:
    """Return the ids that the server reports for a prompt; empty if it does not report them."""
    choice = only_choice(stream)
    ids = next((e.prompt_token_ids for e in choice.emissions if e.prompt_token_ids), ()) if choice else ()
    return tuple(ids) if all(type(token) is int for token in ids) else ()


@scenario()
async def _text_prompt(talk: Conversation) -> None:
    """A text or a message, whose prompt_token_ids are then sent as input_ids.

    The output must be the same. The first ids that every prompt has, such as a BOS token, are found by a
    second text.
    """
    ask = Ask(max_new_tokens=16, ignore_eos=True, return_prompt_token_ids=True, return_token_ids=talk.chat)

    def asking(prompt: Ask) -> Ask:
        return replace(ask, input_ids=prompt.input_ids, text=prompt.text, messages=prompt.messages)

    ids = _ids_of_prompt(await talk.ask("text", asking(worded(talk, "Tell me about the sea."))))
    # The ids with which both prompts begin, such as a BOS token, precede every text.
    await talk.ask("other-text", asking(worded(talk, "Rivers run down to it.")))
    if ids:
        await talk.ask("its-ids", asking(Ask(input_ids=(ids,))))


@scenario(chat=False)
def _text_beside_ids(_: Conversation) -> Steps:
    """A text and ids in the same request. Either the ids are the prompt, or the request is refused."""
    ask = Ask(input_ids=(PROMPT,), text=("Hello",), max_new_tokens=6, ignore_eos=True)
    yield {"whole": replace(ask, return_prompt_token_ids=True)}


_IMAGE = base64.b64encode(b"the bytes of an image").decode()
"""Not a valid image. A server that decodes images refuses it, and is not judged."""


@scenario(chat=False)
async def _media(talk: Conversation) -> None:
    """A text with an image, whose prompt_token_ids are then sent as input_ids with the same image.

    The server must use the ids as the prompt, or refuse the request. Also several samples with the image.
    """
    if not talk.dialect.request.media:
        return
    ((field,), *_) = talk.dialect.request.media
    ask = Ask(text=("What is this?",), max_new_tokens=8, ignore_eos=True, return_prompt_token_ids=True)
    seeing = replace(ask, raw={field: _IMAGE})
    answers = await talk.ask_all(
        {"text-alone": ask, "text": seeing, "samples": replace(seeing, n=2, temperature=1.0)}
    )
    ids = _ids_of_prompt(answers.get("text"))
    if ids:
        back = replace(seeing, text=(), input_ids=(ids,))
        scored = replace(back, logprobs=True, logprob_start=2)
        await talk.ask_all({"its-ids": back, "its-ids-scored": scored})
