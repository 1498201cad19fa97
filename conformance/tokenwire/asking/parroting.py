"""Whether a target is a parrot: its first words may show that it is none, and one request makes sure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from operator import eq

from tokenwire.ask import Ask
from tokenwire.asking.preflight import SCENARIO, Preflight
from tokenwire.asking.scenario import Sender, text_of, token_ids
from tokenwire.dialects.dialect import Dialect, Unsupported
from tokenwire.judging.tokenizer import LocalTokenizer, Tokenizer
from tokenwire.parrot.encoding import encoder
from tokenwire.parrot.law import Parrot
from tokenwire.parrot.script import truth
from tokenwire.parrot.speaker import MESSAGE_BEGINS, MESSAGE_ENDS, Ids, Speaker
from tokenwire.parrot.vocabulary import LESSON, Vocabulary, words_in, words_of
from tokenwire.record import Asked, Stream

_DISTANCES = (1024, 512, 256)
"""Parrots of other distances say what one of these says, as far as scripts and their prompts reach."""
_PROBE_IDS = tuple(4 + 37 * place % 760 for place in range(1060))
"""Ids that end no text: words in some of our vocabularies, and bytes in others."""
_LONG_CONTEXT = 1200
"""A target with less is asked less; the distance of its parrot is then taken for a smaller one."""
_SHORT_PROBE = 320
_SHORT_LESSON = 900
_SAID = 24


async def find_parrot(found: Preflight, sender: Sender, tokenizer: Tokenizer | None = None) -> Speaker | None:
    """How to tell the target what to say; None where it is no parrot.

    Most targets are not asked anything: a parrot says the last id of a short prompt again and again.
    """
    by_use = sorted(found.speaks, key=lambda one: (not (one.takes_ids and one.tells_ids), one.chat))
    told = [one for one in by_use if one.takes_ids or not one.chat]
    if not by_use or (told and not any(_repeats_itself(found.first_words[one.name]) for one in told)):
        return None
    dialect = by_use[0]
    request = dialect.render(_probe(dialect, found.advertised.context_length or _LONG_CONTEXT), found.model)
    if isinstance(request, Unsupported):
        return None
    exchange = await sender.send(f"{SCENARIO}/{dialect.name}-script", SCENARIO, request)
    answer = dialect.read(exchange, delivery_hint=found.advertised.delivery)
    speaker = _recognised(dialect, answer, tokenizer)
    return replace(speaker, templated=_is_templated(found, speaker)) if speaker is not None else None


def _repeats_itself(first: Stream) -> bool:
    """Whether an answer to a short prompt is one thing, again and again."""
    if ids := token_ids(first):
        return len(set(ids)) == 1
    text = text_of(first)
    units = (text[:size] for size in range(1, len(text) // 2 + 1))
    return any(text == unit * (len(text) // len(unit)) for unit in units)


def _probe(dialect: Dialect, context: int) -> Ask:
    short = context < _LONG_CONTEXT
    asked = Ask(max_new_tokens=_SAID, ignore_eos=dialect.takes_ids)
    if dialect.takes_ids:
        ids = _PROBE_IDS[-_SHORT_PROBE:] if short else _PROBE_IDS
        return replace(asked, input_ids=(ids,), return_token_ids=dialect.chat)
    text = LESSON[:_SHORT_LESSON] if short else LESSON
    if dialect.chat:
        return replace(asked, messages=({"role": "user", "content": text},))
    return replace(asked, text=(text,))


def _speakers(tokenizer: Tokenizer | None) -> Iterator[Speaker]:
    """The kinds of parrots: with a local tokenizer where there is one, and with our own vocabularies."""
    if isinstance(tokenizer, LocalTokenizer) and tokenizer.end is not None:
        document = tokenizer.document
        words, fallback = (
            words_in(document, frozenset({tokenizer.end})),
            document["model"].get("byte_fallback"),
        )
        if words is not None:
            for distance in _DISTANCES:
                yield Speaker(Parrot(tokenizer.size, distance), words, tokenizer.encode, bool(fallback))
    for kind in Vocabulary:
        words = words_of(kind)
        for distance in _DISTANCES:
            law = Parrot(len(words.pieces), distance)
            yield Speaker(law, words, encoder(kind), kind is Vocabulary.SENTENCEPIECE)


def _recognised(dialect: Dialect, answer: Stream, tokenizer: Tokenizer | None) -> Speaker | None:
    """The parrot that says what most of an answer says; None where none does, or a half of it is another."""
    best, most = None, 0.5
    for speaker in _speakers(tokenizer):
        right = truth(speaker.law, speaker.words, _prompt_of(dialect, answer, speaker), _ALL)
        if right is None:
            continue
        ids, text = token_ids(answer), text_of(answer)
        if ids and ids != right.ids[: len(ids)]:
            continue
        same = sum(takewhile(bool, map(eq, text, right.text)))
        # Without text, one vocabulary is as good as another.
        share = same / max(len(right.text), 1) if text or not ids else 0.75
        if share > most:
            best, most = speaker, share
    return best


_ALL = Asked(greedy=True, max_new_tokens=_SAID, ignore_eos=True)


def _prompt_of(dialect: Dialect, answer: Stream, speaker: Speaker) -> Ids:
    if answer.asked.input_ids:
        return answer.asked.input_ids[0]
    if not dialect.chat:
        return speaker.encode(answer.asked.texts[0])
    (message,) = answer.exchange.request.body["messages"]
    return speaker.encode(f"{MESSAGE_BEGINS}{message['content']}{MESSAGE_ENDS}")


def _is_templated(found: Preflight, speaker: Speaker) -> bool:
    """Whether a message has as many ids with its template as a parrot's template makes of it, as far as the
    target counts them.
    """
    for dialect in found.speaks:
        first = found.first_words[dialect.name]
        messages = (first.exchange.request.body or {}).get("messages")
        if dialect.chat and messages and first.usage is not None:
            expected = len(speaker.encode(f"{MESSAGE_BEGINS}{messages[0]['content']}{MESSAGE_ENDS}"))
            return first.usage.get("prompt_tokens") in (None, expected)
    return True
