"""What becomes of the prompt: token-in-token-out."""

import base64
import random
from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Conversation, only_choice, scenario

_NEVER_MERGED = (97, 97, 97, 97, 220, 220, 98, 98, 98, 98)
"""Repeats that a byte-pair tokenizer would join: no text yields these ids."""

_RANDOM = tuple(random.Random(23751).randint(10, 250) for _ in range(40))


@scenario(chat=False)
async def prompt_ids(talk: Conversation) -> None:
    """Ids that no text yields come back as prompt_token_ids exactly as sent, also where nothing is generated;
    and only where they are asked for.
    """
    for label, ids in (
        ("plain", PROMPT),
        ("never-merged", _NEVER_MERGED),
        ("random", _RANDOM),
        ("one", PROMPT[:1]),
    ):
        ask = Ask(input_ids=(ids,), max_new_tokens=6, ignore_eos=True, return_prompt_token_ids=True)
        await talk.ask_all(
            {
                f"{label}-whole": ask,
                f"{label}-stream": replace(ask, stream=True),
                f"{label}-not-asked": replace(ask, return_prompt_token_ids=False),
            }
        )
    await talk.ask("no-output", Ask(input_ids=(PROMPT,), max_new_tokens=0, return_prompt_token_ids=True))


@scenario()
async def text_prompt(talk: Conversation) -> None:
    """A text or a message, then the prompt_token_ids that it yielded, sent back as input_ids: the output
    must be the same. And another text, of which only what stands before every text is the same.
    """
    words = "Tell me about the sea."
    ask = Ask(
        text=() if talk.chat else (words,),
        messages=({"role": "user", "content": words},) if talk.chat else (),
        max_new_tokens=16,
        ignore_eos=True,
        return_prompt_token_ids=True,
        return_token_ids=talk.chat,
    )
    choice = only_choice(await talk.ask("text", ask))
    # Another text, so that what stands before every text can be told from what one begins with.
    other = "Rivers run down to it."
    await talk.ask(
        "other-text",
        replace(ask, text=(other,))
        if ask.text
        else replace(ask, messages=({"role": "user", "content": other},)),
    )
    ids = next((e.prompt_token_ids for e in choice.emissions if e.prompt_token_ids), None) if choice else None
    if ids and all(type(token) is int for token in ids):
        await talk.ask("its-ids", replace(ask, text=(), messages=(), input_ids=(tuple(ids),)))


@scenario(chat=False)
async def text_beside_ids(talk: Conversation) -> None:
    """A text and ids in one request: the ids are the prompt, or the request is refused."""
    ask = Ask(
        input_ids=(PROMPT,), text=("Hello",), max_new_tokens=6, ignore_eos=True, return_prompt_token_ids=True
    )
    await talk.ask("whole", ask)


_IMAGE = base64.b64encode(b"the bytes of an image").decode()
"""Not a picture: a server that looks at pixels refuses it, and is not judged."""


@scenario(chat=False)
async def media(talk: Conversation) -> None:
    """A text with an image, then the prompt_token_ids that it yielded, sent back as input_ids beside the same
    image: they are the prompt, or are refused. Several samples see the image, too.
    """
    if talk.dialect.media is None:
        return
    (field,) = talk.dialect.media
    ask = Ask(text=("What is this?",), max_new_tokens=8, ignore_eos=True, return_prompt_token_ids=True)
    seeing = replace(ask, raw={field: _IMAGE})
    answers = await talk.ask_all(
        {"text-alone": ask, "text": seeing, "samples": replace(seeing, n=2, temperature=1.0)}
    )
    choice = only_choice(answers.get("text"))
    ids = next((e.prompt_token_ids for e in choice.emissions if e.prompt_token_ids), None) if choice else None
    if ids and all(type(token) is int for token in ids):
        back = replace(seeing, text=(), input_ids=(tuple(ids),))
        scored = replace(back, logprobs=True, logprob_start=2)
        await talk.ask_all({"its-ids": back, "its-ids-scored": scored})
