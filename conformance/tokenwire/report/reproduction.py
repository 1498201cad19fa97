"""The two lines that bring a failure back: `curl` for the request, `tokenwire` for the verdict."""

from __future__ import annotations

import json
import shlex

from tokenwire.judging.judge import NO_SCENARIO, Judgement
from tokenwire.report.subject import EXPLORATION, Subject
from tokenwire.wire.exchange import Exchange


def curl(exchange: Exchange, url: str = "") -> str:
    """A command line that sends the request again; `$URL` stands for the server where none is known."""
    request = exchange.request
    address = f"{url.rstrip('/')}{request.path}" if url else f'"$URL"{request.path}'
    words = ["curl", "-sN", "-X", request.method, shlex.quote(address) if url else address]
    for header in _sent_headers(exchange):
        words += ["-H", shlex.quote(header)]
    if request.raw_body is not None:
        body = request.raw_body.decode("utf-8", "backslashreplace")
    elif request.body is not None:
        body = json.dumps(request.body, ensure_ascii=False, separators=(",", ":"))
    else:
        return " ".join(words)
    return " ".join([*words, "-H", "'Content-Type: application/json'", "--data-binary", shlex.quote(body)])


def _sent_headers(exchange: Exchange) -> list[str]:
    """The headers that the caller added; credentials stand there as they do on disk, taken out."""
    return [f"{name}: {value}" for name, value in exchange.request.headers]


def again(judgement: Judgement, subject: Subject) -> str:
    """A command line that gives the verdict again: from the recorded bytes where there are any."""
    only = ["--requirement", judgement.requirement.id]
    if subject.captures:
        return shlex.join(["tokenwire", "replay", judgement.run.name or subject.captures[0], *only])
    if subject.recorded:
        return shlex.join(["tokenwire", "replay", subject.recorded, *only])
    scenario = [] if judgement.scenario == NO_SCENARIO else ["--scenario", judgement.scenario]
    if judgement.scenario == EXPLORATION:
        scenario = [*subject.explored]
    shown = judgement.violations[0] if judgement.violations else judgement.witness
    stream = judgement.run.by_exchange.get(shown.place.exchange) if shown else None
    headers = (
        [word for header in _sent_headers(stream.exchange) for word in ("--header", header)] if stream else []
    )
    return shlex.join(
        ["tokenwire", "check", "--target", subject.url, *headers, *only, *scenario, "--record", "recorded"]
    )
