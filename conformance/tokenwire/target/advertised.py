"""Facts that a server reports about itself, at its information endpoints or by the flags in a capture.

The tables `spec/servers/<family>.yaml` define where the servers of a family report each fact.
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
"""Rules of output logprobs that a server may report, or that a user may declare (`spec/metadata.md`)."""


CONTEXT_BORDER = 16
"""A number of positions at the end of the context. Servers differ in how many of them a request may use."""
_SMALLEST_CONTEXT = 512


@dataclass(frozen=True)
class Advertised:
    """Facts that the server reports about itself. They are not verified."""

    name: str = ""
    version: str = ""
    model: str = ""
    models: frozenset[str] = frozenset()
    """All names that the server gives to its models."""
    adapters: frozenset[str] = frozenset()
    """The names in `models` that belong to adapters."""
    context_length: int | None = None
    vocab_size: int | None = None
    tokenizer: bool | None = None
    """True if the server has a tokenizer. None if it does not report this."""
    usage_in_streams: bool = False
    """True if the server ends every stream with its usage, even if the request does not enable it."""
    delivery: Delivery | None = None
    stream_interval: int | None = None
    max_running_requests: int | None = None
    """The maximum number of requests that run at the same time. Further requests wait."""
    dp_size: int | None = None
    """The number of data-parallel ranks among which the requests are divided."""
    sampling_backend: str = ""
    weights: str = ""
    """The path of the weights on the server's disk."""
    deterministic: bool = False
    """True if the server reports that an answer depends only on its request."""
    logprob_rule: _LogprobRule | Literal[""] = ""
    """The distribution that the server's output logprobs describe, as the server reports it."""
    sources: tuple[str, ...] = ()
    """The sources of these facts, such as `GET /server_info`."""

    @property
    def context(self) -> int:
        """The reported context length, or the smallest length of known servers if it is not reported."""
        return self.context_length or _SMALLEST_CONTEXT

    @property
    def mirrors(self) -> bool:
        """True if the server reports that its sampler mirrors ids into customized_info."""
        return "mirror" in self.sampling_backend


_NAMES = ("models", "adapters")
"""Facts with several values, one from each entry of a list."""
_KINDS = get_type_hints(Advertised) | dict.fromkeys(_NAMES, str)
"""The type of each fact. For facts with several values, it is the type of one value."""
del _KINDS["sources"]


def _fact(name: str) -> str:
    """Return the name of a fact that a server may report. Raises ValueError for an unknown name."""
    if name not in _KINDS:
        raise ValueError(f"{name!r} is not a fact; known are {', '.join(_KINDS)}")
    return name


_Fact = Annotated[str, _fact]
_Meanings = Mapping[str | bool, str | bool]


def _meant(value: object, meanings: _Meanings | None) -> object:
    """Return the meaning of a value from the table, or None if the table lacks it. Without a table, return
    the value.
    """
    if meanings is None:
        return value
    return meanings.get(value) if isinstance(value, (str, bool)) else None


@dataclass(frozen=True)
class _Document:
    """An information endpoint, and the facts in its document."""

    path: str
    tells: Mapping[_Fact, tuple[Pointer, ...]]
    """The JSON pointers to each fact. The most reliable pointer is first."""
    means: Mapping[_Fact, _Meanings] = field(default_factory=dict)
    only_with: Mapping[_Fact, Pointer] = field(default_factory=dict)
    """The field that an entry must have for a fact to be read from it."""
    items: Pointer | None = None
    """The list whose entries report facts. Names are read from all entries, other facts from the
    first entry.
    """
    older_path: str | None = None

    def facts(self, document: object) -> Iterator[tuple[str, object]]:
        """Yield each fact in a document, with its value as reported."""
        items = [document] if self.items is None else find(document, self.items)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            for fact, pointers in self.tells.items():
                condition = self.only_with.get(fact)
                applies = condition is None or isinstance(find(item, condition), str)
                for pointer in pointers if applies and (index == 0 or fact in _NAMES) else ():
                    yield fact, _meant(find(item, pointer), self.means.get(fact))


@dataclass(frozen=True)
class _Flag:
    """A command-line flag of a server. Its value, presence or absence determines a fact."""

    tells: _Fact
    given: str | bool | None = None
    absent: str | bool | None = None
    means: _Meanings | None = None

    def fact(self, name: str, flags: Sequence[str]) -> object:
        """Return the value of the fact that these flags determine. None if they determine none."""
        if self.given is not None:
            return self.given if name in flags else self.absent
        both = (flag.partition("=")[2] for flag in flags if flag.startswith(f"{name}="))
        value = next((value for flag, value in pairwise(flags) if flag == name), next(both, None))
        return int(value) if value and value.isdecimal() else _meant(value, self.means)


@dataclass(frozen=True)
class _Family:
    """The places where servers of one family report facts about themselves."""

    family: str
    documents: tuple[_Document, ...] = ()
    flags: Mapping[str, _Flag] = field(default_factory=dict)
    clears_refused_after_s: float = 0.0
    """Seconds after which the server forgets a refused request id. 0 if it forgets the id at once."""
    promises: tuple[str, ...] = ()
    """Capabilities of which the family's documentation says that every server has or refuses them."""


@cache
def load_families() -> tuple[_Family, ...]:
    """Load all tables of `spec/servers/`. Raises ValueError for an unknown fact."""
    paths = sorted((spec_root() / "servers").glob("*.yaml"))
    return tuple(typed(_Family, read_yaml(path), str(path)) for path in paths)


@cache
def clears_refused_after_s(family: str) -> float:
    """Return the seconds after which a family's servers forget a refused request id. 0 for other families."""
    return next((known.clears_refused_after_s for known in load_families() if known.family == family), 0.0)


@cache
def promises(family: str) -> tuple[str, ...]:
    """Return the capabilities that every server of a family either has or refuses."""
    return next((known.promises for known in load_families() if known.family == family), ())


@cache
def _documents() -> dict[str, _Document]:
    """Return the information endpoints by path. Paths of older versions come last."""
    every = [document for family in load_families() for document in family.documents]
    older = {document.older_path: document for document in every if document.older_path}
    return {document.path: document for document in every} | older


def information_paths() -> tuple[str, ...]:
    """Return the paths of information endpoints, including the older paths that some gateways and servers
    use.
    """
    return tuple(_documents())


def information_path(request: RequestHead) -> str | None:
    """Return the current path of the information endpoint of a request. None for any other request."""
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
    """Return the reported value of a fact. None if its type or value is invalid."""
    try:
        fitted = fitting(_KINDS[fact], value, fact)
    except ValueError:
        return None
    return None if fitted == "" or (type(fitted) is int and fitted <= 0) else fitted


def advertised_by(exchanges: Iterable[ExchangeHead]) -> Advertised:
    """Collect the facts that information endpoints report. Flags of the capture add the facts that are
    missing there.

    Flags are interpreted for the server family that the capture names, or else for all families. Exchanges
    with other endpoints contribute only their `server`.
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
