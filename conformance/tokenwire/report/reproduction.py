"""The two lines that bring a failure back: `curl` for the request, `tokenwire` for the verdict."""

from __future__ import annotations

import json
import re
import shlex

from tokenwire.judging.judge import NO_SCENARIO, Judgement
from tokenwire.report.subject import EXPLORATION, Subject
from tokenwire.wire.exchange import Exchange

_LONGEST = 2_000
"""Characters of a body that a reader is shown."""
_REPEATED = re.compile(rb"(.{1,16}?)\1{15,}", re.DOTALL)
_CONTENT_TYPE = "content-type"


def curl(exchange: Exchange, url: str = "") -> str:
    """A command line that sends the request again; `$URL` stands for the server where none is known.

    A body that is long, or no text, is made by Python; one that takes a long program stands as BODY.
    """
    request = exchange.request
    address = f"{url.rstrip('/')}{request.path}" if url else f'"$URL"{request.path}'
    words = ["curl", "-sN", "-X", request.method, shlex.quote(address) if url else address]
    for header in _sent_headers(exchange):
        words += ["-H", shlex.quote(header)]
    if request.raw_body is not None:
        body = request.raw_body
    elif request.body is not None:
        body = json.dumps(request.body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    else:
        return " ".join(words)
    if not any(name.lower() == _CONTENT_TYPE for name, _ in request.headers):
        words += ["-H", "'Content-Type: application/json'"]
    words.append("--data-binary")
    if len(body) <= _LONGEST and _is_text(body):
        return " ".join([*words, shlex.quote(body.decode())])
    program = f"import sys; sys.stdout.buffer.write({_expression(body)})"
    if len(program) > _LONGEST:
        return " ".join([*words, "@BODY", f" # BODY: {len(body):,} bytes; --record keeps them"])
    return " ".join(["python3", "-c", shlex.quote(program), "|", *words, "@-"])


def _is_text(body: bytes) -> bool:
    """Whether a shell passes bytes on as they are."""
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False


def _expression(body: bytes) -> str:
    """Bytes as a Python expression, what is repeated in them said once."""
    parts, done = [], 0
    for found in _REPEATED.finditer(body):
        parts += [repr(body[done : found.start()])] if found.start() > done else []
        parts.append(f"{found[1]!r}*{len(found[0]) // len(found[1])}")
        done = found.end()
    return " + ".join([*parts, repr(body[done:])] if done < len(body) or not parts else parts)


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
    # The media type is the scenario's own.
    sent = (
        [one for one in _sent_headers(stream.exchange) if not one.lower().startswith(_CONTENT_TYPE)]
        if stream
        else []
    )
    headers = [word for header in sent for word in ("--header", header)]
    return shlex.join(["tokenwire", "check", "--target", subject.url, *headers, *only, *scenario])
