"""Scenarios for the prefix cache: prompts of which the server has processed a part before."""

from dataclasses import replace
from typing import Any

from tokenwire.ask import Ask, Budget, in_words
from tokenwire.asking.scenario import Conversation, Steps, scenario
from tokenwire.checks.caches import BEGINNING, SHARING, UNKNOWN
from tokenwire.dialects.control import Action
from tokenwire.dialects.dialect import Unsupported
from tokenwire.scenarios.forms import plain_ask, with_sayable
from tokenwire.target.capability import WEIGHT_UPDATES
from tokenwire.wire.exchange import HttpRequest

_LONGER_THAN_A_PAGE = tuple(10 + (7 * position) % 240 for position in range(150))
"""Longer than the usual page sizes (1 to 128), so that at least one full page is shared."""


@scenario(chat=False)
def _cached_prompt(_: Conversation) -> Steps:
    """A long prompt several times, alternately without and with streaming.

    The cached_tokens of the later answers show the cache. The ids stay the same.
    """
    ask = Ask(input_ids=(_LONGER_THAN_A_PAGE,), max_new_tokens=8, ignore_eos=True)
    for turn in ("first", "second", "third"):
        yield {turn: ask}
        yield {f"{turn}-stream": replace(ask, stream=True)}


_LONGER_THAN_A_CHAT = 320
"""More ids than a chat message of the suite has, so that no chat request can have cached this prompt."""


def _unseen_prompt(talk: Conversation) -> Ask:
    """Return a request with a prompt that nobody has sent before, longer than a page: ids, or a message."""
    if talk.chat:
        return Ask(messages=({"role": "user", "content": _unseen_words(talk)},), max_new_tokens=4)
    return Ask(input_ids=(_unseen_ids(talk, _LONGER_THAN_A_CHAT),), max_new_tokens=4)


def _unseen_ids(talk: Conversation, number: int) -> tuple[int, ...]:
    """Return ids that nobody has sent before."""
    return tuple(talk.draw.randrange(10, 250) for _ in range(number))


def _unseen_words(talk: Conversation) -> str:
    """Return words that nobody has sent before. The words have more tokens than a page."""
    return in_words(Ask(input_ids=(_unseen_ids(talk, 64),))).text[0]


@scenario()
def _cache_keys(talk: Conversation) -> Steps:
    """A new prompt, sent twice with the same salt, if the endpoint has one.

    Then it is sent with another salt, with another cache key, and without salt and cache key. Only the second
    request may use the cache.
    """
    names = [keys[-1] for keys in talk.dialect.request.cache_keys]
    ask = _unseen_prompt(talk)
    if names:
        salted = replace(ask, raw={names[0]: talk.new_id()})
        yield {"first": salted}
        yield {"again": salted}
        yield {f"other-{name}": replace(ask, raw={name: talk.new_id()}) for name in names} | {"none": ask}


@scenario()
def _adapters(talk: Conversation) -> Steps:
    """A new prompt, sent twice without an adapter, if the server lists adapters.

    Then it is sent with the first two adapters, with an adapter that does not exist, and once more without an
    adapter. Only the requests without an adapter may share a cache.
    """
    place, known = talk.dialect.request.adapter, sorted(talk.advertised.adapters)
    ask = _unseen_prompt(talk)
    if place and known:
        yield {"none": ask}
        yield {"none-again": ask}
        for number, name in enumerate(known[:2], 1):
            yield {f"adapter-{number}": replace(ask, raw={place[-1]: name})}
        yield {UNKNOWN: replace(ask, raw={place[-1]: talk.new_id()})}
        yield {"none-last": ask}


_QUESTIONS = ("Name a river.", "What is the sea?", "Who sings here?", "Count to nine.")


def _question(talk: Conversation, place: int, system: str) -> str:
    """Return a request with a question. If the target is a parrot, its answer is known."""
    words, speaker = _QUESTIONS[place], talk.parrot
    script = (*speaker.encode(words), speaker.end) if speaker is not None else ()
    return (speaker and speaker.reply(script, "user", [system])) or words


@scenario(chat=True)
def _shared_beginnings(talk: Conversation) -> Steps:
    """A new system message, followed by two questions one after the other, by two more questions at the same
    time, and by a very short question. The later requests may use the cache at most for the system message.
    Then all requests are sent again at once, with streaming. The answers must be the same.
    """
    words = _unseen_words(talk)
    system = {"role": "system", "content": words}
    asks = {
        label: Ask(
            messages=(system, {"role": "user", "content": _question(talk, place, words)}), max_new_tokens=12
        )
        for place, label in enumerate(SHARING)
    }
    first, second, *others = asks
    yield {first: asks[first]}
    yield {second: asks[second]}
    yield {label: asks[label] for label in others}
    yield {BEGINNING: Ask(messages=(system, {"role": "user", "content": "."}), max_new_tokens=1)}
    yield {f"{label}-stream": replace(ask, stream=True, usage=True) for label, ask in asks.items()}


def _on_rank(talk: Conversation, ask: Ask, rank: int) -> Ask | HttpRequest | None:
    """Return the request for a data-parallel rank; None if the endpoint has no field for the rank."""
    binding = talk.dialect.request
    if binding.rank:
        return replace(ask, raw={binding.rank[0][-1]: rank})
    request = talk.dialect.render(ask, talk.model)
    if isinstance(request, Unsupported) or not binding.rank_header:
        return None
    return replace(request, headers=(*request.headers, (binding.rank_header, str(rank))))


@scenario(perilous=True)
def _ranks(talk: Conversation) -> Steps:
    """A request to each of the first two data-parallel ranks, if the server reports the number of its ranks.

    Then a request to a rank that does not exist.
    """
    size = talk.advertised.dp_size
    ask = with_sayable(talk, replace(plain_ask(talk), max_new_tokens=4), return_meta_info=True)
    for rank in (*range(min(size, 2)), size) if size else ():
        if (asked := _on_rank(talk, ask, rank)) is not None:
            yield {f"rank-{rank}": asked}


async def _ask_around(talk: Conversation, label: str, call: HttpRequest, **fields: Any) -> Ask:
    """Send a new prompt twice, then send a control request, and then send the prompt once more.

    Return the request with the prompt.
    """
    ask = replace(_unseen_prompt(talk), **fields)
    await talk.ask("first", ask)
    await talk.ask("again", ask)
    await talk.call(label, call)
    await talk.ask("after", ask)
    return ask


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def _flushed_cache(talk: Conversation) -> None:
    """A new prompt, sent twice, and once more after the cache was cleared."""
    flush = talk.control.plain_request(Action.FLUSH)
    if flush is None:
        return
    await _ask_around(talk, "flush", flush)


@scenario(chat=False, budget=Budget.STANDARD, alone=True, storm=True)
async def _updated_weights(talk: Conversation) -> None:
    """A new prompt, sent twice, and once more after the server has loaded the same weights again.

    The same requests follow with a salt, if the endpoint has one. Only for a server that is declared to
    accept weight updates.
    """
    weights = talk.advertised.weights if WEIGHT_UPDATES in talk.declared else ""
    update = talk.control.update_request(weights) if weights else None
    if update is None:
        return
    ask = await _ask_around(talk, "update", update, logprobs=True, top_logprobs=2)
    await talk.ask("after-again", ask)
    for keys in talk.dialect.request.cache_keys[:1]:
        await talk.ask("after-salted", replace(ask, raw={keys[-1]: talk.new_id()}))
