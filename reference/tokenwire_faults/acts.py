"""Acts: the changes that faults make at seams. Most acts come from `faults.yaml`; acts that need more than
its primitives are written in Python.

An act names the parameters that it needs, like a pytest fixture. The last parameter is the value at the seam,
and the act returns the replacement for this value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

from tokenwire_faults.answers import Json, Object, edit, finish_of, fitting
from tokenwire_faults.deliveries import EditedDetokenizer, edited_emission, edited_row
from tokenwire_faults.fault import Act, Fault
from tokenwire_faults.primitives import Change, changed
from tokenwire_reference.core.stopping import StopRules

DONE = b"data: [DONE]\n\n"

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "asked": ("fault", "body"),
    "answers": ("fault", "answer"),
    "whole": ("fault", "answer"),
    "answered": ("fault", "status", "answer"),
    "media_type": ("fault", "given"),
    "event": ("fault", "event"),
    "events": ("fault", "event"),
    "frame": ("fault", "frame"),
    "cut": ("fault", "frames"),
    "stop_rules": ("fault", "rules"),
    "prefix_secrets": ("fault", "secrets"),
    "due": ("fault", "request", "sent", "due"),
    "row": ("fault", "request", "row"),
    "detokenizer": ("fault", "detokenizer"),
    "text": ("fault", "reader", "text"),
    "format": ("fault", "usual"),
    "deltas": ("fault", "parser", "ended", "deltas"),
    "taken": ("fault", "reader", "emission"),
    "leaving": ("fault", "leaving"),
    "flushing": ("fault", "flushing"),
    "pausing": ("fault", "pausing"),
    "aborting": ("fault", "rid", "live", "names"),
    "colliding": ("fault", "rid", "abort"),
    "ended": ("fault", "rid", "abort"),
}
"""The possible parameters of acts at each seam.

Acts at the seams `answers`, `whole` and `event` change the value in place and return nothing.
"""


def _whole(change: Act) -> dict[str, Act]:
    def act(fault: Fault, status: int, answer: Json) -> tuple[int, Json]:
        change(fault, answer)
        return status, answer

    return {"answered": act}


def _event(change: Act) -> dict[str, Act]:
    def act(fault: Fault, event: Object) -> Iterable[Object]:
        change(fault, event)
        return [event]

    return {"events": act}


def _acts(seam: str, function: Callable[..., Any]) -> dict[str, Act]:
    """Return the acts of a function, by the seams of `Fault`."""
    needed = [PARAMETERS[seam].index(name) for name in signature(function).parameters]

    def act(*given: Any) -> Any:
        return function(*(given[place] for place in needed))

    match seam:
        case "answers":
            return _whole(act) | _event(act)
        case "whole":
            return _whole(act)
        case "event":
            return _event(act)
    return {seam: act}


_written: dict[str, dict[str, Act]] = defaultdict(dict)


def act_at(seam: str, *names: str) -> Callable[[Act], Act]:
    """Register a function as the act at a seam, for the faults with these names.

    Without names, the function's own name is the name of the fault.
    """

    def enter(function: Act) -> Act:
        for name in names or [function.__name__.strip("_").replace("_", "-")]:
            _written[name] |= _acts(seam, function)
        return function

    return enter


def entered() -> frozenset[str]:
    """Return the faults with acts that are functions."""
    return frozenset(_written)


def written(name: str) -> Mapping[str, Act]:
    """Return the acts of a fault that are functions."""
    return _written.get(name, {})


def _times(fault: Fault, event: Object, rules: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> int:
    """Return how many times to send an event: `times` of the first matching rule; 1 if no rule matches.

    A rule may select the `nth` event, and events with or without a `finish` reason. It may also select events
    that contain certain objects, with the same keys as an edit (`in`, `if` …).
    """
    for rule in [rules] if isinstance(rules, Mapping) else rules:
        meant = rule.get("nth", fault.events) == fault.events and any(True for _ in fitting(event, rule))
        if meant and rule.get("finish") in {None, bool(finish_of(event))}:
            return int(rule["times"])
    return 1


def _edited_rules(rules: StopRules, edits: Mapping[str, Change]) -> StopRules:
    """Return stop rules with attributes changed by primitives."""
    for name, change in edits.items():
        setattr(rules, name, changed(getattr(rules, name), change))
    return rules


def _answered(status: int, answer: Json, change: Mapping[str, Any]) -> tuple[int, Json]:
    """Replace an answer whose status is `of`, and return the new status and answer.

    The change may set another status, another `answer` or `text`, or edit the answer.
    """
    if status != change["of"]:
        return status, answer
    if "edit" in change:
        edit(answer, change["edit"])
    other = change["text"].encode() if "text" in change else change.get("answer", answer)
    return change.get("status", status), other


_PRIMITIVES: Mapping[str, Callable[[Any], Callable[..., Any]]] = {
    "asked": lambda edits: lambda body: edit(body, edits),
    "answers": lambda edits: lambda answer: edit(answer, edits),
    "whole": lambda edits: lambda answer: edit(answer, edits),
    "answered": lambda change: lambda status, answer: _answered(status, answer, change),
    "event": lambda edits: lambda event: edit(event, edits),
    "events": lambda rules: lambda fault, event: [event] * _times(fault, event, rules),
    "media_type": lambda other: lambda: other,
    "frame": lambda times: lambda frame: [frame] * (times if frame == DONE else 1),
    "stop_rules": lambda edits: lambda rules: _edited_rules(rules, edits),
    "prefix_secrets": lambda change: lambda secrets: changed(secrets, change),
    "row": lambda edits: lambda row: edited_row(row, edits),
    "detokenizer": lambda changes: lambda detokenizer: EditedDetokenizer(detokenizer, **changes),
    "text": lambda change: lambda text: changed(text, change),
    "taken": lambda edits: lambda reader, emission: edited_emission(reader, emission, edits),
    "leaving": lambda leaving: lambda: leaving,
    "flushing": lambda flushing: lambda: flushing,
    "pausing": lambda pausing: lambda: pausing,
}
"""For each seam: the function that creates an act from the argument in `faults.yaml`."""


def from_table(seam: str, argument: Any) -> dict[str, Act]:
    """Return the acts of an entry of `faults.yaml`. Raises KeyError for a seam without primitives."""
    return _acts(seam, _PRIMITIVES[seam](argument))
