"""Preflight: finds out if a target answers, its own information, and the dialects that it supports.

Nothing is judged here. A dialect is excluded, with the reason, if one minimal request yields no record,
because a server without this dialect must neither pass nor fail its checks. The answers distinguish dialects
with the same endpoint.
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
"""Prompts in three forms; the first that a dialect supports is sent."""
_NAMED = "named by --dialect"
_ABSENT = (404, 405)
_MODELS = "/v1/models"
_NOT_ABOUT_THE_BODY = frozenset({None, 200, 401, 403, 405, 429, 501, 503})
"""Statuses that do not depend on the body of the request."""
_MOST_WANTS = 4
_IN_TEXT = "prompts as text"
"""The requirement of a server that refuses prompts as ids."""
_LONGEST_REFUSAL = 2000
_BUSY_PAUSE_S = 1.0


@dataclass(frozen=True)
class Preflight:
    """Facts about a target, collected before the scenarios run."""

    url: str
    advertised: Advertised
    speaks: tuple[Dialect, ...]
    model: str = ""
    """The model's name in requests; empty if none is known."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """The evidence for each dialect, in words."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Dialects without a record, with the reason in words."""
    diagnosis: str = ""
    """An explanation for newcomers if the target supports no dialect: its probable kind, and the next
    step.
    """
    answered: Mapping[str, HttpRequest] = field(default_factory=dict)
    """The small request of each dialect that was answered with a record."""
    first_words: Mapping[str, Stream] = field(default_factory=dict)
    """The answers to these requests."""
    failures: tuple[Stream, ...] = ()
    """Failures of the server itself during preflight, which are judged."""
    results: tuple[Dialect, ...] = ()
    """The supported dialects without sampling, such as embeddings."""

    @property
    def asked(self) -> tuple[Dialect, ...]:
        """Return all supported dialects."""
        return tuple(dict.fromkeys((*self.speaks, *self.results)))


def _beginning(exchange: Exchange) -> str:
    return cut(exchange.body[:400].decode("utf-8", "replace"), 80) or "nothing"


def _is_html(exchange: Exchange) -> bool:
    media_type = exchange.header("content-type") or ""
    return "html" in media_type.lower() or exchange.body.lstrip()[:9].lower().startswith(
        (b"<!doctype", b"<html")
    )


def _why_no_record(exchange: Exchange) -> str:
    """Describe the response without a record."""
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
    """Explain what a target without a known dialect seems to be, and the next step.

    `exchanges` are the minimal requests with their responses, at least one; the first failure determines the
    explanation. `information` are the earlier exchanges with information endpoints.
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
    return inert(f"{fact} {way_out}")  # inert, because commands print it


def _is_failed_list(exchange: Exchange) -> bool:
    """True if a server has a list of models but failed to return it."""
    return exchange.request.path == _MODELS and (exchange.status or 0) >= 500


def minimal_requests(dialect: Dialect, model: str = "") -> list[HttpRequest]:
    """Return a small request for each form of a prompt that a dialect supports, the usual form first.

    Raises ValueError if it supports none.
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
    """The result of preflight for one dialect."""

    dialect: Dialect
    """The dialect, with the changes that the server requires."""
    exchanges: tuple[Exchange, ...]
    """The exchanges; the last one decides."""
    wants: tuple[str, ...] = ()
    """Changes to the request that the server requires."""

    @property
    def answer(self) -> Exchange:
        return self.exchanges[-1]


class _Introduction:
    """Sends small requests, retries while the server is busy, and follows changes that refusals name."""

    def __init__(self, sender: Sender, model: str, patience_s: float) -> None:
        self._sender, self._model, self._patience_s = sender, model, patience_s

    async def _ask(self, name: str, request: HttpRequest) -> Exchange:
        """Send a request and retry it while the server is busy, because it may still load its model."""
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
        """Try one dialect with these forms of prompts.

        A change that a refusal names is tried, and the next form if a form is refused or fails.
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
            # Some models require max_completion_tokens or refuse temperature; some gateways require a model.
            wanted = dialect.as_wanted(_words_of_refusal(last)) if len(wants) < _MOST_WANTS else None
            if wanted is not None:
                dialect, what = wanted
                wants.append(what)
            elif len(left) > 1 and last.status not in _ABSENT:
                left.pop(0)
                # Routers for SGLang and vLLM refuse ids on completions, so such an endpoint gets text.
                if (in_words := dialect.in_words) is not None:
                    dialect, left = in_words, [0]
                    wants.append(_IN_TEXT)
            else:
                break
        return _Introduced(dialect, tuple(exchanges), tuple(wants))


def _words_of_refusal(exchange: Exchange) -> str:
    """Return the body of a refusal; empty for any other answer."""
    refused = exchange.status is not None and 400 <= exchange.status < 500
    return exchange.body[:_LONGEST_REFUSAL].decode("utf-8", "replace") if refused else ""


def _forms(dialect: Dialect, others: Sequence[Dialect]) -> list[int]:
    """Return the forms of prompts to try: the first, and those that no other dialect of the endpoint tries
    first.
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
    """Return the number of requests of a preflight without retries."""
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
    """Query the information endpoints through the scout, and each dialect with a small request, concurrently.

    Raises NotAsked if a first request may not be sent; if a limit stops a retry, the last answer counts.

    `model` is the model's name; empty for the first that the target lists. Dialects that the user `named`
    only need a record. `patience_s`: how long a busy server is retried.
    """

    async def ask_information(path: str) -> Exchange:
        request = HttpRequest("GET", path)
        return await (scout or sender).send(exchange_name(SCENARIO, path.strip("/")), SCENARIO, request)

    # First, because requests use the model's name from these endpoints.
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
    """Yield the first failure of the server itself at each endpoint, or a refusal of ids that it must accept.

    It is parsed by a supported dialect of the endpoint if there is one.
    """
    seen: set[str] = set()
    for introduction in introduced:
        path = introduction.dialect.endpoint.path
        reader = next((other for other in speaks if other.endpoint.path == path), introduction.dialect)
        # Only a supported dialect must accept ids, because an endpoint may refuse another family's fields.
        # This refusal is judged, because ids are not sent again.
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
