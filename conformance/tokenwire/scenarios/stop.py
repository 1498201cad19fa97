"""Stops: strings and ids that end a choice, made from what the target answered before."""

import re
from dataclasses import replace
from itertools import accumulate

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, only_choice, scenario, text_of, token_ids
from tokenwire.record import Choice, Delivery
from tokenwire.scenarios.plain_ask import has_words, plain_ask

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


def stop_inside_a_token(choice: Choice | None) -> str | None:
    """A string from within one token's text, with more of it on both sides, that occurs nowhere before.

    None where no emission of the first half has four plain characters.
    """
    if choice is None:
        return None
    pieces = _pieces(choice)
    text, at = "".join(pieces), 0
    for piece in pieces:
        stop = piece[1:-1]
        if 2 * at > len(text):
            return None
        if len(stop) >= 2 and piece.isprintable() and "\ufffd" not in piece and text.find(stop) == at + 1:
            return stop
        at += len(piece)
    return None


def first_token_text(choice: Choice | None) -> str | None:
    """The text of the first token, where it is plain."""
    piece = next(iter(_pieces(choice)), "") if choice is not None else ""
    return piece if piece.strip() and piece.isprintable() and "\ufffd" not in piece else None


async def _unstopped(talk: Conversation, ask: Ask) -> Choice | None:
    """The answer without stops, token by token, and the whole one that others are compared with."""
    streamed = replace(ask, stream=True)
    await talk.ask("unstopped-whole", ask)
    seen = await talk.ask("unstopped", replace(streamed, stream_interval=1))
    return only_choice(seen or await talk.ask("unstopped-stream", streamed))


@scenario(chat=False)
async def stop_places(talk: Conversation) -> None:
    """Stop strings within a token and in the first one, two of which one matches, and a pattern: each ends
    the choice at its token.
    """
    ask = Ask(input_ids=(PROMPT,), max_new_tokens=talk.fitting(48), ignore_eos=True)
    choice = await _unstopped(talk, ask)
    across = stop_across_tokens(choice)
    stopped: dict[str, Ask] = {}
    if inside := stop_inside_a_token(choice):
        stopped["inside"] = replace(ask, stop=(inside,))
        stopped["inside-kept"] = replace(ask, stop=(inside,), no_stop_trim=True)
    if first := first_token_text(choice):
        stopped["first"] = replace(ask, stop=(first,), logprobs=True)
    if across:
        stopped["second-of-two"] = replace(ask, stop=(NEVER, across))
        stopped["pattern"] = replace(ask, stop_regex=(re.escape(across[:2]) + "." + re.escape(across[3:]),))
    both = {f"{label}-whole": each for label, each in stopped.items()}
    both |= {f"{label}-stream": replace(each, stream=True) for label, each in stopped.items()}
    await talk.ask_all(both)


_SWEPT = 5


@scenario(chat=False, budget=Budget.STANDARD)
async def stops_in_long_steps(talk: Conversation) -> None:
    """A repetitive prompt, of which a server that drafts accepts several tokens in a step, and a stop string
    and a stop id at each of some neighbouring places: they cut what a single step gave.
    """
    prompt = PROMPT[:4] * 6
    ask = Ask(input_ids=(prompt,), max_new_tokens=talk.fitting(40, len(prompt)), ignore_eos=True)
    choice = await _unstopped(talk, ask)
    pieces = _pieces(choice) if choice is not None else []
    text = "".join(pieces)
    stopped: dict[str, Ask] = {}
    at = 0
    for number, piece in enumerate(pieces):
        stop = text[at : at + 3]
        at += len(piece)
        if (
            len(stop) == 3
            and stop.isprintable()
            and "\ufffd" not in stop
            and text.find(stop) == at - len(piece)
        ):
            stopped[f"string-{number}"] = replace(ask, stop=(stop,), logprobs=True)
    ids = [token for token in choice.output_ids or () if type(token) is int] if choice is not None else []
    for position, token in enumerate(ids):
        if token not in ids[:position]:
            stopped[f"id-{position}"] = replace(ask, stop_token_ids=(token,), ignore_eos=False, logprobs=True)
    strings = [label for label in stopped if label.startswith("string")][:_SWEPT]
    tokens = [label for label in stopped if label.startswith("id")][1 : 1 + _SWEPT]
    await talk.ask_all({label: stopped[label] for label in strings + tokens})


_PARTS = (50, 100)
"""After so many tokens servers pass on what they hold back for a whole answer (SGLang: every 50)."""
_SPANS = ((10, 16), (18, 26), (28, 32))
"""Stops of several tokens: the text of these, which a tokenizer may write in fewer."""


def characters_by_tokens(choice: Choice) -> dict[int, int]:
    """How many characters a choice had with so many ids, for each number of ids that an emission ended at."""
    sizes = [len(emission.output_ids or ()) for emission in choice.emissions]
    counts = list(accumulate(sizes)) if choice.delivery is Delivery.INCREMENTAL else sizes
    return dict(zip(counts, accumulate(map(len, _pieces(choice))), strict=False))


def _first_of(text: str, start: int, end: int) -> str | None:
    """A part of a text, where it is plain and occurs nowhere before."""
    stop = text[start:end]
    plain = len(stop) > 1 and stop.isprintable() and "\ufffd" not in stop
    return stop if plain and text.find(stop) == start else None


@scenario(chat=False, budget=Budget.STANDARD)
async def stops_between_parts(talk: Conversation) -> None:
    """Stop strings that begin with the last token of one part of an answer and end with the first of the
    next, where servers pass on output in parts; and the text of several tokens in a row, which has other ids
    when a tokenizer writes it. Whole and streamed.
    """
    for turn, prompt in enumerate((PROMPT, PROMPT[::-1])):
        ask = Ask(input_ids=(prompt,), max_new_tokens=talk.fitting(220, len(prompt)), ignore_eos=True)
        streamed = replace(ask, stream=True, stream_interval=1)
        choice = only_choice(await talk.ask(f"unstopped-{turn}", streamed))
        if choice is None:
            continue
        await talk.ask(f"unstopped-{turn}-whole", ask)
        text, at = "".join(_pieces(choice)), characters_by_tokens(choice)
        places = {f"after-{part}": (max(0, at[part] - 2), at[part] + 1) for part in _PARTS if part in at}
        spans = ((start, end) for start, end in _SPANS if start in at and end in at)
        places |= {f"tokens-{start}": (at[start], at[end]) for start, end in spans}
        found = {label: _first_of(text, *place) for label, place in places.items()}
        stopped = {f"{label}-{turn}": replace(ask, stop=(stop,)) for label, stop in found.items() if stop}
        await talk.ask_all(
            stopped | {f"{label}-stream": replace(each, stream=True) for label, each in stopped.items()}
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


def _legible(text: str) -> str:
    """The first one or two characters that are whole and no space: bytes that are no character may be shown
    late, or not at all.
    """
    found = re.search(r"[^\s\ufffd]{1,2}", text)
    return found[0] if found else ""


@scenario()
async def stops_with_logprobs(talk: Conversation) -> None:
    """A stop string from a known answer and logprobs: each alone, then both, kept and streamed, too."""
    ask = replace(plain_ask(talk), max_new_tokens=talk.fitting(16))
    scored = replace(ask, logprobs=True)
    if not has_words(talk, scored):
        return
    text = text_of(await talk.ask("logprobs", scored))
    stop = _legible(text[len(text) // 3 :]) or _legible(text) or NEVER
    together = replace(scored, stop=(stop,))
    asks = {
        "stop": replace(ask, stop=(stop,)),
        "both": together,
        "kept": replace(together, no_stop_trim=True),
    }
    asks["stream"] = replace(together, stream=True)
    await talk.ask_all({label: one for label, one in asks.items() if has_words(talk, one)})
