"""Scenario files: requests as data, in YAML.

    scenario: sixth-token
    provokes: Streams that lose their sixth token.
    asks:                        # in the specification's field names, for every endpoint that supports them
      stream: {input_ids: [[65]], max_new_tokens: 8, stream: true}
    requests:                    # sent unchanged, to the endpoint that they name
      as-found: {path: /generate, body: {input_ids: [65], stream: true}}

`tokenwire check --scenario-file FILE` sends the requests. The page of `tokenwire inspect` writes such a file.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tokenwire.ask import Ask
from tokenwire.asking.scenario import Asks, Conversation, load_scenarios, scenario
from tokenwire.dialects.recognition import dialects_at
from tokenwire.disk import system_says
from tokenwire.foreign_files import read_foreign_yaml
from tokenwire.typed_table import typed
from tokenwire.usage_error import UsageError
from tokenwire.wire.exchange import HttpRequest

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""Matches a name that is safe as a part of file names."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class _Sent:
    """A request that is sent unchanged."""

    path: str
    body: Any = None
    method: str = "POST"
    text: str | None = None
    """The body as text if it is not JSON."""
    base64: str | None = None
    """The body in base64 if it is neither JSON nor text."""

    @property
    def request(self) -> HttpRequest:
        raw = b64decode(self.base64) if self.base64 else self.text.encode() if self.text else None
        return HttpRequest(self.method, self.path, self.body, raw)


@dataclass(frozen=True)
class _Table:
    scenario: str
    provokes: str
    asks: Mapping[str, Ask] = field(default_factory=dict)
    requests: Mapping[str, _Sent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (self.scenario, *self.asks, *self.requests):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a name; write small letters, digits and hyphens")


@cache
def load_scenario_file(path: str) -> str:
    """Load a file and register its scenario; return the name. Raises UsageError for an invalid file."""
    try:
        table = typed(_Table, read_foreign_yaml(Path(path)), "it")
    except OSError as error:
        raise UsageError(f"--scenario-file {path} cannot be read: {system_says(error)}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"--scenario-file {path} is not a scenario: {error}") from error
    if not (table.asks or table.requests):
        raise UsageError(f"--scenario-file {path} has no requests; add a table `asks` or `requests`")
    requests = {label: sent.request for label, sent in table.requests.items()}
    for label, request in requests.items():
        if not dialects_at(request):
            raise UsageError(
                f"--scenario-file {path}: no dialect has {request.method} {request.path}, which {label!r} "
                "needs; `tokenwire list dialects` lists all"
            )
    if table.scenario in load_scenarios():
        raise UsageError(f"--scenario-file {path}: scenario {table.scenario!r} exists; choose another name")

    def steps(talk: Conversation) -> Iterator[Asks]:
        here = {label: request for label, request in requests.items() if request in talk.dialect.endpoint}
        yield {**table.asks, **here}

    steps.__name__, steps.__doc__ = table.scenario, table.provokes
    scenario()(steps)
    return table.scenario


def as_scenario_file(name: str, provokes: str, requests: Mapping[str, HttpRequest]) -> str:
    """Return the YAML of a scenario file for these requests, by label."""
    sent = {
        label: {"method": request.method, "path": request.path, **_body(request)}
        for label, request in requests.items()
    }
    table = {"scenario": name, "provokes": provokes, "requests": sent}
    return yaml.safe_dump(table, sort_keys=False, allow_unicode=True, width=110)


def _body(request: HttpRequest) -> dict[str, Any]:
    raw = request.raw_body
    if raw is None and not _SURROGATE.search(json.dumps(request.body, ensure_ascii=False)):
        return {} if request.body is None else {"body": request.body}
    raw = json.dumps(request.body).encode() if raw is None else raw  # YAML cannot express lone surrogates
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(raw).decode()}
