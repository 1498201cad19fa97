"""Checks of the chat endpoint: roles, chunk ids, content, and the token ids that a choice may report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenwire.checks.about import about, is_error
from tokenwire.checks.check import Target, check, check_finished
from tokenwire.checks.evidence import Observation, expect
from tokenwire.dialects.logprobs import SAMPLED, joined_series
from tokenwire.record import Choice, Delivery, Stream, as_list


@check("chat-role-comes-first", about(chat=True, items=False, streamed=True))
def _chat_role_comes_first(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the first chunk of a choice has the role."""
    for choice in stream.choices:
        emission = choice.emissions[0]
        role = emission.details.get("role")
        message = f"the first chunk of choice {choice.index} has the role {role!r}"
        yield expect(emission.at("role"), "assistant", role, message)


@check("chat-role-stays", about(chat=True, items=False, streamed=True))
def _chat_role_stays(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that later chunks of a choice have the role `assistant` or no role."""
    for choice in stream.choices:
        for emission in choice.emissions[1:]:
            role = emission.details.get("role")
            message = f"a later chunk of choice {choice.index} has the role {role!r}"
            place = emission.at("role")
            yield expect(place, "assistant or none", role, message, holds=role is None or role == "assistant")


_INSTEAD = ("refusal", "function_call")
"""Fields that a message may have instead of content, in addition to tool calls and reasoning."""


@check("chat-content-never-null", about(chat=True, items=False, delivery=Delivery.WHOLE))
def _chat_content_never_null(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the content of a chat message is a string, which is empty if there is no text.

    It may be null if the message has tool calls, a refusal or reasoning, or after a content filter.
    """
    for choice in stream.choices:
        for emission in choice.emissions:
            beside = emission.calls or emission.reasoning or any(map(emission.details.get, _INSTEAD))
            filtered = emission.finish is not None and emission.finish.type == "content_filter"
            if "content" in emission.details and not (beside or filtered):
                content = emission.details["content"]
                place = emission.at("content" if "content" in emission.pointers else "text")
                message = f"the content is {content!r}, not a string"
                yield expect(place, "a string", content, message, holds=isinstance(content, str))


@check_finished(
    "chat-meta-info-in-every-choice", about("return_meta_info", chat=True, delivery=Delivery.WHOLE)
)
def _chat_meta_info_in_every_choice(
    choice: Choice, _stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that every choice has its own meta_info if the request enabled it."""
    reported = choice.emissions[-1].details.get("meta_info")
    place, holds = choice.last_at("meta_info"), isinstance(reported, Mapping)
    message = f"choice {choice.index} has no meta_info object"
    yield expect(place, "a meta_info object", reported, message, holds=holds)


@check_finished(
    "chat-meta-info-only-on-request",
    about(chat=True, items=False, delivery=Delivery.WHOLE, unasked=("return_meta_info",)),
)
def _chat_meta_info_only_on_request(
    choice: Choice, _stream: Stream, _target: Target
) -> Iterator[Observation]:
    """Check that meta_info is absent if the request did not enable it."""
    place, actual = choice.last_at("meta_info"), choice.emissions[-1].details.get("meta_info")
    message = f"choice {choice.index} has a meta_info key that the request did not enable"
    yield expect(place, "no meta_info key", actual, message, holds=not choice.ends_with("meta_info"))


@check("chat-ids-agree-with-meta-info", about(chat=True, items=False, delivery=Delivery.WHOLE))
def _chat_ids_agree_with_meta_info(stream: Stream, _target: Target) -> Iterator[Observation]:
    """Check that the ids of a choice, their count in meta_info and the ids in its logprobs agree."""
    if stream.asked.max_new_tokens == 0:
        return
    for choice in stream.choices:
        if is_error(choice.finish):
            continue
        emission, ids, series = choice.emissions[-1], choice.output_ids, joined_series(choice, SAMPLED)
        meta_info = emission.details.get("meta_info")
        count = meta_info.get("completion_tokens") if isinstance(meta_info, Mapping) else None
        if ids is not None and count is not None:
            message = f"choice {choice.index} has {len(ids)} output ids, but meta_info counts {count!r}"
            yield expect(emission.at("output_ids"), count, len(ids), message)
        if series is None:
            continue
        named = [entry.id if entry else None for entry in series.tokens]
        if ids is not None:
            message = f"the output logprobs of choice {choice.index} name other ids than its output ids"
            yield expect(emission.at(SAMPLED), as_list(ids), named, message)
        elif count is not None:
            size = len(named)
            message = f"choice {choice.index} has {size} output logprobs, but meta_info counts {count!r}"
            yield expect(emission.at(SAMPLED), count, size, message)
