"""The schedule of a request: what the engine does in each step.

A schedule is a short text, `steps=2,1,4;info=a@3;abort=5`. Each word may occur at most once:

| word | meaning |
|---|---|
| `steps=2,0,4` | number of tokens in each step; 0 is a step without output; the last number is repeated |
| `wait=3` | number of steps without output before the first token |
| `join=3:NAME` | wait for three requests with the batch NAME, and start them in the same step |
| `hold=4` | hold back the outputs of four steps, and send them at once |
| `info=a@3,b/step` | keys of `customized_info`: `a` from output 3 on; `b` with one value per step |
| `retract=2` | preempt the request once, after two tokens; it goes on five steps later |
| `abort=5`, `repeat=5` | end the request after five tokens, as aborted or because of a repetition |
| `error=5:503` | let the request fail after five tokens, with this status |
| `die=5` | let the engine crash after five tokens |
| `late` | report the end in a step of its own, without a token |
| `drafts=3` | report three draft tokens in each step; all tokens of the step but one were accepted |
| `cached=8` | report that eight tokens of the prompt were cached |
| `logprobs=nan@2`, `=none@2` | report NaN as the logprob of output 2, or leave out its entry |
| `weights=v7`, `kv=PEER` | report this version of the weights; report PEER in the KV transfer parameters |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

KEY = "tokenwire"
"""The key under which `vllm_xargs` and `custom_params` contain the schedule of a request."""
IN_REQUEST_ID = re.compile(r"schedule\(([^()]*)\)")
"""Matches a schedule within a request id. Some endpoints pass only the request id on to the engine."""
_LONGEST = 1000
_MOST = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Key:
    """A key of `customized_info`, and the outputs that get a value for it."""

    name: str
    first: int = 0
    """The index of the first output with a value."""
    by_step: bool = False
    """True if there is one value for each step, and not one for each token."""


@dataclass(frozen=True)
class End:
    """An end that the engine causes after a number of tokens: an abort, an error or a detected repetition."""

    kind: str
    at: int
    status: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR
    """The HTTP status of an error.

    SGLang's front end tells a failure from an abort by the class of the status.
    """


@dataclass(frozen=True)
class Schedule:
    """A parsed schedule.

    By default, each step has one token, and the request's own parameters decide the end.
    """

    steps: tuple[int, ...] = (1,)
    wait: int = 0
    join: tuple[int, str] = (1, "")
    """The size and the name of the batch to which the request belongs."""
    hold: int = 1
    info: tuple[Key, ...] = ()
    retract: int | None = None
    end: End | None = None
    die: int | None = None
    late: bool = False
    drafts: int = 0
    cached: int = 0
    logprobs: tuple[str, int] | None = None
    """A wrong logprob: its kind (`nan` or `none`), and the index of the output."""
    weights: str = ""
    kv: str = ""

    def step(self, number: int) -> int:
        """Return the number of tokens in a step. Steps are numbered from 0."""
        return self.steps[min(number, len(self.steps) - 1)]


def _end(kind: str, at: str) -> End:
    place, _, status = at.partition(":")
    return End(kind, _number(place), HTTPStatus(_number(status, 400, 599) if status else 500))


def _number(text: str, least: int = 0, most: int = _MOST) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text[:9]) <= most:
        raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name of up to 64 letters, digits, '_', '.' and '-'")
    return text


def _steps(text: str) -> tuple[int, ...]:
    steps = tuple(map(_number, text.split(",")))
    if not steps[-1]:
        raise ValueError("the last step is repeated, so it must have at least one token")
    return steps


def _join(text: str) -> tuple[int, str]:
    size, _, name = text.partition(":")
    return _number(size, 1, 256), _name(name) if name else ""


def _info(text: str) -> tuple[Key, ...]:
    keys = []
    for part in text.split(","):
        name, _, first = part.partition("@")
        name, slash, shape = name.partition("/")
        if slash and shape != "step":
            raise ValueError(f"{part!r} is not NAME, NAME/step, NAME@FIRST or NAME/step@FIRST")
        keys.append(Key(_name(name), _number(first) if first else 0, bool(slash)))
    return tuple(keys)


def _logprobs(text: str) -> tuple[str, int]:
    kind, _, place = text.partition("@")
    if kind not in {"nan", "none"}:
        raise ValueError(f"{text!r} is not nan@OUTPUT or none@OUTPUT")
    return kind, _number(place)


_READ: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "steps": ("steps", _steps),
    "join": ("join", _join),
    "hold": ("hold", partial(_number, least=1)),
    "info": ("info", _info),
    "logprobs": ("logprobs", _logprobs),
    "late": ("late", lambda text: _number(text or "1", 0, 1) == 1),
    **{kind: ("end", partial(_end, kind)) for kind in ("abort", "error", "repeat")},
    **{name: (name, _number) for name in ("wait", "retract", "die", "drafts", "cached")},
    **{name: (name, _name) for name in ("weights", "kv")},
}
"""For each word of a schedule: the field of `Schedule` that the word sets, and the parser of the word's
value.
"""


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule. Raises ValueError with the wrong word and the legal values."""
    if len(text) > _LONGEST:
        raise ValueError(f"the schedule has {len(text)} characters; at most {_LONGEST} are allowed")
    found: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(";"))):
        name, _, value = word.partition("=")
        if name not in _READ:
            raise ValueError(f"unknown schedule word {name!r}; known words are {', '.join(sorted(_READ))}")
        try:
            field, read = _READ[name]
            parsed = read(value)
        except ValueError as error:
            raise ValueError(f"schedule word {word!r}: {error}") from error
        if field in found:
            raise ValueError(
                f"schedule word {word!r}: the word occurs twice, or an earlier word ends the request; "
                "keep one of them"
            )
        found[field] = parsed
    return Schedule(**found)


def schedule_of(given: object, request_id: str, default: Schedule) -> Schedule:
    """Return the schedule of a request: from its `tokenwire` field, or else from its request id, or else the
    default schedule.

    Raises ValueError.
    """
    if isinstance(given, str):
        return parse_schedule(given)
    if given is not None:
        raise ValueError(f"the schedule ({KEY}) must be a string, not {type(given).__name__}")
    found = IN_REQUEST_ID.search(request_id)
    return parse_schedule(found[1]) if found else default
