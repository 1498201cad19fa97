"""Finding one's way in answers: `/generate` has them bare or in a list, the OpenAI routes under `choices`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = Any


def choices_of(answer: Json) -> list[dict[str, Any]]:
    """The choices of an answer or of an event; empty where it is something else, such as an error."""
    if isinstance(answer, list):
        return answer
    if not isinstance(answer, dict):
        return []
    choices: list[dict[str, Any]] = answer.get("choices", [answer] if "meta_info" in answer else [])
    return choices


def meta_infos(answer: Json) -> Iterator[dict[str, Any]]:
    """The meta_info of each choice that has one."""
    for choice in choices_of(answer):
        if choice.get("meta_info"):
            yield choice["meta_info"]


def holder_of_finish(choice: dict[str, Any]) -> dict[str, Any]:
    """What holds a choice's `finish_reason`: its meta_info, or in chat the choice itself."""
    holder: dict[str, Any] = choice if "finish_reason" in choice else choice.get("meta_info", {})
    return holder


def finish_of(event: Json) -> Json:
    """The finish reason in an event of one choice; None where there is none yet."""
    return next((holder_of_finish(choice).get("finish_reason") for choice in choices_of(event)), None)


def without_news(event: dict[str, Any]) -> dict[str, Any]:
    """An event of `/generate` like this one that brings no ids, no text and no entry of a series."""
    info = {
        name: [] if isinstance(value, list) and name.startswith(("output_", "mirror_")) else value
        for name, value in event["meta_info"].items()
    }
    return {**event, "text": "", "output_ids": [], "meta_info": info}
