"""Preflight: is anything there, what does it say of itself, and which dialects does it speak?

Nothing is judged here. A dialect is left out, with the reason, where one minimal request yields no record:
what is not an inference server must neither pass nor fail. Of the dialects that share an endpoint, one is
recognised by what it writes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tokenwire.ask import Ask
from tokenwire.asking.scenario import PROMPT, NotAsked, Sender
from tokenwire.dialects.dialect import Dialect, Unsupported
from tokenwire.dialects.recognition import Detected, detect
from tokenwire.judging.run import has_record
from tokenwire.record import Stream
from tokenwire.report.wording import cut
from tokenwire.target.advertised import Advertised, advertised_by, information_paths
from tokenwire.target.death import failure
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, exchange_name
from tokenwire.wire.inert import inert

SCENARIO = "preflight"

_MINIMAL_ASKS = (
    Ask(messages=({"role": "user", "content": "Hello"},), max_new_tokens=4),
    Ask(input_ids=(PROMPT[:4],), max_new_tokens=4),
    Ask(text=("Hello",), max_new_tokens=4),
)
"""Prompts in three forms: the first that a dialect has words for is sent."""
_NAMED = "named by --dialect"
_ABSENT = (404, 405)
_MODELS = "/v1/models"
_NOT_ABOUT_THE_BODY = frozenset({None, 200, 401, 403, 405, 429, 501, 503})
"""Statuses to which other words make no difference."""
_MOST_WANTS = 4
_IN_TEXT = "prompts as text"
"""What a server wants that refuses prompts as ids."""
_LONGEST_REFUSAL = 2000
_BUSY_PAUSE_S = 1.0


@dataclass(frozen=True)
class Preflight:
    """Facts about a target, found before the scenarios begin."""

    url: str
    advertised: Advertised
    speaks: tuple[Dialect, ...]
    model: str = ""
    """The name that requests call the model by; empty if none is known."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """The way in which each dialect was detected, in words."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Dialects that gave no record, with the reason in words."""
    diagnosis: str = ""
    """If no dialect is spoken: what the target seems to be, and what to do, for a newcomer."""
    answered: Mapping[str, HttpRequest] = field(default_factory=dict)
    """For each dialect that gave a record, the small request that it gave it for."""
    first_words: Mapping[str, Stream] = field(default_factory=dict)
    """And what each of them answered."""
    failures: tuple[Stream, ...] = ()
    """If the server itself failed meanwhile: that is to be judged."""
    results: tuple[Dialect, ...] = ()
    """Those of its dialects that sample nothing; where it has no other, they are what it speaks."""

    @property
    def asked(self) -> tuple[Dialect, ...]:
        """All that it speaks, once each."""
        return tuple(dict.fromkeys((*self.speaks, *self.results)))


def _beginning(exchange: Exchange) -> str:
    return cut(exchange.body[:400].decode("utf-8", "replace"), 80) or "nothing"


def _is_html(exchange: Exchange) -> bool:
    media_type = exchange.header("content-type") or ""
    return "html" in media_type.lower() or exchange.body.lstrip()[:9].lower().startswith(
        (b"<!doctype", b"<html")
    )


def _why_no_record(exchange: Exchange) -> str:
    """Describe what came instead of a record."""
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


def diagnosis(url: str, exchanges: Sequence[Exchange], information: Sequence[Exchange] = ()) -> str:
    """Explain what a target seems to be that speaks no dialect, and what to do.

    `exchanges` are the minimal requests with their responses, at least one; the first that failed leads.
    `information` are the exchanges with information endpoints before them.
    """
    first = exchanges[0]
    tried = ", ".join(dict.fromkeys(exchange.request.path for exchange in exchanges))
    statuses = {exchange.status for exchange in exchanges}
    there = [exchange for exchange in exchanges if exchange.status not in _ABSENT]
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
        fact = f"{url} sends without end: {_why_no_record(first)}."
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
    elif there and all(exchange.busy for exchange in there):
        fact = f"{url} has no room for a request (status {there[0].status}): {_why_no_record(there[0])}."
        way_out = "It may still be loading its model: try again, or raise --timeout."
    elif all(status is not None and status >= 500 for status in statuses):
        fact = f"{url} fails at every request: {_why_no_record(first)}."
        way_out = "Look into the server's log."
    elif (
        no_list := next((exchange for exchange in information if _is_failed_list(exchange)), None)
    ) is not None:
        fact = f"{url}: GET {no_list.request.path} answered {no_list.status}, so no model is known."
        way_out = "Name the model: --model NAME."
    else:
        telling = _why_no_record((there or exchanges)[0])
        fact = f"{url} answers, but not in a shape that this suite knows: {telling}."
        way_out = "`tokenwire check -v` shows the response of each endpoint."
    silent = next((exchange for exchange in there if exchange.ending is Ending.TIMEOUT), None)
    if silent is not None and "--timeout" not in way_out:
        way_out += f" {silent.request.path} may still be loading its model: try again, or raise --timeout."
    about_the_model = next(
        (exchange for exchange in exchanges if "model" in _words_of_refusal(exchange).lower()), None
    )
    if about_the_model is not None and "--model" not in way_out:
        way_out += f" {about_the_model.request.path} speaks of the model: try --model NAME."
    return inert(f"{fact} {way_out}")  # commands print it as it is


def _is_failed_list(exchange: Exchange) -> bool:
    """True if a server has a list of models but failed to return it."""
    return exchange.request.path == _MODELS and (exchange.status or 0) >= 500


def minimal_requests(dialect: Dialect, model: str = "") -> list[HttpRequest]:
    """Return the smallest requests, one for each form of a prompt that a dialect has words for, the usual
    first.

    Raises ValueError if it has none at all.
    """
    rendered = (dialect.render(ask, model) for ask in _MINIMAL_ASKS)
    requests = [request for request in rendered if not isinstance(request, Unsupported)]
    if not requests:
        raise ValueError(
            f"dialect {dialect.name!r} takes no messages, no input_ids and no text; its table is wrong"
        )
    return requests


@dataclass(frozen=True)
class _Introduced:
    """The result of asking one dialect for a few tokens."""

    dialect: Dialect
    """The dialect as the server wants it, if it named a change."""
    exchanges: tuple[Exchange, ...]
    """The last of them is the answer."""
    wants: tuple[str, ...] = ()
    """Changes of the request that the server wants."""

    @property
    def answer(self) -> Exchange:
        return self.exchanges[-1]


class _Introduction:
    """Asks for a few tokens, until the server has room, and as it wants to be asked."""

    def __init__(self, sender: Sender, model: str, patience_s: float) -> None:
        self._sender, self._model, self._patience_s = sender, model, patience_s

    async def _ask(self, name: str, request: HttpRequest) -> Exchange:
        """Ask, again and again while the server has no room: it may still be loading its model."""
        clock = asyncio.get_running_loop()
        until, later = clock.time() + self._patience_s, 0
        exchange = await self._sender.send(exchange_name(SCENARIO, name), SCENARIO, request)
        while exchange.busy and clock.time() < until:
            await asyncio.sleep(_BUSY_PAUSE_S)
            later += 1
            again = exchange_name(SCENARIO, f"{name}-later-{later}")
            try:
                exchange = await self._sender.send(again, SCENARIO, request)
            except NotAsked:
                break
        return exchange

    async def introduce(self, dialect: Dialect, forms: Sequence[int]) -> _Introduced:
        """Ask one dialect, in other words where a refusal names them, and with a prompt in another of these
        forms where one is refused or fails.
        """
        exchanges: list[Exchange] = []
        wants: list[str] = []
        left = list(forms)
        while True:
            name = f"{dialect.name}-{len(exchanges)}" if exchanges else dialect.name
            try:
                exchanges.append(await self._ask(name, minimal_requests(dialect, self._model)[left[0]]))
            except NotAsked:
                if not exchanges:
                    raise
                break
            last = exchanges[-1]
            if has_record(dialect.read(last)) or last.status in _NOT_ABOUT_THE_BODY:
                break
            # Some models want max_completion_tokens or no temperature, some gateways want a model.
            wanted = dialect.as_wanted(_words_of_refusal(last)) if len(wants) < _MOST_WANTS else None
            if wanted is not None:
                dialect, what = wanted
                wants.append(what)
            elif len(left) > 1 and last.status not in _ABSENT:
                left.pop(0)
                # Routers before SGLang and vLLM refuse ids on completions: such an endpoint is asked in text.
                if (in_words := dialect.in_words) is not None:
                    dialect, left = in_words, [0]
                    wants.append(_IN_TEXT)
            else:
                break
        return _Introduced(dialect, tuple(exchanges), tuple(wants))


def _words_of_refusal(exchange: Exchange) -> str:
    """Return the text of a refusal as it is on the wire; empty for any other answer."""
    refused = exchange.status is not None and 400 <= exchange.status < 500
    return exchange.body[:_LONGEST_REFUSAL].decode("utf-8", "replace") if refused else ""


def _forms(dialect: Dialect, others: Sequence[Dialect]) -> list[int]:
    """Choose the minimal requests to try: the first, and those that no other dialect of the
    endpoint sends first.
    """
    requests = minimal_requests(dialect)
    usual = {
        json.dumps(minimal_requests(other)[0].body, sort_keys=True)
        for other in others
        if other is not dialect and other.endpoint.path == dialect.endpoint.path
    }
    keys = [json.dumps(request.body, sort_keys=True) for request in requests]
    return [place for place, key in enumerate(keys) if not place or key not in usual]


def least_requests(dialects: Sequence[Dialect]) -> int:
    """Count the requests that find out what a target is, if each is sent once."""
    return len(information_paths()) + len(dialects)


async def preflight(
    url: str,
    sender: Sender,
    dialects: Sequence[Dialect],
    model: str = "",
    *,
    named: bool = False,
    scout: Sender | None = None,
    patience_s: float = 0.0,
) -> Preflight:
    """Ask the information endpoints through the scout, then each dialect for a few tokens: all at once.

    Raises NotAsked if a first request may not be sent; one that is asked again, or in other words, ends with
    the last answer then.

    `model` is the name of the model to ask for; empty for the first that the target lists. Dialects that the
    user `named` need no more than a record. `patience_s`: how long a server that has no room is asked again.
    """

    async def ask_information(path: str) -> Exchange:
        request = HttpRequest("GET", path)
        return await (scout or sender).send(exchange_name(SCENARIO, path.strip("/")), SCENARIO, request)

    # First: requests name the model that these endpoints list.
    information = await asyncio.gather(*map(ask_information, information_paths()))
    advertised = advertised_by(information)
    model = model or advertised.model
    asking = _Introduction(sender, model, patience_s)
    introduced = await asyncio.gather(
        *(asking.introduce(dialect, _forms(dialect, dialects)) for dialect in dialects)
    )
    answers = {introduction.dialect: introduction.answer for introduction in introduced}
    streams = {
        dialect.name: dialect.read(exchange, delivery_hint=advertised.delivery)
        for dialect, exchange in answers.items()
    }
    left_out = {
        dialect.name: _why_no_record(exchange)
        for dialect, exchange in answers.items()
        if not has_record(streams[dialect.name])
    }
    recorded = {dialect: exchange for dialect, exchange in answers.items() if dialect.name not in left_out}
    detected = (
        Detected(dict.fromkeys((dialect.name for dialect in recorded), _NAMED), {})
        if named
        else detect(recorded)
    )
    left_out |= detected.left_out
    spoken = [dialect for dialect in answers if dialect.name not in left_out]
    results = tuple(dialect for dialect in spoken if dialect.gives_results)
    speaks = tuple(dialect for dialect in spoken if not dialect.gives_results) or results
    wants = {
        introduction.dialect.name: f"; it wants {', and '.join(introduction.wants)}"
        for introduction in introduced
        if introduction.wants
    }
    return Preflight(
        url,
        advertised,
        speaks,
        model,
        {name: why + wants.get(name, "") for name, why in detected.taken.items()},
        left_out,
        "" if speaks else diagnosis(url, list(answers.values()), information),
        {dialect.name: exchange.request for dialect, exchange in recorded.items()},
        {dialect.name: streams[dialect.name] for dialect in recorded},
        tuple(_failures(introduced, spoken)),
        results,
    )


def _failures(introduced: Sequence[_Introduced], speaks: Sequence[Dialect]) -> Iterator[Stream]:
    """Yield the first failure of the server itself at each endpoint, or its refusal of ids that it has to
    take, in the words of a dialect that it speaks there where there is one.
    """
    seen: set[str] = set()
    for introduction in introduced:
        path = introduction.dialect.endpoint.path
        reader = next((other for other in speaks if other.endpoint.path == path), introduction.dialect)
        # Only a dialect that is spoken owes ids: an endpoint may refuse the words of another family. No other
        # refusal of ids comes, so this one is judged.
        owes_ids = (
            introduction.dialect in speaks
            and _IN_TEXT in introduction.wants
            and not reader.policy.ids_are_optional
        )
        for exchange in introduction.exchanges:
            stream = reader.read(exchange)
            failed = (exchange.status or 0) >= 500 and failure(stream)
            if path not in seen and (failed or (owes_ids and exchange.status != 200)):
                seen.add(path)
                yield stream
