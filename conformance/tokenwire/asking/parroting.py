"""Recognition of a parrot, the test model with predictable output.

The short answers of the preflight exclude most targets. One long request confirms a parrot.
"""

from __future__ import annotations

from functools import cache
from itertools import islice

from tokenwire.ask import Ask
from tokenwire.asking.preflight import SCENARIO, Preflight
from tokenwire.asking.scenario import NotAsked, Sender, text_of, token_ids
from tokenwire.dialects.dialect import Dialect, Unsupported
from tokenwire.parrot.encoding import Encode, chat_text
from tokenwire.parrot.recognition import recognised
from tokenwire.parrot.speaker import Ids, Speaker
from tokenwire.parrot.vocabulary import LESSON, MARKERS, Vocabulary, words_of
from tokenwire.record import Stream
from tokenwire.target.tokenizer import LocalTokenizer, Tokenizer
from tokenwire.wire.exchange import exchange_name

_ANSWER_TOKENS = 24
_LONG, _SHORT = 1060, 320
"""Number of ids in the long request. The short one is for targets with a small context."""
_LAGS = (1024, 512, 256, 128)
"""Distances at which a parrot repeats its prompt. The long request recognizes any of them."""
_LETTERS = range(605, 613)
"""Ids that are letters in most vocabularies. Each distance has its own letters, which identify it."""
_WORDS = 170
"""Length of the request for an endpoint that takes text only, in words."""


async def find_parrot(found: Preflight, sender: Sender, tokenizer: Tokenizer | None = None) -> Speaker | None:
    """Return a speaker that writes prompts for the parrot; None if the target is not a parrot.

    Most targets get no request. A parrot repeats the last id of a short prompt forever, so any other answer
    excludes it. Answers to chat messages do not exclude it, because the chat template adds ids around the
    text.
    """
    by_use = sorted(
        found.speaks, key=lambda dialect: (not (dialect.takes_ids and dialect.tells_ids), dialect.chat)
    )
    first = [found.first_words[dialect.name] for dialect in by_use]
    plain = [answer for answer in first if answer.asked.input_ids is not None or answer.asked.texts]
    if not by_use or (plain and not any(map(_repeats_itself, plain))):
        return None
    dialect = by_use[0]
    context = found.advertised.context_length
    request = dialect.render(_probe(dialect, short=context is not None and context < 2 * _LONG), found.model)
    if isinstance(request, Unsupported):
        return None
    try:
        exchange = await sender.send(exchange_name(SCENARIO, f"{dialect.name}-script"), SCENARIO, request)
    except NotAsked:  # the limit that forbids this request forbids all later requests as well
        return None
    answer = dialect.read(exchange, delivery_hint=found.advertised.delivery)
    model = recognised([answer], tokenizer.known if isinstance(tokenizer, LocalTokenizer) else None)
    if model is None:
        return None
    templated = model.ours and _is_templated(found, model.encode)
    return Speaker(model.law, model.words, model.encode, templated)


def _repeats_itself(first: Stream) -> bool:
    """True if the answer to a short prompt repeats one token or text."""
    if ids := token_ids(first):
        return len(set(ids)) == 1
    text = text_of(first)
    units = (text[:size] for size in range(1, len(text) // 2 + 1))
    return any(text == unit * (len(text) // len(unit)) for unit in units)


def _probe(dialect: Dialect, *, short: bool) -> Ask:
    if dialect.takes_ids:
        ids = _probe_ids(_SHORT if short else _LONG)
        return Ask(
            input_ids=(ids,), max_new_tokens=_ANSWER_TOKENS, ignore_eos=True, return_token_ids=dialect.chat
        )
    words = LESSON.split()[:_WORDS]
    text = " ".join(word if place % 5 else f"{word} {MARKERS[1]}" for place, word in enumerate(words))
    if dialect.chat:
        return Ask(messages=({"role": "user", "content": text},), max_new_tokens=_ANSWER_TOKENS)
    return Ask(text=(text,), max_new_tokens=_ANSWER_TOKENS)


@cache
def _probe_ids(length: int) -> Ids:
    """Return ids that are whole characters in any vocabulary.

    At each distance at which a parrot may repeat the prompt, a different sequence begins.
    """
    kinds = [words_of(kind) for kind in Vocabulary]
    plain = [
        token
        for token in range(8, min(len(words.pieces) for words in kinds))
        if all(
            token not in words.special and "\ufffd" not in words.pieces[token].decode("utf-8", "replace")
            for words in kinds
        )
    ]
    words = iter([token for token in plain if token < min(_LETTERS)][1:])
    letters = iter(_LETTERS)
    ids = [plain[0]] * length
    for lag in _LAGS:
        if lag < length:
            begin = length - lag
            script = [next(letters), next(letters), *islice(words, _ANSWER_TOKENS - 2)]
            ids[begin : begin + _ANSWER_TOKENS] = script
    return tuple(ids)


def _is_templated(found: Preflight, encode: Encode) -> bool:
    """True if the token count of a message shows that the server used the parrot's own chat template.

    True also if the server does not report token counts.
    """
    for dialect in found.speaks:
        first = found.first_words[dialect.name]
        text = chat_text((first.exchange.request.body or {}).get("messages"))
        if dialect.chat and text is not None and first.usage is not None:
            return first.usage.get("prompt_tokens") in (None, len(encode(text)))
    return True
