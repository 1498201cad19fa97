"""Stops: strings and ids that end a choice, made from what the target answered before."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.record import Choice, Delivery
from tokenwire.scenario import PROMPT, Conversation, only_choice, scenario, text_of, token_ids

NEVER = "\u241e\u241e"
"""A string that no model is likely to write: two pictures of the record separator."""


def _pieces(choice: Choice) -> list[str]:
    """The text that each emission added."""
    texts = [emission.text for emission in choice.emissions if isinstance(emission.text, str)]
    if choice.delivery is Delivery.INCREMENTAL:
        return texts
    return [text[len(before) :] for before, text in zip(["", *texts], texts, strict=False)]


def stop_across_tokens(choice: Choice | None) -> str | None:
    """A string that the choice contains, that begins in one token's text and ends in another's.

    The first border from a third of the text on where both sides are plain; None where there is none. The
    string occurs nowhere before that border, so that a stop there is the first.
    """
    if choice is None:
        return None
    pieces = _pieces(choice)
    text = "".join(pieces)
    border = 0
    for piece in pieces[:-1]:
        border += len(piece)
        if border < len(text) // 3:
            continue
        stop = text[max(0, border - 2) : border + 2]
        if len(stop) == 4 and stop.isprintable() and "\ufffd" not in stop and text.find(stop) == border - 2:
            return stop
    return None


@scenario(chat=False)
async def stop_string(talk: Conversation) -> None:
    """A stop string that begins in one token and ends in another: what began like it is held back and never
    shown.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=talk.fitting(48), ignore_eos=True)
    streamed = replace(ask, stream=True, stream_interval=1)
    stop = stop_across_tokens(only_choice(await talk.ask("unstopped", streamed)))
    if stop is None:
        return
    stopped = {"whole": ask, "whole-again": ask, "stream": replace(ask, stream=True)}
    stopped |= {f"interval-{k}": replace(streamed, stream_interval=k) for k in (1, 4)}
    stopped |= {
        "kept-whole": replace(ask, no_stop_trim=True),
        "kept-stream": replace(streamed, no_stop_trim=True),
    }
    await talk.ask_all({label: replace(each, stop=(stop,)) for label, each in stopped.items()})


@scenario(chat=False)
async def unmatched_stop(talk: Conversation) -> None:
    """Stop strings that never match, one of which the output begins like: held-back text must come in the
    end.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=talk.fitting(48), ignore_eos=True)
    text = text_of(await talk.ask("unstopped", ask))
    middle = text[len(text) // 2 :][:3]
    stops = {"never": (NEVER,)}
    if middle.isprintable() and middle and "\ufffd" not in middle:
        stops["begun"] = (middle + NEVER,)
    for label, stop in stops.items():
        stopped = replace(ask, stop=stop)
        streamed = replace(stopped, stream=True)
        await talk.ask_all(
            {
                f"{label}-whole": stopped,
                f"{label}-stream": streamed,
                f"{label}-interval-1": replace(streamed, stream_interval=1),
            }
        )


@scenario(chat=False)
async def stop_ids(talk: Conversation) -> None:
    """An id from the middle of a known answer is made a stop id: it ends the choice and stays among the
    ids.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=talk.fitting(24))
    ids = token_ids(await talk.ask("unstopped", ask))
    stop = next((token for position, token in enumerate(ids[2:], 2) if token not in ids[:position]), None)
    if stop is None:
        return
    stopped = replace(ask, stop_token_ids=(stop,))
    await talk.ask_all(
        {
            "whole": stopped,
            "stream": replace(stopped, stream=True),
            "interval-3": replace(stopped, stream=True, stream_interval=3, logprobs=True),
        }
    )
