"""Control endpoints of server families: aborts, the prefix cache, the load, stored responses, cuts, and steps
around an answer.

Their paths and fields are data (`spec/control/<family>.yaml`). An exchange with a control endpoint is parsed
into a `ControlCall`. Checks receive these calls in addition to the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from tokenwire.dialects.decisions import decision_paths
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.wire import strict_json
from tokenwire.wire.exchange import Ending, ExchangeHead, HttpRequest
from tokenwire.wire.json_pointer import ABSENT, Keys, find, parse, put

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?[ \t]+(\S+)", re.MULTILINE)
"""Matches a line of Prometheus' text format: the name and the value of a metric."""


class Action(StrEnum):
    """The purposes of control requests."""

    ABORT = "abort"
    FLUSH = "flush"
    LOAD = "load"
    PAUSE = "pause"
    CONTINUE = "continue"
    PAUSED = "paused"
    """Asks if the server is paused."""
    OPEN = "open_session"
    CLOSE = "close_session"
    UPDATE = "update_of_weights"
    RENAME = "rename"
    """Renames the version of the weights. The weights do not change."""
    DECIDE = "decide"
    """Answers questions with probabilities (`spec/decisions.yaml`)."""
    BEGIN = "begin"
    """Begins a response in the background. The answer comes before the response is complete."""
    RETRIEVE = "retrieve"
    CANCEL = "cancel"
    DELETE = "delete"
    CUT = "cut"
    """Cuts the next stream of the worker behind a gateway."""
    SPARE = "spare"
    RENDER = "render"
    """Returns the request that runs the ids of a chat request."""
    DERENDER = "derender"
    """Returns the chat answer with given output ids, or one event of it."""
    RENDER_COMPLETIONS = "render-completions"
    DERENDER_COMPLETIONS = "derender-completions"
    BATCH = "batch"
    """Answers several conversations."""
    COUNT = "count"
    """Counts the tokens of a prompt."""


_WITH_ID = frozenset({Action.RETRIEVE, Action.CANCEL, Action.DELETE})
"""Actions on a stored response, whose id is a part of the path."""
_ID = "{id}"
UNDER_WAY = ("queued", "in_progress")
"""The statuses of a stored response that has not ended."""


@dataclass(frozen=True)
class Load:
    """The load that a server reports."""

    live: int
    """The number of requests that are running or waiting."""
    used_tokens: int | None = None
    """The number of KV cache positions that these requests use; None if the server does not report it."""


@dataclass(frozen=True)
class ControlCall:
    """One exchange with a control endpoint."""

    exchange: ExchangeHead
    action: Action
    ids: frozenset[str] = frozenset()
    """The ids of the requests to abort, or the id of the stored response."""
    everything: bool = False
    """True if the call aborts all requests: an abort, a pause or an update of the weights."""
    effect: str = ""
    """The effect of a pause on running requests: `ends`, `retracts` or `keeps`; empty for other calls."""
    flushes: bool = False
    """True if the call clears the prefix cache: a flush, or an update of the weights that does not rule this
    out.
    """
    version: str = ""
    """The new version of the weights in an update or a renaming; empty if the body does not name it."""
    load: Load | None = None
    """The load in the answer; None if it cannot be parsed."""
    appends: bool = False
    """True if the call opens a session in which each turn continues the latest one."""
    lacks_ids: bool = False
    """True if an abort has no ids although its family requires them."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Names of parts of the request and of the answer, each with its pointer."""

    def sent(self, name: str) -> Any:
        """Return a part of the request by its name; None if it is absent."""
        return part_of(self.exchange.load().request.body, self.places[name])

    def returned(self, name: str) -> Any:
        """Return a part of the answer by its name; None if it is absent."""
        return part_of(self.content, self.places[name])

    @property
    def aborts(self) -> bool:
        """True if the call aborts at least one request."""
        return self.everything or self.action is Action.ABORT

    @property
    def content(self) -> Any:
        """Return the JSON value in the answer; None if the answer is not JSON."""
        try:
            return strict_json.loads(self.exchange.load().body.decode(errors="replace"))
        except strict_json.StrictJsonError:
            return None

    @property
    def document(self) -> Mapping[str, Any]:
        """Return the JSON object in the answer; empty if the answer is not an object."""
        found = self.content
        return found if isinstance(found, dict) else {}

    @property
    def done(self) -> bool:
        """True if the answer has a status of success (2xx)."""
        status = self.exchange.status
        return self.exchange.ending is Ending.COMPLETE and status is not None and 200 <= status < 300

    @property
    def refused(self) -> bool:
        """True if the answer has a status of refusal (4xx)."""
        return self.exchange.status is not None and 400 <= self.exchange.status < 500


def part_of(document: object, pointer: str) -> Any:
    """Return a part of a JSON value by its pointer; None if it is absent."""
    found = find(document, parse(pointer))
    return None if found is ABSENT else found


@dataclass(frozen=True)
class _LoadEndpoint:
    """An endpoint that reports the load, and the names of its numbers."""

    path: str
    items: Keys | None
    live: tuple[str, ...]
    used_tokens: tuple[str, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _LoadEndpoint:
        items = parse(row["items"]) if "items" in row else None
        return cls(row["path"], items, tuple(row["live"]), tuple(row.get("used_tokens", ())))

    def read(self, exchange: ExchangeHead) -> Load | None:
        """Return the load in an answer; None if it cannot be parsed."""
        if exchange.status != 200 or exchange.ending is not Ending.COMPLETE:
            return None
        text = exchange.load().body.decode(errors="replace")
        samples = list(_members_of_items(text, self.items) if self.items is not None else _exposed(text))
        live = _total(samples, self.live)
        return None if live is None else Load(live, _total(samples, self.used_tokens))


def _members_of_items(text: str, items: Keys) -> Iterator[tuple[str, object]]:
    """Yield each member of the objects in a JSON list: its pointer within the object, and its value."""
    try:
        listed = find(strict_json.loads(text), items)
    except strict_json.StrictJsonError:
        return
    for item in listed if isinstance(listed, list) else ():
        for name, value in item.items() if isinstance(item, dict) else ():
            yield f"/{name}", value


def _exposed(text: str) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each metric in Prometheus' text format."""
    for name, value in _SAMPLE.findall(text):
        try:
            yield name, float(value)
        except ValueError:
            continue


def _total(samples: Iterable[tuple[str, object]], names: tuple[str, ...]) -> int | None:
    """Return the sum of the numbers with these names; None if a name is missing."""
    found = [(name, value) for name, value in samples if name in names]
    if not names or {name for name, _ in found} != set(names):
        return None
    # Prometheus writes floats, including NaN and infinity. Counts of requests and tokens are whole numbers.
    numbers = [value for _, value in found if isinstance(value, (int, float)) and value == value // 1]
    return int(sum(numbers)) if len(numbers) == len(found) else None


@dataclass(frozen=True)
class Control:
    """The control endpoints of one server family, from its table."""

    family: str
    table: Mapping[str, Any]

    @property
    def load_requests(self) -> tuple[HttpRequest, ...]:
        """Return the requests that may report the load, the most reliable endpoint first."""
        return tuple(HttpRequest("GET", row["path"]) for row in self.table.get("load", ()))

    def idle(self, request: HttpRequest) -> bytes | None:
        """Return the answer of an idle server to a request for the load; None for other requests."""
        row = next((row for row in self.table.get("load", ()) if row["path"] == request.path), None)
        if row is None:
            return None
        names = [*row["live"], *row.get("used_tokens", ())]
        if "items" not in row:
            return "".join(f"{name} 0\n" for name in names).encode()
        item: dict[str, Any] = {}
        for name in names:
            put(item, parse(name), 0)
        document: dict[str, Any] = {}
        put(document, parse("/listed" + row["items"]), [item])
        return json.dumps(document["listed"]).encode()

    def plain_request(self, action: Action) -> HttpRequest | None:
        """Return a request without parameters, such as a flush; None if the family has none."""
        row = self.table.get(action)
        return HttpRequest(row["method"], row["path"], row.get("body")) if row else None

    def request_of(self, action: Action, parts: Mapping[str, Any]) -> HttpRequest | None:
        """Return a request with these parts, by the names of their places; None if the family has none.

        A name that has no place in the table is a field of the body.
        """
        row = self.table.get(action)
        if row is None:
            return None
        body: dict[str, Any] = {}
        for name, value in parts.items():
            *keys, last = parse(row.get("places", {}).get(name, f"/{name}"))
            # A place that ends with 0 is the only entry of a list.
            put(body, (*keys,) if last == "0" else (*keys, last), [value] if last == "0" else value)
        return HttpRequest(row["method"], row["path"], body)

    def update_request(self, weights: str) -> HttpRequest | None:
        """Return a request that updates the weights and clears the cache; None if the family has none."""
        row = self.table.get(Action.UPDATE)
        if row is None:
            return None
        body: dict[str, Any] = {}
        put(body, parse(row["weights"]), weights)
        put(body, parse(row["flushes"]), True)
        return HttpRequest(row["method"], row["paths"][0], body)

    def is_asked(self, action: Action, declared: Collection[str]) -> bool:
        """True if the family has an action that is sent to every server, or that this server declares."""
        row = self.table.get(action)
        return row is not None and row.get("declared") in (None, *declared)

    def rename_request(self, version: str) -> HttpRequest | None:
        """Return a request that names the weights, while requests go on; None if the family has none."""
        row = self.table.get(Action.RENAME)
        if row is None:
            return None
        body = dict(row.get("body", {}))
        put(body, parse(row["version"]), version)
        return HttpRequest(row["method"], row["path"], body)

    def pause_request(self, effect: str) -> HttpRequest | None:
        """Return a request for a pause with this effect; None if the family has no such mode."""
        modes = self.table.get("pause", {}).get("modes", {})
        name = next((mode for mode, does in modes.items() if does == effect), None)
        return None if name is None else self.pause_in_mode(name)

    def pause_in_mode(self, name: str) -> HttpRequest | None:
        """Return a request for a pause in a mode, known or not; None if the family has no pause."""
        row = self.table.get("pause")
        if row is None:
            return None
        if "mode" not in row:
            return HttpRequest(row["method"], f"{row['path']}?{row['query']}={name}")
        body: dict[str, Any] = {}
        put(body, parse(row["mode"]), name)
        return HttpRequest(row["method"], row["path"], body)

    def response_request(self, action: Action, name: str) -> HttpRequest | None:
        """Return a request about the stored response with this id; None if the family has none."""
        row = self.table.get(action)
        return HttpRequest(row["method"], row["path"].replace(_ID, quote(name, safe=""))) if row else None

    def session_request(self, action: Action, session: str, *, appends: bool = False) -> HttpRequest | None:
        """Return the request that opens or closes a session; None if the family has none.

        `appends`: open one in which each turn continues the latest one.
        """
        row = self.table.get(action)
        if row is None:
            return None
        body = dict(row.get("body", {}))
        put(body, parse(row["id"]), session)
        if appends:
            put(body, parse(row["appends"]), True)
        return HttpRequest(row["method"], row["path"], body)

    @property
    def abort_of_everything(self) -> HttpRequest | None:
        """Return a request that aborts all requests; None if the family has none."""
        row = self.table.get("abort")
        if row is None or "everything" not in row:
            return None
        body: dict[str, Any] = {}
        put(body, parse(row["everything"]), True)
        return HttpRequest(row["method"], row["path"], body)

    @property
    def abort_without_ids(self) -> HttpRequest | None:
        """Return an abort without ids; None if the family has none, or does not require ids."""
        row = self.table.get("abort", {})
        return HttpRequest(row["method"], row["path"], {}) if row.get("required") else None

    def abort_request(self, request_id: str, endpoint: str) -> HttpRequest | None:
        """Return a request that aborts a request at an endpoint by its id; None if the family has none."""
        row = self.table.get("abort")
        if row is None or endpoint not in row["endpoints"]:
            return None
        body: dict[str, Any] = {}
        if "ids" in row:
            put(body, parse(row["ids"]), [request_id])
        else:
            put(body, parse(row["id"]), request_id)
        return HttpRequest(row["method"], row["path"], body)

    def read(self, exchange: ExchangeHead) -> ControlCall | None:
        """Parse an exchange with a control endpoint of this family; None for other exchanges."""
        if exchange.request.method == "POST" and exchange.request.path in decision_paths():
            return ControlCall(exchange, Action.DECIDE)
        method, (path, _, query) = exchange.request.method, exchange.request.path.partition("?")
        for row in self.table.get("load", ()):
            if (method, path) == ("GET", row["path"]):
                return ControlCall(exchange, Action.LOAD, load=_LoadEndpoint.of(row).read(exchange))
        for action in _WITH_ID:
            row = self.table.get(action)
            if row is not None and method == row["method"] and (name := _id_in(row["path"], path)):
                return ControlCall(exchange, action, frozenset({name}))
        for action in (kind for kind in Action if kind not in {Action.LOAD, Action.UPDATE, *_WITH_ID}):
            row = self.table.get(action)
            if row is not None and (method, path) == (row["method"], row["path"]):
                if not _is_meant(row, exchange):
                    continue
                body = exchange.load().request.body
                effect = _effect(row, body, query) if action is Action.PAUSE else ""
                ids, everything = _named(row, body)
                # A pause that ends running requests aborts all requests (spec/rollouts.md).
                everything = everything or effect == "ends"
                appends = "appends" in row and find(body, parse(row["appends"])) is True
                version = find(body, parse(row["version"])) if "version" in row else ""
                return ControlCall(
                    exchange,
                    action,
                    ids,
                    everything,
                    effect,
                    flushes=action is Action.FLUSH,
                    version=version if isinstance(version, str) else "",
                    appends=appends,
                    lacks_ids=row.get("required", False) and _lacks_ids(row, body),
                    places=row.get("places", {}),
                )
        row = self.table.get(Action.UPDATE)
        if row is not None and method == row["method"] and path in row["paths"]:
            body = exchange.load().request.body
            version, flushes = (find(body, parse(row[name])) for name in ("version", "flushes"))
            named_version = version if isinstance(version, str) else ""
            ends = _named(row, body)[1]
            # An update clears the cache unless its body rules this out (spec/invariance.md).
            return ControlCall(
                exchange, Action.UPDATE, everything=ends, flushes=flushes is not False, version=named_version
            )
        return None


def _id_in(pattern: str, path: str) -> str:
    """Return the id in a path; empty if the path does not match the pattern."""
    head, _, tail = pattern.partition(_ID)
    name = path.removeprefix(head).removesuffix(tail)
    return unquote(name) if path == f"{head}{name}{tail}" and "/" not in name else ""


def _is_meant(row: Mapping[str, Any], exchange: ExchangeHead) -> bool:
    """True if the body makes this request a control call. Some endpoints serve ordinary requests as well."""
    if "if" not in row:
        return True
    body = exchange.load().request.body
    has = all(find(body, parse(place)) == value for place, value in row["if"].items())
    return has and not any(find(body, parse(place)) == value for place, value in row["unless"].items())


def _named(row: Mapping[str, Any], body: object) -> tuple[frozenset[str], bool]:
    """Return the ids of the requests to abort, and True if all requests are to be aborted."""
    named = [find(body, parse(row[name])) for name in ("id", "ids") if name in row]
    values = [name for value in named for name in (value if isinstance(value, list) else [value])]
    everything = "everything" in row and find(body, parse(row["everything"])) not in (ABSENT, None, False)
    return frozenset(value for value in values if isinstance(value, str)), everything


def _lacks_ids(row: Mapping[str, Any], body: object) -> bool:
    """True if the body has no field for the ids of the requests to abort."""
    return all(find(body, parse(row[name])) in (ABSENT, None) for name in ("id", "ids") if name in row)


def _effect(row: Mapping[str, Any], body: object, query: str) -> str:
    """Return the effect of a pause on running requests, according to the mode in its body or query."""
    if "mode" in row:
        named = find(body, parse(row["mode"]))
    else:
        named = next(iter(parse_qs(query).get(row["query"], ())), ABSENT)
    mode = row["default"] if named in (ABSENT, None) else named
    return str(row["modes"].get(mode, "")) if isinstance(mode, str) else ""


@cache
def load_controls() -> dict[str, Control]:
    """Return the control endpoints of all server families, by family."""
    tables = map(read_yaml, sorted((spec_root() / "control").glob("*.yaml")))
    return {table["family"]: Control(table["family"], table) for table in tables}


def read_call(exchange: ExchangeHead) -> ControlCall | None:
    """Parse an exchange with a control endpoint of any family; None for other exchanges.

    Families share paths, such as /metrics. The family that can parse the load is chosen.
    """
    calls = [call for control in load_controls().values() if (call := control.read(exchange)) is not None]
    return next((call for call in calls if call.load is not None), next(iter(calls), None))


def is_begin(exchange: ExchangeHead) -> bool:
    """True if a request begins a response in the background. Its answer contains no output."""
    request = exchange.request
    named = (request.method, request.path.partition("?")[0])
    rows = (control.table.get(Action.BEGIN) for control in load_controls().values())
    return any(
        row is not None and named == (row["method"], row["path"]) and _is_meant(row, exchange) for row in rows
    )
