"""Scenarios for stop strings and stop ids that are taken from an earlier answer of the target."""

import re
from dataclasses import replace
from itertools import accumulate

from tokenwire.ask import Ask, Budget
from tokenwire.asking.scenario import PROMPT, Conversation, only_choice, scenario, text_of, token_ids
from tokenwire.record import Choice, Delivery
from tokenwire.scenarios.forms import forms, plain_ask

_ASK = Ask(input_ids=(PROMPT,), max_new_tokens=48, ignore_eos=True)
NEVER = "\u241e\u241e"
"""A stop string that a model is unlikely to write: two visible symbols for the record separator."""


def _pieces(choice: Choice | None) -> list[str]:
    """Return the text that each emission has added."""
    if choice is None:
        return []
    texts = [emission.text for emission in choice.emissions if isinstance(emission.text, str)]
    if choice.delivery is Delivery.INCREMENTAL:
        return texts
    return [text[len(before) :] for before, text in zip(["", *texts], texts, strict=False)]


def is_plain(text: str) -> bool:
    """True if each character of a text can be sent in a request and shown in an answer."""
    return text.isprintable() and "\ufffd" not in text


def _first_of(text: str, start: int, end: int) -> str | None:
    """Return a part of a text, if its characters are plain and it does not occur earlier; None otherwise."""
    stop = text[start:end]
    return stop if len(stop) > 1 and is_plain(stop) and text.find(stop) == start else None


def stop_across_tokens(choice: Choice | None) -> str | None:
    """Return a string that begins in one token of the choice and ends in another.

    The string must have plain characters and not occur earlier, so that it is the first match of a stop.
    The first such place in the last two thirds of the text is chosen. A text that repeats has none there;
    then the last place before is chosen. Return None if there is no such place.
    """
    pieces = _pieces(choice)
    text = "".join(pieces)
    borders = accumulate(map(len, pieces[:-1]))
    stops = ((border, _first_of(text, max(0, border - 2), border + 2)) for border in borders)
    found = [(border, stop) for border, stop in stops if stop is not None and len(stop) == 4]
    early = [stop for border, stop in found if 3 * border < len(text)]
    late = [stop for border, stop in found if 3 * border >= len(text)]
    return next(iter(late or reversed(early)), None)


@scenario(chat=False)
async def _stop_string(talk: Conversation) -> None:
    """A stop string that begins in one token and ends in another.

    Text that may be the beginning of the stop string is held back. The stop string is never sent.
    """
    streamed = replace(_ASK, stream=True, stream_interval=1)
    stop = stop_across_tokens(only_choice(await talk.ask("unstopped", streamed)))
    if stop is None:
        return
    asks = forms(replace(_ASK, stop=(stop,)), again=True, intervals=(1, 4))
    kept = {
        f"kept-{form}": replace(asks[model], no_stop_trim=True)
        for form, model in (("whole", "whole"), ("stream", "interval-1"))
    }
    await talk.ask_all(asks | kept)


@scenario(chat=False)
async def _unmatched_stop(talk: Conversation) -> None:
    """Stop strings that never match.

    The output contains the beginning of one of these stop strings, so this beginning is held back. The text
    that was held back must arrive in the end.
    """
    text = text_of(await talk.ask("unstopped", _ASK))
    await talk.ask("unstopped-stream", replace(_ASK, stream=True))
    middle = text[len(text) // 2 :][:3]
    stops = {"never": NEVER}
    if middle and is_plain(middle):
        stops["begun"] = middle + NEVER
    for label, stop in stops.items():
        await talk.ask_all(forms(replace(_ASK, stop=(stop,)), label, intervals=(1,)))


def stop_inside_a_token(choice: Choice | None) -> str | None:
    """Return a string from within the text of one token, which has more text on both sides.

    It must not occur earlier. Return None if no emission in the first half has four plain characters.
    """
    pieces = _pieces(choice)
    text, start = "".join(pieces), 0
    for piece in pieces:
        if 2 * start > len(text):
            return None
        stop = _first_of(text, start + 1, start + len(piece) - 1)
        if stop is not None and is_plain(piece):
            return stop
        start += len(piece)
    return None


def first_token_text(choice: Choice | None) -> str | None:
    """Return the text of the first token, if its characters are plain; None otherwise."""
    piece = next(iter(_pieces(choice)), "")
    return piece if piece.strip() and is_plain(piece) else None


async def _unstopped(talk: Conversation, ask: Ask) -> Choice | None:
    """Send the request without stops, without streaming and with an event for each token.

    Return the latter's choice.
    """
    streamed = replace(ask, stream=True)
    await talk.ask("unstopped-whole", ask)
    seen = await talk.ask("unstopped", replace(streamed, stream_interval=1))
    return only_choice(seen or await talk.ask("unstopped-stream", streamed))


@scenario(chat=False)
async def _stop_places(talk: Conversation) -> None:
    """Stop strings within a token and in the first token, two stop strings of which one matches, and a stop
    pattern. Each stop ends the choice at the token that completes the stop.
    """
    choice = await _unstopped(talk, _ASK)
    across = stop_across_tokens(choice)
    stopped: dict[str, Ask] = {}
    if inside := stop_inside_a_token(choice):
        stopped["inside"] = replace(_ASK, stop=(inside,))
        stopped["inside-kept"] = replace(_ASK, stop=(inside,), no_stop_trim=True)
    if first := first_token_text(choice):
        stopped["first"] = replace(_ASK, stop=(first,), logprobs=True)
    if across:
        stopped["second-of-two"] = replace(_ASK, stop=(NEVER, across))
        stopped["pattern-literal"] = replace(_ASK, stop_regex=(re.escape(across),))
        stopped["pattern"] = replace(_ASK, stop_regex=(re.escape(across[:2]) + "." + re.escape(across[3:]),))
    both = {f"{label}-whole": ask for label, ask in stopped.items()}
    both |= {f"{label}-stream": replace(ask, stream=True) for label, ask in stopped.items()}
    await talk.ask_all(both)


_SWEPT = 5


@scenario(chat=False, budget=Budget.STANDARD)
async def _stops_in_long_steps(talk: Conversation) -> None:
    """A repetitive prompt, so that a server with speculative decoding accepts several tokens in a step.

    A stop string and a stop id are set at several neighbouring places. The answer must end within the step.
    """
    ask = replace(_ASK, input_ids=(PROMPT[:4] * 6,), max_new_tokens=40)
    choice = await _unstopped(talk, ask)
    pieces = _pieces(choice)
    text, starts = "".join(pieces), accumulate(map(len, pieces), initial=0)
    stops = [_first_of(text, start, start + 3) for start, _ in zip(starts, pieces, strict=False)]
    strings = {
        f"string-{number}": replace(ask, stop=(stop,), logprobs=True)
        for number, stop in enumerate(stops)
        if stop is not None and len(stop) == 3
    }
    ids = [token for token in choice.output_ids or () if type(token) is int] if choice is not None else []
    tokens = {
        f"id-{position}": replace(ask, stop_token_ids=(token,), ignore_eos=False, logprobs=True)
        for position, token in enumerate(ids)
        if token not in ids[:position]
    }
    await talk.ask_all(dict([*strings.items()][:_SWEPT] + [*tokens.items()][1 : 1 + _SWEPT]))


_PARTS = (50, 100)
"""Numbers of tokens after which servers send the output that they collect for a complete answer.

SGLang sends this output after every 50 tokens.
"""
_SPANS = ((10, 16), (18, 26), (28, 32))
"""Ranges of tokens whose text becomes a stop string. A tokenizer may encode this text in fewer tokens."""


def characters_by_tokens(choice: Choice) -> dict[int, int]:
    """Return the number of characters that a choice had after each emission, by the number of ids."""
    sizes = [len(emission.output_ids or ()) for emission in choice.emissions]
    counts = list(accumulate(sizes)) if choice.delivery is Delivery.INCREMENTAL else sizes
    return dict(zip(counts, accumulate(map(len, _pieces(choice))), strict=False))


@scenario(chat=False, budget=Budget.STANDARD)
async def _stops_between_parts(talk: Conversation) -> None:
    """Stop strings that lie across the places where servers divide output: they begin in one part and end in
    the next. Also the text of several tokens in a row, which a
    tokenizer encodes differently. Without and with streaming.
    """
    for turn, prompt in enumerate((PROMPT, PROMPT[::-1])):
        ask = replace(_ASK, input_ids=(prompt,), max_new_tokens=220)
        streamed = replace(ask, stream=True, stream_interval=1)
        choice = only_choice(await talk.ask(f"unstopped-{turn}", streamed))
        if choice is None:
            continue
        await talk.ask(f"unstopped-{turn}-whole", ask)
        text, sizes = "".join(_pieces(choice)), characters_by_tokens(choice)
        places = {
            f"after-{part}": (max(0, sizes[part] - 2), sizes[part] + 1) for part in _PARTS if part in sizes
        }
        spans = ((start, end) for start, end in _SPANS if start in sizes and end in sizes)
        places |= {f"tokens-{start}": (sizes[start], sizes[end]) for start, end in spans}
        found = {label: _first_of(text, *place) for label, place in places.items()}
        stopped = {f"{label}-{turn}": replace(ask, stop=(stop,)) for label, stop in found.items() if stop}
        await talk.ask_all(
            stopped | {f"{label}-stream": replace(ask, stream=True) for label, ask in stopped.items()}
        )


@scenario(chat=False)
async def _stop_ids(talk: Conversation) -> None:
    """A stop id from the middle of a known answer.

    The stop id ends the choice, and stays among the output ids.
    """
    ask = replace(_ASK, max_new_tokens=24, ignore_eos=False)
    ids = token_ids(await talk.ask("unstopped", ask))
    stop = next((token for position, token in enumerate(ids[2:], 2) if token not in ids[:position]), None)
    if stop is not None:
        asks = forms(replace(ask, stop_token_ids=(stop,)), intervals=(3,))
        await talk.ask_all(asks | {"interval-3": replace(asks["interval-3"], logprobs=True)})


def _legible(text: str) -> str:
    """Return the first one or two characters of a text that are complete and not spaces.

    Invalid bytes may be shown late, or not at all.
    """
    found = re.search(r"[^\s\ufffd]{1,2}", text)
    return found[0] if found else ""


@scenario()
async def _stops_with_logprobs(talk: Conversation) -> None:
    """A stop string from a known answer, and logprobs: a request with only the stop string, one with only
    logprobs, and one with both. Both together are also requested with the stop string kept in the text, and
    with streaming.
    """
    ask = replace(plain_ask(talk), max_new_tokens=16)
    scored = replace(ask, logprobs=True)
    if not talk.can_say(scored):
        return
    text = text_of(await talk.ask("logprobs", scored))
    stop = _legible(text[len(text) // 3 :]) or _legible(text) or NEVER
    both = replace(scored, stop=(stop,))
    asks = {
        "stop": replace(ask, stop=(stop,)),
        "both": both,
        "kept": replace(both, no_stop_trim=True),
        "stream": replace(both, stream=True),
    }
    await talk.ask_all({label: ask for label, ask in asks.items() if talk.can_say(ask)})
