"""Edits of bodies, answers and events: where in them, what is dropped, set and changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from tokenwire_faults.primitives import Change, changed

Json = Any
"""What JSON can say."""
Object = dict[str, Any]


def choices_of(answer: Json) -> list[Object]:
    """The choices of an answer or of an event; empty where it is something else, such as an error.

    `/generate` has them bare or in a list, the OpenAI routes under `choices`.
    """
    if isinstance(answer, list):
        return answer
    if not isinstance(answer, dict):
        return []
    choices: list[Object] = answer.get("choices", [answer] if "meta_info" in answer else [])
    return choices


def placed_choices(answer: Json) -> Iterator[tuple[int, Object]]:
    """The choices with their place in a whole answer, or their index."""
    for position, choice in enumerate(choices_of(answer)):
        yield choice.get("index", position), choice


def meta_infos(answer: Json) -> Iterator[Object]:
    """The meta_info of each choice that has one."""
    return _under(choices_of(answer), "meta_info")


def holder_of_finish(choice: Object) -> Object:
    """What holds a choice's `finish_reason`: its meta_info, or in chat the choice itself."""
    holder: Object = choice if "finish_reason" in choice else choice.get("meta_info", {})
    return holder


def finish_of(event: Json) -> Json:
    """The finish reason in an event of one choice; None where there is none yet."""
    return next((holder_of_finish(choice).get("finish_reason") for choice in choices_of(event)), None)


def finish_type(event: Json) -> str | None:
    """The type of the finish reason; None where there is none yet."""
    finish = finish_of(event)
    kind: str | None = finish.get("type") if isinstance(finish, dict) else finish
    return kind


def messages_of(answer: Json) -> Iterator[Object]:
    """What each choice of a chat says: its message, or the delta of an event."""
    for choice in choices_of(answer):
        yield choice.get("delta") or choice.get("message") or {}


def calls_of(answer: Json) -> Iterator[Object]:
    """The calls, or pieces of calls, of a chat."""
    for message in messages_of(answer):
        yield from message.get("tool_calls") or ()


def without_news(event: Object) -> Object:
    """An event of `/generate` like this one that brings no ids, no text and no entry of a series."""
    info = {
        name: [] if isinstance(value, list) and name.startswith(("output_", "mirror_")) else value
        for name, value in event["meta_info"].items()
    }
    return {**event, "text": "", "output_ids": [], "meta_info": info}


def parameters_of(body: Object) -> Object:
    """Where a body has its sampling parameters: in an object of their own, or beside everything else."""
    params = body.get("sampling_params")
    return params if isinstance(params, dict) else body


def _all_parameters(body: Object) -> list[Json]:
    holders = body.get("sampling_params", body)
    return holders if isinstance(holders, list) else [holders]


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _under(holders: Iterable[Object], name: str) -> Iterator[Object]:
    """The objects that stand under a name, and are not empty."""
    for holder in holders:
        if isinstance(value := holder.get(name), dict) and value:
            yield value


PLACES: Mapping[str, Callable[[Json], Iterable[Json]]] = {
    "": lambda value: [value],
    # In answers and events.
    "choices": choices_of,
    "chunks": lambda value: value.get("choices", ()),
    "meta_info": meta_infos,
    "finishes": lambda value: map(holder_of_finish, choices_of(value)),
    "reasons": lambda value: _under(map(holder_of_finish, choices_of(value)), "finish_reason"),
    "deltas": lambda value: _under(choices_of(value), "delta"),
    "messages": lambda value: _under(choices_of(value), "message"),
    "logprobs": lambda value: _under(choices_of(value), "logprobs"),
    "calls": calls_of,
    "usage": lambda value: _under([value], "usage"),
    # In bodies.
    "sampling_params": lambda value: _under([value], "sampling_params"),
    "parameters": _all_parameters,
    "stream_options": lambda value: _under([value], "stream_options"),
    "asked_messages": lambda value: _listed(value.get("messages")),
}


def edit(value: Json, edits: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Json:
    """Edit a body, an answer or an event in place, and give it.

    An edit says in which objects (`in`, the name of a place) that hold what (`if`, `unless`). There it drops
    keys (`drop`), sets them (`set`; `add` where they are absent, `replace` where they are present, `fill`
    where they are null) and changes their values by primitives (`change`).
    """
    for one in [edits] if isinstance(edits, Mapping) else edits:
        for holder in PLACES[one.get("in", "")](value):
            if isinstance(holder, dict) and _fits(holder, one):
                _edit(holder, one)
    return value


def _fits(holder: Object, one: Mapping[str, Any]) -> bool:
    wanted = one.get("if", ())
    if isinstance(wanted, Mapping):
        return all(name in holder and holder[name] == value for name, value in wanted.items())
    return all(map(holder.get, wanted)) and not any(map(holder.get, one.get("unless", ())))


def _edit(holder: Object, one: Mapping[str, Any]) -> None:
    for name in one.get("drop", ()):
        holder.pop(name, None)
    holder.update(deepcopy(one.get("set", {})))
    for name, value in one.get("add", {}).items():
        holder.setdefault(name, deepcopy(value))
    for name, value in one.get("replace", {}).items():
        if name in holder:
            holder[name] = value
    for name, value in one.get("fill", {}).items():
        if holder.get(name) is None:
            holder[name] = value
    changes: Mapping[str, Change] = one.get("change", {})
    for name, change in changes.items():
        if holder.get(name) is not None:
            holder[name] = changed(holder[name], change)
