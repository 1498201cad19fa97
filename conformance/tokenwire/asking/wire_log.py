"""The wire log: one line for each exchange."""

from __future__ import annotations

import json

from tokenwire.report.wording import cut
from tokenwire.wire.exchange import Exchange, HttpRequest

_LONGEST_BODY = 120


def _body(request: HttpRequest) -> str:
    """Return the body of a request, shortened for a log line."""
    if request.raw_body is not None:
        return cut(ascii(request.raw_body)[2:-1], _LONGEST_BODY)
    return cut(json.dumps(request.body), _LONGEST_BODY) if request.body is not None else ""


def wire_line(exchange: Exchange) -> str:
    """Describe an exchange in one printable line: time, request and response."""
    request = exchange.request
    sent = " ".join(filter(None, (exchange.started, request.method, request.path, _body(request))))
    status = "no status" if exchange.status is None else exchange.status
    came = f"{len(exchange.body)} B in {len(exchange.reads)} reads, {exchange.duration:.3f} s"
    line = f"{sent} -> {status} {exchange.ending}, {came}, {exchange.name}"
    return line if line.isprintable() else ascii(line)[1:-1]
