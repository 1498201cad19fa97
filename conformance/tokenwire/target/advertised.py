"""What a server says of itself: in its information endpoints, or in the flags that a capture names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.record import Delivery
from tokenwire.wire.exchange import Exchange, HttpRequest

_OLDER_PATHS = {"/get_server_info": "/server_info", "/get_model_info": "/model_info"}
INFORMATION_PATHS = ("/server_info", "/model_info", "/v1/models", "/version", *_OLDER_PATHS)
"""Where servers tell of themselves; gateways and older servers know some by older names only."""
_INCREMENTAL = "incremental_streaming_output"
_INCREMENTAL_FLAG = "--incremental-streaming-output"
_DETERMINISTIC = "enable_deterministic_inference"
_DETERMINISTIC_FLAG = "--enable-deterministic-inference"
LOGPROB_RULES = ("logprobs-of-the-model", "logprobs-at-the-temperature", "logprobs-as-sampled")
"""Rules of output logprobs, as a server may tell one or a user may declare it (`spec/metadata.md`)."""
_LOGPROBS_FLAG = "--logprobs-mode"
_LOGPROBS_MODES = {"raw_logprobs": LOGPROB_RULES[0], "processed_logprobs": LOGPROB_RULES[2]}


@dataclass(frozen=True)
class Advertised:
    """What the target says of itself; nothing here was seen to be true."""

    name: str = ""
    version: str = ""
    model: str = ""
    models: frozenset[str] = frozenset()
    """All names that the server gives its models."""
    context_length: int | None = None
    vocab_size: int | None = None
    tokenizer: bool | None = None
    """Whether the server has a tokenizer; None where it does not say."""
    usage_in_streams: bool = False
    """The server ends every stream with its usage, asked or not."""
    delivery: Delivery | None = None
    stream_interval: int | None = None
    max_running_requests: int | None = None
    """So many requests run at once; more wait."""
    sampling_backend: str = ""
    deterministic: bool = False
    """The server says that results depend on nothing but the request."""
    logprob_rule: str = ""
    """Of which distribution the server says its output logprobs speak, a name of `LOGPROB_RULES`."""
    sources: tuple[str, ...] = ()
    """Where this was read, for example `GET /server_info`."""

    @property
    def mirrors(self) -> bool:
        """Whether the server says that its sampler mirrors ids into customized_info."""
        return "mirror" in self.sampling_backend


def information_path(request: HttpRequest) -> str | None:
    """Which information endpoint a request went to, by its present name; None for any other."""
    path = _OLDER_PATHS.get(request.path, request.path)
    return path if request.method == "GET" and path in INFORMATION_PATHS else None


def _document(exchange: Exchange) -> Mapping[str, Any]:
    if exchange.status != 200:
        return {}
    try:
        value = json.loads(exchange.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _integer(*values: object) -> int | None:
    return next((value for value in values if type(value) is int and value > 0), None)


def _text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")


def _rule(*values: object) -> str:
    return next((rule for rule in LOGPROB_RULES if rule in values), "")


def _delivery(incremental: object) -> Delivery | None:
    if not isinstance(incremental, bool):
        return None
    return Delivery.INCREMENTAL if incremental else Delivery.CUMULATIVE


def _flag(flags: tuple[str, ...], name: str) -> str | None:
    """The value of a command line flag, in either spelling (`--flag value`, `--flag=value`)."""
    for position, flag in enumerate(flags):
        if flag == name and position + 1 < len(flags):
            return flags[position + 1]
        if flag.startswith(f"{name}="):
            return flag.partition("=")[2]
    return None


def _names(listed: object, info: Mapping[str, Any], model_info: Mapping[str, Any]) -> Iterator[object]:
    """What the information endpoints call the server's models."""
    for one in listed if isinstance(listed, list) else ():
        yield one.get("id") if isinstance(one, dict) else None
        yield one.get("root") if isinstance(one, dict) else None
    yield info.get("served_model_name")
    yield from (info.get("model_path"), model_info.get("model_path"))


def advertised_by(exchanges: Iterable[Exchange]) -> Advertised:
    """Put together what the information endpoints say, and the flags of the capture where they are silent.

    Exchanges with other endpoints are looked at for their `server` only.
    """
    found: dict[str, Mapping[str, Any]] = {}
    server = None
    for exchange in exchanges:
        path = information_path(exchange.request)
        if path is not None:
            document = _document(exchange)
            if document:
                found.setdefault(path, document)
        if server is None and (exchange.server.name or exchange.server.flags):
            server = exchange.server
    info = found.get("/server_info", {})
    model_info = found.get("/model_info", {})
    version = found.get("/version", {})
    listed = found.get("/v1/models", {}).get("data")
    model = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    flags = server.flags if server else ()
    interval = _flag(flags, "--stream-interval") or ""
    without = info.get("skip_tokenizer_init", True if "--skip-tokenizer-init" in flags else None)
    flagged = _delivery(_INCREMENTAL_FLAG in flags) if flags else None
    return Advertised(
        name=_text(server.name if server else "", model.get("owned_by")),
        version=_text(info.get("version"), version.get("version"), server.version if server else ""),
        model=_text(model.get("id"), info.get("served_model_name"), model_info.get("model_path")),
        models=frozenset(filter(None, (_text(name) for name in _names(listed, info, model_info)))),
        context_length=_integer(model.get("max_model_len"), info.get("context_length")),
        vocab_size=_integer(model_info.get("vocab_size")),
        usage_in_streams=info.get("stream_response_default_include_usage") is True,
        tokenizer=None if type(without) is not bool else not without,
        delivery=_delivery(info.get(_INCREMENTAL)) or flagged,
        stream_interval=_integer(
            info.get("stream_interval"), int(interval) if interval.isdecimal() else None
        ),
        max_running_requests=_integer(info.get("max_running_requests")),
        sampling_backend=_text(info.get("sampling_backend"), _flag(flags, "--sampling-backend")),
        deterministic=info.get(_DETERMINISTIC, _DETERMINISTIC_FLAG in flags) is True,
        logprob_rule=_rule(info.get("logprob_rule"), _LOGPROBS_MODES.get(_flag(flags, _LOGPROBS_FLAG) or "")),
        sources=(*(f"GET {path}" for path in found), *(("the flags of the capture",) if flags else ())),
    )
