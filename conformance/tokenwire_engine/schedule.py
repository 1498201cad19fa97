"""The schedule of a request: what it wants of the engine, beside its tokens.

A schedule is a short text, `steps=2,1,4;info=a@3;abort=5`. Each word may be given once:

| word | meaning |
|---|---|
| `steps=2,0,4` | tokens of each step; 0 is an idle step; the last number goes on |
| `wait=3` | idle steps before the first token |
| `join=3:NAME` | wait until three requests of the batch NAME are there; all of them start in one step |
| `hold=4` | keep the outputs of four steps, and send them at once |
| `info=a@3,b/step` | keys of `customized_info`: from output 3 on; one value a step instead of one a token |
| `retract=2` | after two tokens the request is preempted once, and goes on five steps later |
| `abort=5`, `repeat=5` | the engine ends the request at five tokens, aborted or for repetition |
| `error=5:503` | it fails at five tokens, with this status |
| `die=5` | the engine itself ends at five tokens |
| `late` | the end comes in a step of its own, without a token |
| `drafts=3` | three tokens are proposed in each step; all but the first of its tokens were accepted |
| `cached=8` | eight tokens of the prompt come from the cache |
| `logprobs=nan@2`, `=none@2` | the logprob of output 2 is NaN, or its entry is missing |
| `weights=v7`, `kv=PEER` | the version of the weights; what a prefill hands over |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

KEY = "tokenwire"
"""The key of `vllm_xargs` and of `custom_params` for the schedule of a request."""
IN_REQUEST_ID = re.compile(r"schedule\(([^()]*)\)")
"""Matches a schedule in a request id, for endpoints that pass on no other field."""
_LONGEST = 1000
_MOST = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Key:
    """A key of `customized_info`, and the outputs with a value."""

    name: str
    first: int = 0
    """The output at which its values begin."""
    by_step: bool = False
    """True if it has one value in each step, in place of one for each token."""

    def __str__(self) -> str:
        return f"{self.name}{'/step' * self.by_step}{f'@{self.first}' if self.first else ''}"


@dataclass(frozen=True)
class End:
    """An end by the engine at a number of tokens: abort, error or repetition."""

    kind: str
    at: int
    status: int = 500
    """The status of an error, as the front end answers it."""


@dataclass(frozen=True)
class Schedule:
    """A parsed schedule. The default is one token in each step, and the end that the request defines."""

    steps: tuple[int, ...] = (1,)
    wait: int = 0
    join: tuple[int, str] = (1, "")
    """The size of the batch, and its name."""
    hold: int = 1
    info: tuple[Key, ...] = ()
    retract: int | None = None
    end: End | None = None
    die: int | None = None
    late: bool = False
    drafts: int = 0
    cached: int = 0
    logprobs: tuple[str, int] | None = None
    """The value (nan or none) and the output."""
    weights: str = ""
    kv: str = ""

    def step(self, number: int) -> int:
        """Return the tokens of a step; steps are numbered from 0."""
        return self.steps[min(number, len(self.steps) - 1)]

    def __str__(self) -> str:
        """Return the text of the schedule, without defaults."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                words.append(_written(field.name, value))
        return ";".join(words)


def _end(kind: str, at: str) -> End:
    place, _, status = at.partition(":")
    return End(kind, _number(place), _number(status, 400, 599) if status else 500)


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
        raise ValueError("the last step goes on, so it needs a token at least")
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


def _late(text: str) -> bool:
    return _number(text or "1", 0, 1) == 1


_READ: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "steps": ("steps", _steps),
    "join": ("join", _join),
    "hold": ("hold", partial(_number, least=1)),
    "info": ("info", _info),
    "logprobs": ("logprobs", _logprobs),
    "late": ("late", _late),
    **{kind: ("end", partial(_end, kind)) for kind in ("abort", "error", "repeat")},
    **{name: (name, _number) for name in ("wait", "retract", "die", "drafts", "cached")},
    **{name: (name, _name) for name in ("weights", "kv")},
}
"""The field of `Schedule` that each word sets, and the parser of its value."""


def _written(name: str, value: Any) -> str:
    """Return the word that sets a field."""
    match value:
        case True:
            return name
        case End():
            return f"{value.kind}={value.at}" + (f":{value.status}" if value.kind == "error" else "")
        case (int(size), str(batch)):
            return f"{name}={size}" + (f":{batch}" if batch else "")
        case (str(kind), int(place)):
            return f"{name}={kind}@{place}"
        case tuple():
            return f"{name}={','.join(map(str, value))}"
    return f"{name}={value}"


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule. Raises ValueError with the word and its legal values."""
    if len(text) > _LONGEST:
        raise ValueError(f"a schedule of {len(text)} characters; {_LONGEST} at most")
    found: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(";"))):
        name, _, value = word.partition("=")
        if name not in _READ:
            raise ValueError(f"the schedule word {name!r} is unknown; known are {', '.join(sorted(_READ))}")
        try:
            field, read = _READ[name]
            parsed = read(value)
        except ValueError as error:
            raise ValueError(f"schedule word {word!r}: {error}") from error
        if field in found:
            raise ValueError(f"schedule word {word!r}: it, or another end, was given already")
        found[field] = parsed
    return Schedule(**found)


def schedule_of(given: object, request_id: str, default: Schedule) -> Schedule:
    """Return the schedule of a request: in its field, or else in its id, or else the default.

    Raises ValueError.
    """
    if isinstance(given, str):
        return parse_schedule(given)
    if given is not None:
        raise ValueError(f"{KEY} is a schedule, which is a string; got {type(given).__name__}")
    found = IN_REQUEST_ID.search(request_id)
    return parse_schedule(found[1]) if found else default
