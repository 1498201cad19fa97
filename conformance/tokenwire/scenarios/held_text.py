"""Scenarios for logprobs of tokens whose text comes later, because they are parts of characters."""

from dataclasses import replace

from tokenwire.ask import Ask
from tokenwire.asking.detokenization import SCENARIO
from tokenwire.asking.scenario import Conversation, NotAsked, scenario
from tokenwire.dialects.detokenize import Ids
from tokenwire.record import BROKEN
from tokenwire.scenarios.forms import plain_ask

_ASKED = 256
"""The number of ids, from 0 on, that are examined. In byte-level vocabularies, these include the bytes."""
_FORCED = 24
_LONG = 220
"""More tokens than any server holds back."""
_BIAS = 20.0
"""A bias large enough to exclude all other ids. Among the biased ids, the model's order remains."""


async def _pieces(talk: Conversation) -> list[int]:
    """Find ids that are not complete characters alone, by a local tokenizer or by the server's."""
    singles: list[Ids] = [(token,) for token in range(_ASKED)]
    local, way = talk.transcript.tokenizer, talk.dialect.detokenize
    if local is not None:
        texts = {ids: local.decode(ids) for ids in singles}
    elif way is not None and way.batches:
        name, request = talk.name_of("pieces-told"), way.request(singles, skip_special_tokens=False)
        try:
            exchange = await talk.sender.send(name, SCENARIO, request)
        except NotAsked:
            return []
        texts = {ids: text for (ids, _), text in way.texts(exchange).items()}
    else:
        return []
    return [ids[0] for ids, text in texts.items() if text is not None and BROKEN in text]


@scenario()
async def _held_text(talk: Conversation) -> None:
    """Long sampled answers with logprobs and usage, without and with streaming.

    Then answers in which most tokens are parts of characters, so that their text comes with a later token.
    Each token must have an entry in the logprobs.
    """
    ask = replace(
        plain_ask(talk),
        max_new_tokens=_LONG,
        temperature=1.0,
        logprobs=True,
        top_logprobs=2,
        usage=True,
        return_token_ids=talk.dialect.takes_ids and not talk.chat,
    )
    asks: dict[str, Ask] = {"long": ask}
    pieces = await _pieces(talk)
    if pieces:
        bias = dict.fromkeys(pieces[:_FORCED], _BIAS)
        asks["pieces"] = replace(ask, max_new_tokens=96, logit_bias=bias)
    streams = {f"{label}-stream": replace(ask, stream=True) for label, ask in asks.items()}
    # In chat, only responses without streaming have fields for ids and per-token arrays.
    wanted = {
        label: replace(ask, return_token_ids=True, return_meta_info=True) for label, ask in asks.items()
    }
    wholes = {label: ask if talk.chat and talk.can_say(ask) else asks[label] for label, ask in wanted.items()}
    await talk.ask_all(wholes | streams)
