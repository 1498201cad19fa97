"""The two lines that bring a failure back: `curl` for the request, `tokenwire` for the verdict."""

from __future__ import annotations

import json
import shlex

from tokenwire.exchange import Exchange
from tokenwire.judge import NO_SCENARIO, Judgement
from tokenwire.report.subject import Subject


def curl(exchange: Exchange, url: str = "") -> str:
    """A command line that sends the request again; `$URL` stands for the server where none is known."""
    request = exchange.request
    address = f"{url.rstrip('/')}{request.path}" if url else f'"$URL"{request.path}'
    words = ["curl", "-sN", "-X", request.method, shlex.quote(address) if url else address]
    if request.raw_body is not None:
        body = request.raw_body.decode("utf-8", "backslashreplace")
    elif request.body is not None:
        body = json.dumps(request.body, ensure_ascii=False, separators=(",", ":"))
    else:
        return " ".join(words)
    return " ".join([*words, "-H", "'Content-Type: application/json'", "--data-binary", shlex.quote(body)])


def again(judgement: Judgement, subject: Subject) -> str:
    """A command line that gives the verdict again: from the recorded bytes where there are any."""
    only = ["--requirement", judgement.requirement.id]
    if subject.captures:
        return shlex.join(["tokenwire", "replay", judgement.run.name or subject.captures[0], *only])
    if subject.recorded:
        return shlex.join(["tokenwire", "replay", subject.recorded, *only])
    scenario = [] if judgement.scenario == NO_SCENARIO else ["--scenario", judgement.scenario]
    return shlex.join(
        ["tokenwire", "check", "--target", subject.url, *only, *scenario, "--record", "recorded"]
    )
