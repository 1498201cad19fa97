"""Edits of bodies, answers and events. An edit drops, sets or changes the keys of certain objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from tokenwire_faults.primitives import Change, changed

Json = Any
"""A JSON value."""
Object = dict[str, Any]


def choices_of(answer: Json) -> list[Object]:
    """Return the choices of an answer or of an event; empty for anything else, such as an error.

    An answer of `/generate` is a choice or a list of choices; the OpenAI routes have them in `choices`.
    """
    if isinstance(answer, list):
        return answer
    if not isinstance(answer, dict):
        return []
    choices: list[Object] = answer.get("choices", [answer] if "meta_info" in answer else [])
    return choices


def placed_choices(answer: Json) -> Iterator[tuple[int, Object]]:
    """Yield each choice with its `index`.

    A choice without an index is yielded with its position in the answer.
    """
    for position, choice in enumerate(choices_of(answer)):
        yield choice.get("index", position), choice


def _later_choices(answer: Json) -> list[Object]:
    return [choice for place, choice in placed_choices(answer) if place]


def meta_infos(answer: Json) -> Iterator[Object]:
    """Return the meta_info of each choice that has one."""
    return _under(choices_of(answer), "meta_info")


def holder_of_finish(choice: Object) -> Object:
    """Return the object that has the `finish_reason` of a choice: its meta_info, or in chat the choice
    itself.
    """
    holder: Object = choice if "finish_reason" in choice else choice.get("meta_info", {})
    return holder


def finish_of(event: Json) -> Json:
    """Return the finish reason in an event of one choice; None before the finish."""
    return next((holder_of_finish(choice).get("finish_reason") for choice in choices_of(event)), None)


def finish_type(event: Json) -> str | None:
    """Return the type of the finish reason; None before the finish."""
    finish = finish_of(event)
    kind: str | None = finish.get("type") if isinstance(finish, dict) else finish
    return kind


def messages_of(answer: Json) -> Iterator[Object]:
    """Yield the text object of each choice of a chat: its message, or the delta of an event."""
    for choice in choices_of(answer):
        yield choice.get("delta") or choice.get("message") or {}


def calls_of(answer: Json) -> Iterator[Object]:
    """Yield the tool calls of a chat answer, or the parts of tool calls in an event."""
    for message in messages_of(answer):
        yield from message.get("tool_calls") or ()


def without_news(event: Object) -> Object:
    """Return a copy of a `/generate` event that has no new ids, text or entries."""
    info = {
        name: [] if isinstance(value, list) and name.startswith(("output_", "mirror_")) else value
        for name, value in event["meta_info"].items()
    }
    return {**event, "text": "", "output_ids": [], "meta_info": info}


def parameters_of(body: Object) -> Object:
    """Return the object that contains a body's sampling parameters: `sampling_params`, or the body itself."""
    params = body.get("sampling_params")
    return params if isinstance(params, dict) else body


def _all_parameters(body: Object) -> list[Json]:
    holders = body.get("sampling_params", body)
    return holders if isinstance(holders, list) else [holders]


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _under(holders: Iterable[Json], name: str) -> Iterator[Object]:
    """Yield the non-empty object under a key of each given object."""
    for holder in holders:
        if isinstance(holder, dict) and isinstance(value := holder.get(name), dict) and value:
            yield value


def _items(value: Json) -> Iterator[Json]:
    """Yield the items of a response, or of an event."""
    yield from _under([value], "item")
    for response in (value, *_under([value], "response")):
        yield from _listed(response.get("output"))


def _spans(answer: Json) -> list[list[Object]]:
    """Return the spans of weight versions for each choice."""
    return [info.get("weight_versions", []) for info in meta_infos(answer)]


def decided_in(answer: Json) -> list[Object]:
    """Return the answers to questions, which are in a list or in an object."""
    answers = answer.get("answers", ()) if isinstance(answer, dict) else ()
    return list(answers.values() if isinstance(answers, dict) else answers)


def _counts_of_reasoning(answer: Json) -> Iterator[Object]:
    for usage in _under([answer], "usage"):
        yield usage
        yield from _under([usage], "completion_tokens_details")


PLACES: Mapping[str, Callable[[Json], Iterable[Json]]] = {
    "": lambda value: [value],
    # The kinds of objects in answers and events that an edit can name.
    "rendered": lambda value: value if isinstance(value, list) else [value],
    "choices": choices_of,
    "chunks": lambda value: value.get("choices", ()),
    "text_chunks": lambda value: value["choices"] if value.get("object") == "text_completion" else (),
    "later_choices": _later_choices,
    "later_results": lambda value: (value if isinstance(value, list) else value.get("data", ()))[1:],
    "meta_info": meta_infos,
    "later_meta_info": lambda value: _under(_later_choices(value), "meta_info"),
    "spans": lambda value: [span for spans in _spans(value) for span in spans],
    "last_spans": lambda value: [span for spans in _spans(value) for span in spans[-1:]],
    "decided": decided_in,
    "finishes": lambda value: map(holder_of_finish, choices_of(value)),
    "reasons": lambda value: _under(map(holder_of_finish, choices_of(value)), "finish_reason"),
    "deltas": lambda value: _under(choices_of(value), "delta"),
    "messages": lambda value: _under(choices_of(value), "message"),
    "logprobs": lambda value: _under(choices_of(value), "logprobs"),
    "calls": calls_of,
    "called": lambda value: _under(calls_of(value), "function"),
    "usage": lambda value: _under([value], "usage"),
    "reasoning": _counts_of_reasoning,
    "error": lambda value: [value.get("error", value)],
    # The kinds of objects in responses, messages and their events that an edit can name.
    "response": lambda value: _under([value], "response"),
    "delta_objects": lambda value: _under([value], "delta"),
    "items": _items,
    "usages": lambda value: _under(
        [value, *_under([value], "response"), *_under([value], "message")], "usage"
    ),
    # In bodies.
    "sampling_params": lambda value: _under([value], "sampling_params"),
    "parameters": _all_parameters,
    "session": lambda value: _under([value], "session_params"),
    "stream_options": lambda value: _under([value], "stream_options"),
    "asked_functions": lambda value: _under(_listed(value.get("tools")), "function"),
    "asked_messages": lambda value: _listed(value.get("messages")),
}


def edit(value: Json, edits: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Json:
    """Edit a body, an answer or an event in place, and return it.

    An edit names a kind of objects (`in`), and selects objects by conditions (`if`, `unless`, and `above` for
    minimum numbers). It drops keys (`drop`), sets them (`set`; `add` if they are absent, `replace` if they
    are present, `fill` if they are null, `copy` from other keys) and changes their values by primitives
    (`change`).
    """
    for rule in [edits] if isinstance(edits, Mapping) else edits:
        for holder in fitting(value, rule):
            _edit(holder, rule)
    return value


def fitting(value: Json, rule: Mapping[str, Any]) -> Iterator[Object]:
    """Yield the objects that a rule selects."""
    for holder in PLACES[rule.get("in", "")](value):
        if isinstance(holder, dict) and _fits(holder, rule):
            yield holder


def _fits(holder: Object, rule: Mapping[str, Any]) -> bool:
    wanted = rule.get("if", ())
    if isinstance(wanted, Mapping):
        return all(name in holder and holder[name] == value for name, value in wanted.items())
    if not all(holder.get(name, 0) > least for name, least in rule.get("above", {}).items()):
        return False
    return all(map(holder.get, wanted)) and not any(map(holder.get, rule.get("unless", ())))


def _edit(holder: Object, rule: Mapping[str, Any]) -> None:
    for name in rule.get("drop", ()):
        holder.pop(name, None)
    holder.update(deepcopy(rule.get("set", {})))
    for name, value in rule.get("add", {}).items():
        holder.setdefault(name, deepcopy(value))
    for name, value in rule.get("replace", {}).items():
        if name in holder:
            holder[name] = value
    for name, value in rule.get("fill", {}).items():
        if holder.get(name) is None:
            holder[name] = value
    for name, other in rule.get("copy", {}).items():
        if other in holder:
            holder[name] = holder[other]
    changes: Mapping[str, Change] = rule.get("change", {})
    for name, change in changes.items():
        if holder.get(name) is not None:
            holder[name] = changed(holder[name], change)
