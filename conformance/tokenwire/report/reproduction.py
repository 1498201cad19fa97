"""Command lines that reproduce a failure: `curl` sends the request, `tokenwire` repeats the verdict."""

from __future__ import annotations

import json
import re
import shlex

from tokenwire.judging.judge import Judgement
from tokenwire.judging.observing import NO_SCENARIO
from tokenwire.report.subject import ANSWER, ASKED_ANYWAY, EXPLORATION, Subject
from tokenwire.target.determinism import PROBE
from tokenwire.wire.exchange import Exchange
from tokenwire.wire.redaction import REDACTED

_LONGEST = 1_200
"""The longest body in a command line, in characters. A body of this length fills 15 lines of 80 columns."""
_REPEATED = re.compile(rb"(.{1,16}?)\1{15,}", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_CONTENT_TYPE = "content-type"
_OF_THE_CLIENT = re.compile(
    "host|connection|content-length|user-agent|accept(-.*)?|transfer-encoding|x-stainless-.*", re.IGNORECASE
)
"""Matches headers that a client writes by itself, and that do not change the answer."""


def body_of(exchange: Exchange) -> bytes | None:
    """Return the body of a request as bytes; None if it has none."""
    request = exchange.request
    if request.raw_body is not None or request.body is None:
        return request.raw_body
    return json.dumps(request.body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def body_file(exchange: Exchange) -> str:
    """Return the file name for a body that is too long for a command line; empty for a shorter body."""
    body = body_of(exchange)
    if body is None or _inline(body):
        return ""
    return f"{_UNSAFE.sub('-', exchange.name)}.body"


def _inline(body: bytes) -> str:
    """Return a shell expression for the body.

    The expression is the text itself, or a program that prints the text. Return an empty text if both are too
    long.
    """
    if len(body) <= _LONGEST and _is_text(body):
        return shlex.quote(body.decode())
    program = f"import sys; sys.stdout.buffer.write({_expression(body)})"
    return f"python3 -c {shlex.quote(program)}" if len(program) <= _LONGEST else ""


def curl(exchange: Exchange, url: str = "", bodies: str = "") -> str:
    """Return a `curl` command that sends the request again.

    The command uses `$URL` if the server is unknown. A long or binary body is printed by a Python program. If
    this program is too long as well, the body is a file in the folder `bodies`. The name `BODY` in the
    command means that there is no such folder.
    """
    request = exchange.request
    address = f"{url.rstrip('/')}{request.path}" if url else f'"$URL"{request.path}'
    words = ["curl", "-sN", "-X", request.method, shlex.quote(address) if url else address]
    for name, text in request.headers:
        if name.lower() == "authorization" and text == REDACTED:
            words += ["-H", f'"{name}: Bearer $KEY"']
        elif not _OF_THE_CLIENT.fullmatch(name):
            words += ["-H", shlex.quote(f"{name}: {text}")]
    body = body_of(exchange)
    if body is None:
        return " ".join(words)
    if not any(name.lower() == _CONTENT_TYPE for name, _ in request.headers):
        words += ["-H", "'Content-Type: application/json'"]
    words.append("--data-binary")
    inline = _inline(body)
    if inline.startswith("python3"):
        return " ".join([inline, "|", *words, "@-"])
    if inline:
        return " ".join([*words, inline])
    if bodies:
        return " ".join([*words, shlex.quote(f"@{bodies}/{body_file(exchange)}")])
    return " ".join([*words, "@BODY", f" # BODY: {len(body):,} bytes; --report writes them to a file"])


def _is_text(body: bytes) -> bool:
    """True if a shell can pass the bytes as an argument without changes."""
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False


def _expression(body: bytes) -> str:
    """Return a Python expression for the bytes. Repetitions are written as products."""
    parts, done = [], 0
    for found in _REPEATED.finditer(body):
        parts += [repr(body[done : found.start()])] if found.start() > done else []
        parts.append(f"{found[1]!r}*{len(found[0]) // len(found[1])}")
        done = found.end()
    return " + ".join([*parts, repr(body[done:])] if done < len(body) or not parts else parts)


def again(judgement: Judgement, subject: Subject) -> str:
    """Return a command line that repeats the verdict, from the recording if there is one."""
    if subject.again:
        answer = judgement.violations[0].place.exchange if judgement.violations else ""
        return shlex.join(answer if word == ANSWER else word for word in subject.again)
    only = ["--requirement", judgement.requirement.id]
    if subject.captures or subject.recorded:
        where = subject.recorded or judgement.run.name or subject.captures[0]
        return shlex.join(["tokenwire", "replay", where, *only, *subject.judged_with])
    if judgement.scenario == EXPLORATION:
        scenario = [*subject.explored]
    elif judgement.scenario == NO_SCENARIO:
        scenario = []
    else:
        scenario = ["--scenario", PROBE if judgement.scenario in ASKED_ANYWAY else judgement.scenario]
    how = [*subject.asked_with, *subject.judged_with]
    return shlex.join(["tokenwire", "check", "--target", subject.url, *how, *only, *scenario])
