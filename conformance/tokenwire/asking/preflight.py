"""Preflight: is anything there, what does it say of itself, and which dialects does it speak?

Nothing is judged here. A dialect is left out, with the reason, where one minimal request yields no record:
what is not an inference server must neither pass nor fail. Of the dialects that share an endpoint, one is
recognised by what it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, Sender
from tokenwire.dialects.dialect import Dialect, Unsupported
from tokenwire.dialects.recognition import Detected, detect
from tokenwire.judging.advertised import INFORMATION_PATHS, Advertised, advertised_by
from tokenwire.judging.judge import has_record
from tokenwire.report.wording import cut
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest

SCENARIO = "preflight"

_MINIMAL_ASKS = (
    Ask(messages=({"role": "user", "content": "Hello"},), max_new_tokens=4),
    Ask(input_ids=(PROMPT[:4],), max_new_tokens=4),
    Ask(text=("Hello",), max_new_tokens=4),
)
"""Prompts in three forms: the first that a dialect has words for is sent."""
_NAMED = "named by --dialect"


@dataclass(frozen=True)
class Preflight:
    """What was found out about a target before anything is asked in earnest."""

    url: str
    advertised: Advertised
    speaks: tuple[Dialect, ...]
    model: str = ""
    """The name that requests call the model by; empty where nobody knows one."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """How each dialect was detected, in words."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Dialects that gave no record, with the reason in words."""
    diagnosis: str = ""
    """Where no dialect is spoken: what the target seems to be, and what to do, for a newcomer."""


def _beginning(exchange: Exchange) -> str:
    return cut(exchange.body[:400].decode("utf-8", "replace"), 80) or "nothing"


def _is_html(exchange: Exchange) -> bool:
    media_type = exchange.header("content-type") or ""
    return "html" in media_type.lower() or exchange.body.lstrip()[:9].lower().startswith(
        (b"<!doctype", b"<html")
    )


def why_no_record(exchange: Exchange) -> str:
    """What came instead of a record, in words."""
    line = f"{exchange.request.method} {exchange.request.path}"
    match exchange.ending:
        case Ending.UNREACHABLE:
            return f"{line}: no answer: {exchange.detail}"
        case Ending.TIMEOUT:
            return f"{line}: no complete answer within {exchange.duration:.0f} s"
        case Ending.OUTGROWN:
            return f"{line}: no end of an answer that begins with {_beginning(exchange)}: {exchange.detail}"
    if exchange.status == 200 and _is_html(exchange):
        return f"{line}: 200 with an HTML page"
    words = f"{line}: status {exchange.status}, and the body begins with {_beginning(exchange)}"
    return words if exchange.ending is Ending.COMPLETE else f"{words} ({exchange.ending}: {exchange.detail})"


def diagnosis(url: str, exchanges: Sequence[Exchange]) -> str:
    """What a target seems to be that speaks no dialect, and what to do; for a newcomer.

    `exchanges` are the minimal requests with what came back, at least one.
    """
    first = exchanges[0]
    tried = ", ".join(dict.fromkeys(f"{one.request.method} {one.request.path}" for one in exchanges))
    statuses = {exchange.status for exchange in exchanges}
    if all(exchange.ending is Ending.UNREACHABLE for exchange in exchanges):
        fact = f"Nothing answers at {url} ({first.detail})."
        way_out = (
            "Start the server first, or check host and port: a target looks like http://127.0.0.1:30000."
        )
    elif all(exchange.ending is Ending.TIMEOUT for exchange in exchanges):
        fact = (
            f"Something listens at {url}, but completed no answer to {tried} within {first.duration:.0f} s."
        )
        way_out = "It may still be loading its model: try again, or raise --timeout."
    elif all(exchange.ending is Ending.OUTGROWN for exchange in exchanges):
        fact = f"{url} sends without end: {why_no_record(first)}."
        way_out = "A few tokens were asked for; give the base URL of an inference server's API."
    elif any(_is_html(exchange) for exchange in exchanges):
        fact = (
            f"{url} answers with an HTML page: that is a web site or a proxy's page, not an inference server."
        )
        way_out = "Give the base URL of the server's API."
    elif statuses <= {401, 403}:
        fact = f"{url} wants credentials (status {first.status})."
        way_out = "Pass them: --header 'Authorization: Bearer …'."
    elif statuses <= {404, 405}:
        fact = f"{url} has none of the endpoints that this suite knows: {tried} gave status {first.status}."
        way_out = "Give the base URL without a path; `tokenwire list dialects` tells what is known."
    elif all(status is not None and status >= 500 for status in statuses):
        fact = f"{url} fails at every request: {why_no_record(first)}."
        way_out = "Look into the server's log."
    else:
        fact = f"{url} answers, but not as an inference server that this suite understands."
        way_out = "; ".join(map(why_no_record, exchanges)) + "."
    return f"{fact} {way_out}"


def minimal_request(dialect: Dialect, model: str = "") -> HttpRequest:
    """The smallest request that a dialect has words for. Raises ValueError where it has none at all."""
    for ask in _MINIMAL_ASKS:
        request = dialect.render(ask, model)
        if not isinstance(request, Unsupported):
            return request
    raise ValueError(
        f"dialect {dialect.name!r} takes no messages, no input_ids and no text; its table is wrong"
    )


async def preflight(
    url: str, sender: Sender, dialects: Sequence[Dialect], model: str = "", *, named: bool = False
) -> Preflight:
    """Ask the information endpoints, all at once; then each dialect for a few tokens, all at once.

    `model` is the name of the model to ask for; empty for the first that the target lists. Dialects that the
    user `named` need no more than a record. Takes twice the sender's own time limit at most.
    """

    async def ask(name: str, request: HttpRequest) -> Exchange:
        return await sender.send(f"{SCENARIO}/{name}", SCENARIO, request)

    advertised = advertised_by(
        await asyncio.gather(*(ask(path.strip("/"), HttpRequest("GET", path)) for path in INFORMATION_PATHS))
    )
    model = model or advertised.model
    exchanges = await asyncio.gather(
        *(ask(dialect.name, minimal_request(dialect, model)) for dialect in dialects)
    )
    answers = dict(zip(dialects, exchanges, strict=True))
    left_out = {
        dialect.name: why_no_record(exchange)
        for dialect, exchange in answers.items()
        if not has_record(dialect.read(exchange, delivery_hint=advertised.delivery))
    }
    recorded = {dialect: one for dialect, one in answers.items() if dialect.name not in left_out}
    detected = (
        Detected(dict.fromkeys((dialect.name for dialect in recorded), _NAMED), {})
        if named
        else detect(recorded)
    )
    left_out |= detected.left_out
    speaks = tuple(dialect for dialect in dialects if dialect.name not in left_out)
    words = "" if speaks else diagnosis(url, list(answers.values()))
    return Preflight(url, advertised, speaks, model, detected.taken, left_out, words)
