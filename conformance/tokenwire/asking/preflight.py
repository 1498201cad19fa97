"""Preflight: finds out if a target answers, what it reports about itself, and which dialects it supports.

Nothing is judged here. Each dialect gets one minimal request. If the response cannot be parsed, the dialect
is excluded with the reason, so that its checks neither pass nor fail. If several dialects share an endpoint,
the responses decide between them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tokenwire.ask import Ask
from tokenwire.asking.other_protocols import explain, other_protocols
from tokenwire.asking.politeness import retry_after
from tokenwire.asking.scenario import PROMPT, NotAsked, Sender
from tokenwire.checks.reading.refusals import words_of
from tokenwire.dialects.dialect import Dialect, Unsupported
from tokenwire.dialects.recognition import Detected, detect
from tokenwire.judging.run import has_record
from tokenwire.record import Stream
from tokenwire.report.wording import cut, first_few
from tokenwire.target.advertised import Advertised, advertised_by, information_paths
from tokenwire.target.death import failure
from tokenwire.wire.exchange import Ending, Exchange, HttpRequest, exchange_name
from tokenwire.wire.inert import inert
from tokenwire.wire.redaction import redact_url

SCENARIO = "preflight"

_MINIMAL_ASKS = (
    Ask(messages=({"role": "user", "content": "Hello"},), max_new_tokens=4),
    Ask(input_ids=(PROMPT[:4],), max_new_tokens=4),
    Ask(text=("Hello",), max_new_tokens=4),
)
"""A prompt as messages, as ids and as text. The first form that a dialect supports is sent first."""
_NAMED = "named by --dialect"
_ABSENT = (404, 405)
_REDIRECTS = (301, 302, 303, 307, 308)
_MODELS = "/v1/models"
_NOT_ABOUT_THE_BODY = frozenset({None, 200, 401, 403, 405, 429, 501, 503})
"""HTTP statuses that another request body would not change. None: no response."""
_MOST_WANTS = 4
_IN_TEXT = "prompts as text"
"""Describes a server that accepts prompts only as text."""
_LONGEST_REFUSAL = 2000
_BUSY_PAUSE_S = 1.0
"""Seconds of the first pause before a busy server is asked again. Each further pause is twice as long."""
_LONGEST_BUSY_PAUSE_S = 8.0
WAITED_S = 5.0
"""Seconds after which the user is shown which requests wait for an answer."""
_MOST_NAMED = 3


@dataclass(frozen=True)
class Preflight:
    """The facts that the preflight found out about a target."""

    url: str
    advertised: Advertised
    speaks: tuple[Dialect, ...]
    model: str = ""
    """The model name for requests; empty if the server reports none."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """The evidence for each supported dialect, for the report."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The reason why each other dialect is excluded, for the report."""
    diagnosis: str = ""
    """An explanation if no dialect is supported: a guess of what the target is, and a next step for the user.
    """
    answered: Mapping[str, HttpRequest] = field(default_factory=dict)
    """The successful minimal request of each dialect."""
    first_words: Mapping[str, Stream] = field(default_factory=dict)
    """The parsed responses to the requests in `answered`."""
    failures: tuple[Stream, ...] = ()
    """Preflight responses that show a bug of the server. These responses are judged."""
    results: tuple[Dialect, ...] = ()
    """Supported dialects that do not sample tokens, such as embeddings."""

    @property
    def asked(self) -> tuple[Dialect, ...]:
        """Return all supported dialects, with and without sampling."""
        return tuple(dict.fromkeys((*self.speaks, *self.results)))


def _beginning(exchange: Exchange) -> str:
    return cut(exchange.body[:400].decode("utf-8", "replace"), 80) or "nothing"


def _is_html(exchange: Exchange) -> bool:
    media_type = exchange.header("content-type") or ""
    return "html" in media_type.lower() or exchange.body.lstrip()[:9].lower().startswith(
        (b"<!doctype", b"<html")
    )


def _why_no_record(exchange: Exchange) -> str:
    """Describe a response that contains no output tokens or texts."""
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


def diagnosis(
    url: str,
    exchanges: Sequence[Exchange],
    information: Sequence[Exchange] = (),
    others: Sequence[Exchange] = (),
) -> str:
    """Explain why no dialect is supported: a guess of what the target is, and a next step.

    `exchanges`: the minimal requests with their responses, at least one. The first failure decides the
    explanation. `information`: the earlier requests to information endpoints. `others`: the requests to those
    of other protocols.
    """
    other = explain(url, others)
    first = exchanges[0]
    tried = ", ".join(dict.fromkeys(exchange.request.path for exchange in exchanges))
    statuses = {exchange.status for exchange in exchanges}
    there = [exchange for exchange in exchanges if exchange.status not in _ABSENT]
    refusals = [cut(words, 200).rstrip(".") for exchange in there if (words := _message_of(exchange))]
    if all(exchange.ending is Ending.UNREACHABLE for exchange in exchanges) and (
        scheme := _spoken_scheme(first)
    ):
        fact = (
            f"{url} does not answer in the protocol that the URL names: the server seems to speak {scheme}."
        )
        way_out = f"Use {scheme}://{url.partition('://')[2]}."
    elif all(exchange.ending is Ending.UNREACHABLE for exchange in exchanges):
        fact = f"Nothing answers at {url} ({first.detail})."
        way_out = (
            "Start the server first, or check host and port: a target looks like http://127.0.0.1:30000."
        )
    elif other is not None:
        fact, way_out = other
    elif all(exchange.ending is Ending.TIMEOUT for exchange in exchanges):
        fact = (
            f"Something listens at {url}, but completed no answer to {tried} within {first.duration:.0f} s."
        )
        way_out = "It may still be loading its model: try again, or raise --timeout."
    elif all(exchange.ending is Ending.OUTGROWN for exchange in exchanges):
        fact = f"{url} sends without end: {_why_no_record(first)}."
        way_out = "A few tokens were asked for; give the base URL of an inference server's API."
    elif all(exchange.status in _REDIRECTS for exchange in exchanges):
        fact = f"{url} redirects every request (status {first.status})"
        elsewhere = first.header("location")
        fact += f", the first one to {cut(redact_url(elsewhere), 200)}." if elsewhere else "."
        way_out = "Give the base URL of the server's API, which answers without a redirect."
    elif any(_is_html(exchange) for exchange in exchanges):
        fact = (
            f"{url} answers with an HTML page: that is a web site or a proxy's page, not an inference server."
        )
        way_out = "Give the base URL of the server's API."
    elif statuses <= {401, 403}:
        fact = f"{url} requires credentials (status {first.status})."
        way_out = "Pass them: --header 'Authorization: Bearer …'."
    elif statuses <= {404, 405}:
        fact = f"{url} has none of the endpoints that this suite knows: {tried} gave status {first.status}."
        way_out = "Give the base URL without a path; `tokenwire list dialects` lists what is known."
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
    elif refusals and len(refusals) == len(there) and len(set(refusals)) == 1:
        fact = f"{url} refuses the request at every endpoint (status {there[0].status}): {refusals[0]}."
        way_out = "Check --header, and what else goes into each request."
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
        way_out += f" {about_the_model.request.path} mentions the model: try --model NAME."
    return inert(f"{fact} {way_out}")  # escaped, because commands print it on a terminal


def _spoken_scheme(exchange: Exchange) -> str:
    """Return the scheme to use if the error shows that the URL has the wrong one; otherwise empty."""
    if "WRONG_VERSION_NUMBER" in exchange.detail:
        return "http"
    # This is h11's message for a control character. A TLS server's alert begins with one.
    return "https" if "illegal request line" in exchange.detail else ""


def _message_of(exchange: Exchange) -> str:
    """Return the error message of a refusal; empty if it has none."""
    try:
        return words_of(json.loads(_words_of_refusal(exchange) or "null"))
    except (ValueError, RecursionError):
        return ""


def _is_failed_list(exchange: Exchange) -> bool:
    """True if the server failed (status 500 or higher) to list its models."""
    return exchange.request.path == _MODELS and (exchange.status or 0) >= 500


def minimal_requests(dialect: Dialect, model: str = "") -> list[HttpRequest]:
    """Return a minimal request for each prompt form that a dialect supports, the most common form first.

    Raises ValueError if a dialect supports no prompt form.
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
    """The preflight result of one dialect."""

    dialect: Dialect
    """The dialect, adapted to this server."""
    exchanges: tuple[Exchange, ...]
    """The requests and responses. The last response decides."""
    wants: tuple[str, ...] = ()
    """Descriptions of what this server requires beyond the dialect."""

    @property
    def answer(self) -> Exchange:
        return self.exchanges[-1]


class _Awaited:
    """A sender that keeps a list of the requests that wait for an answer."""

    def __init__(self, sender: Sender, pending: list[str]) -> None:
        self._sender, self._pending = sender, pending

    async def send(self, name: str, scenario: str, request: HttpRequest, **how: Any) -> Exchange:
        line = f"{request.method} {request.path}"
        self._pending.append(line)
        try:
            return await self._sender.send(name, scenario, request, **how)
        finally:
            self._pending.remove(line)


class _Introduction:
    """Sends minimal requests, retries while the server is busy, and adapts requests to refusals."""

    def __init__(self, sender: Sender, model: str, patience_s: float) -> None:
        self._sender, self._model, self._patience_s = sender, model, patience_s
        self._turn = asyncio.Lock()
        """Held while a request is retried."""
        self._until: float | None = None
        """The time at which the retries end; None before a busy answer."""

    async def _ask(self, name: str, request: HttpRequest) -> Exchange:
        """Send a request and retry it while the server is busy, because it may still load its model.

        Only one request at a time is retried, after growing pauses. The others are sent again when the
        server has room, or when the time is over.
        """
        clock, later = asyncio.get_running_loop(), 0

        async def ask_again() -> Exchange:
            nonlocal later
            later += 1
            again = exchange_name(SCENARIO, f"{name}-later-{later}")
            return await self._sender.send(again, SCENARIO, request, aside=True)

        exchange = await self._sender.send(exchange_name(SCENARIO, name), SCENARIO, request)
        if exchange.busy and self._until is None:
            self._until = clock.time() + self._patience_s
        try:
            while exchange.busy and clock.time() < (self._until or 0.0):
                if self._turn.locked():
                    async with self._turn:
                        pass
                    exchange = await ask_again()
                else:
                    async with self._turn:
                        pause = _BUSY_PAUSE_S
                        while exchange.busy and (left := (self._until or 0.0) - clock.time()) > 0:
                            wished = retry_after(exchange, datetime.now(UTC)) or 0.0
                            await asyncio.sleep(min(left, max(pause, wished)))
                            pause = min(2 * pause, _LONGEST_BUSY_PAUSE_S)
                            exchange = await ask_again()
        except NotAsked:
            pass
        return exchange

    async def introduce(self, dialect: Dialect, forms: Sequence[int]) -> _Introduced:
        """Send minimal requests until one succeeds. `forms`: indices of the prompt forms to try.

        If an error message names a required field, the request is adapted. If a prompt form is refused or
        fails, the next one is tried.
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
                # Routers for SGLang and vLLM refuse ids on completions, so the prompt is sent as text.
                if (in_words := dialect.in_words) is not None:
                    dialect, left = in_words, [0]
                    wants.append(_IN_TEXT)
            else:
                break
        return _Introduced(dialect, tuple(exchanges), tuple(wants))


def _words_of_refusal(exchange: Exchange) -> str:
    """Return the error message of a refusal (status 4xx); empty for other responses."""
    refused = exchange.status is not None and 400 <= exchange.status < 500
    return exchange.body[:_LONGEST_REFUSAL].decode("utf-8", "replace") if refused else ""


def _forms(dialect: Dialect, others: Sequence[Dialect]) -> list[int]:
    """Return the indices of the prompt forms to try.

    These are the first form, and each form that no other dialect of the same endpoint sends first.
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
    """Return the number of preflight requests if none is retried."""
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
    on_wait: Callable[[str], object] = lambda _: None,
) -> Preflight:
    """Request the information endpoints, then send each dialect's minimal request, concurrently.

    `model`: the model name; empty for the first model that the target lists. `named`: the user chose the
    dialects, so a parseable response is enough evidence. `scout`: sends the information requests.
    `patience_s`: seconds for which a busy server is retried. `on_wait`: called with the requests that have no
    answer after some seconds. Raises NotAsked if a limit prevents a first request. If a limit prevents a
    retry, the last response counts.
    """
    pending: list[str] = []
    sender = _Awaited(sender, pending)
    scout = _Awaited(scout, pending) if scout else sender

    def tell() -> None:
        missing = list(dict.fromkeys(pending))
        on_wait(f"no answer after {WAITED_S:g} s from {url} to {first_few(missing, _MOST_NAMED)}")

    told = asyncio.get_running_loop().call_later(WAITED_S, tell)
    try:
        return await _preflight(url, sender, dialects, model, named=named, scout=scout, patience_s=patience_s)
    finally:
        told.cancel()


async def _preflight(
    url: str,
    sender: Sender,
    dialects: Sequence[Dialect],
    model: str,
    *,
    named: bool,
    scout: Sender,
    patience_s: float,
) -> Preflight:

    async def ask_information(path: str) -> Exchange:
        request = HttpRequest("GET", path)
        return await scout.send(exchange_name(SCENARIO, path.strip("/")), SCENARIO, request)

    # Information comes first, because the requests below need the model name.
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
    answered = any(exchange.status is not None for exchange in answers.values())
    asked = [protocol.asked for protocol in other_protocols()] if answered and not speaks else []
    others = await asyncio.gather(*map(ask_information, asked))
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
        "" if speaks else diagnosis(url, list(answers.values()), information, others),
        {dialect.name: exchange.request for dialect, exchange in recorded.items()},
        {dialect.name: streams[dialect.name] for dialect in recorded},
        tuple(_failures(introduced, spoken)),
        results,
    )


def _failures(introduced: Sequence[_Introduced], speaks: Sequence[Dialect]) -> Iterator[Stream]:
    """Yield the first bug of the server at each endpoint: a failure, or a refusal of ids that it must accept.

    If a supported dialect has this endpoint, it parses the response.
    """
    seen: set[str] = set()
    for introduction in introduced:
        path = introduction.dialect.endpoint.path
        reader = next((other for other in speaks if other.endpoint.path == path), introduction.dialect)
        # A server must accept ids only in its own dialects: it may refuse fields of other families. The
        # refusal is judged here, because later requests to this endpoint contain text.
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
