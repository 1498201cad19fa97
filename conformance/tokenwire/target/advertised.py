"""Information that a server reports about itself, in its information endpoints or in the flags of a capture.

The places for each family are data (`spec/servers/<family>.yaml`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args, get_type_hints

from tokenwire.record import Delivery
from tokenwire.spec_files import read_yaml, spec_root
from tokenwire.typed_table import fitting, typed
from tokenwire.wire.exchange import ExchangeHead, RequestHead, Server
from tokenwire.wire.json_pointer import Pointer, find

_LogprobRule = Literal["logprobs-of-the-model", "logprobs-at-the-temperature", "logprobs-as-sampled"]
LOGPROB_RULES: tuple[_LogprobRule, ...] = get_args(_LogprobRule)
"""Rules of output logprobs that a server may report or a user declare (`spec/metadata.md`)."""


CONTEXT_BORDER = 16
"""Positions at the end of a context. Servers differ in how many of them a request may use."""
_SMALLEST_CONTEXT = 512


@dataclass(frozen=True)
class Advertised:
    """Facts that the target reports about itself; nothing here was verified."""

    name: str = ""
    version: str = ""
    model: str = ""
    models: frozenset[str] = frozenset()
    """All names that the server gives to its models."""
    adapters: frozenset[str] = frozenset()
    """The names that belong to adapters."""
    context_length: int | None = None
    vocab_size: int | None = None
    tokenizer: bool | None = None
    """True if the server has a tokenizer; None if it does not report that."""
    usage_in_streams: bool = False
    """True if the server ends every stream with its usage, even if the request did not enable it."""
    delivery: Delivery | None = None
    stream_interval: int | None = None
    max_running_requests: int | None = None
    """The number of requests that run at once. Further requests wait."""
    dp_size: int | None = None
    """The number of data-parallel ranks that share the requests."""
    sampling_backend: str = ""
    weights: str = ""
    """The path of the weights on the server's disk."""
    deterministic: bool = False
    """True if the server reports that results depend only on the request."""
    logprob_rule: _LogprobRule | Literal[""] = ""
    """The distribution that the server's output logprobs refer to, as it reports."""
    sources: tuple[str, ...] = ()
    """The sources of these facts, such as `GET /server_info`."""

    @property
    def context(self) -> int:
        """The advertised context length; without one, the smallest that servers have."""
        return self.context_length or _SMALLEST_CONTEXT

    @property
    def mirrors(self) -> bool:
        """True if the server reports that its sampler mirrors ids into customized_info."""
        return "mirror" in self.sampling_backend


_NAMES = ("models", "adapters")
"""Facts that collect the values of all entries of a list."""
_KINDS = get_type_hints(Advertised) | dict.fromkeys(_NAMES, str)
"""The type of each fact; the names of models and adapters are reported one by one."""
del _KINDS["sources"]


def _fact(name: str) -> str:
    """Return the name of a fact that a server may report. Raises ValueError for any other name."""
    if name not in _KINDS:
        raise ValueError(f"{name!r} is not a fact; known are {', '.join(_KINDS)}")
    return name


_Fact = Annotated[str, _fact]
_Meanings = Mapping[str | bool, str | bool]


def _meant(value: object, meanings: _Meanings | None) -> object:
    """Return the meaning of a value; the value itself if no meaning is listed."""
    if meanings is None:
        return value
    return meanings.get(value) if isinstance(value, (str, bool)) else None


@dataclass(frozen=True)
class _Document:
    """An information endpoint."""

    path: str
    tells: Mapping[_Fact, tuple[Pointer, ...]]
    """The pointers to each fact, most reliable first."""
    means: Mapping[_Fact, _Meanings] = field(default_factory=dict)
    only_with: Mapping[_Fact, Pointer] = field(default_factory=dict)
    """The field that an entry must have to report a fact."""
    items: Pointer | None = None
    """The list whose entries report facts. Names are taken from all entries, everything else from the
    first.
    """
    older_path: str | None = None

    def facts(self, document: object) -> Iterator[tuple[str, object]]:
        """Yield the facts of a document with their raw values."""
        items = [document] if self.items is None else find(document, self.items)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            for fact, pointers in self.tells.items():
                condition = self.only_with.get(fact)
                applies = condition is None or isinstance(find(item, condition), str)
                for pointer in pointers if applies and (index == 0 or fact in _NAMES) else ():
                    yield fact, _meant(find(item, pointer), self.means.get(fact))


@dataclass(frozen=True)
class _Flag:
    """A command-line flag. Its value, presence or absence states a fact."""

    tells: _Fact
    given: str | bool | None = None
    absent: str | bool | None = None
    means: _Meanings | None = None

    def fact(self, name: str, flags: Sequence[str]) -> object:
        """Return the fact that these flags state; None if they state none."""
        if self.given is not None:
            return self.given if name in flags else self.absent
        both = (flag.partition("=")[2] for flag in flags if flag.startswith(f"{name}="))
        value = next((value for flag, value in pairwise(flags) if flag == name), next(both, None))
        return int(value) if value and value.isdecimal() else _meant(value, self.means)


@dataclass(frozen=True)
class _Family:
    """The places where servers of one family report about themselves."""

    family: str
    documents: tuple[_Document, ...] = ()
    flags: Mapping[str, _Flag] = field(default_factory=dict)
    clears_refused_after_s: float = 0.0
    """Seconds until the server forgets a refused request id; 0 if it does so at once."""
    promises: tuple[str, ...] = ()
    """Capabilities that the documentation of the family promises or excludes for all servers."""


@cache
def load_families() -> tuple[_Family, ...]:
    """Load all tables of `spec/servers/`. Raises ValueError for a fact that servers cannot report."""
    paths = sorted((spec_root() / "servers").glob("*.yaml"))
    return tuple(typed(_Family, read_yaml(path), str(path)) for path in paths)


@cache
def clears_refused_after_s(family: str) -> float:
    """Return the seconds until a family forgets a refused request id; 0 for other families."""
    return next((known.clears_refused_after_s for known in load_families() if known.family == family), 0.0)


@cache
def promises(family: str) -> tuple[str, ...]:
    """Return the capabilities that every server of a family either has or refuses."""
    return next((known.promises for known in load_families() if known.family == family), ())


@cache
def _documents() -> dict[str, _Document]:
    """Return the information endpoints by all of their paths, older paths last."""
    every = [document for family in load_families() for document in family.documents]
    older = {document.older_path: document for document in every if document.older_path}
    return {document.path: document for document in every} | older


def information_paths() -> tuple[str, ...]:
    """Return the paths of information endpoints, including older names that some gateways and servers use."""
    return tuple(_documents())


def information_path(request: RequestHead) -> str | None:
    """Return the present name of the information endpoint of a request; None for any other request."""
    document = _documents().get(request.path)
    return document.path if document is not None and request.method == "GET" else None


def _read(exchange: ExchangeHead) -> Mapping[str, Any]:
    if exchange.status != 200:
        return {}
    try:
        value = json.loads(exchange.load().body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _believed(fact: str, value: object) -> Any:
    """Return the reported value of a fact; None if the value is not legal."""
    try:
        fitted = fitting(_KINDS[fact], value, fact)
    except ValueError:
        return None
    return None if fitted == "" or (type(fitted) is int and fitted <= 0) else fitted


def advertised_by(exchanges: Iterable[ExchangeHead]) -> Advertised:
    """Collect the facts of information endpoints, and those of the capture's flags for facts not reported
    there.

    Flags are interpreted for the family that the capture names, or for all families. Exchanges with other
    endpoints contribute only their `server`.
    """
    found: dict[str, Mapping[str, Any]] = {}
    server = Server()
    for exchange in exchanges:
        path = information_path(exchange.request)
        if path is not None and path not in found and (document := _read(exchange)):
            found[path] = document
        if not server.name and not server.flags:
            server = exchange.server
    families, flags = load_families(), server.flags
    named = [family for family in families if family.family == server.name]
    documents = (part for family in families for part in family.documents if part.path in found)
    flagged = ((flag, name) for family in named or families if flags for name, flag in family.flags.items())
    values: defaultdict[str, list[Any]] = defaultdict(list)
    for fact, value in (
        ("name", server.name),
        *(fact for part in documents for fact in part.facts(found[part.path])),
        *((flag.tells, flag.fact(name, flags)) for flag, name in flagged),
        ("version", server.version),
    ):
        if (believed := _believed(fact, value)) is not None:
            values[fact].append(believed)
    sources = (*(f"GET {path}" for path in found), *(("the flags of the capture",) if flags else ()))
    facts: dict[str, Any] = {
        fact: frozenset(found) if fact in _NAMES else found[0] for fact, found in values.items()
    }
    return Advertised(**facts, sources=sources)
