"""Pairs of answers of the endpoints of typed items, that differ in one event."""

from __future__ import annotations

from typing import Any

from channel_pairs import against
from control_calls import of_response, sent_at
from item_answers import (
    ASKED,
    CITY,
    Event,
    blocks,
    call,
    events,
    free_call,
    message,
    messaged,
    messaged_whole,
    responded,
    responded_whole,
    response,
    text_block,
    thought,
    use_block,
)
from pair import Pair
from wire_answers import answered

from tokenwire.checks.check import Target
from tokenwire.dialects.control import Action
from tokenwire.record import Stream

LEGAL = events(thought(), message(), call())
CUT_SHORT: list[Event] = [
    *LEGAL[:5],
    {"type": "error", "code": "x", "message": "out of memory", "param": None},
]
FAILED: Event = {
    "type": "response.failed",
    "response": {**response(), "status": "failed", "error": {"code": "x", "message": "out of memory"}},
}
LEGAL_BLOCKS = blocks({"type": "thinking", "thinking": "Hm."}, text_block(), use_block(), reason="tool_use")


def where(events: list[Event], kind: str, nth: int = 0) -> int:
    """The index of the nth event of a type."""
    return [index for index, event in enumerate(events) if event["type"] == kind][nth]


def changed(events: list[Event], index: int, **fields: Any) -> list[Event]:
    """The events, one of them with other fields."""
    return [*events[:index], {**events[index], **fields}, *events[index + 1 :]]


def without(events: list[Event], index: int) -> list[Event]:
    """The events without one of them, numbered anew."""
    left = [*events[:index], *events[index + 1 :]]
    return [
        {**event, "sequence_number": number} if "sequence_number" in event else event
        for number, event in enumerate(left)
    ]


def numbered(events: list[Event]) -> list[Event]:
    """The events, numbered anew."""
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def scored(events: list[Event], tokens: list[str]) -> list[Event]:
    """The events of a response with one text, with the logprobs of its tokens, one in each delta."""
    entries = iter([{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens])
    every = [{"token": token, "logprob": -0.5, "bytes": list(token.encode())} for token in tokens]
    given = {
        "response.output_text.delta": lambda: [next(entries)],
        "response.output_text.done": lambda: every,
    }
    return [
        {**event, "logprobs": given[event["type"]]()} if event["type"] in given else event for event in events
    ]


def chat(content: str = "Yes.", prompt: int = 5, **more: Any) -> Stream:
    """The same conversation at the chat endpoint."""
    body = {"model": "m", "messages": [ASKED], "temperature": 0, **more}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2}
    whole = {
        "id": "w",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    return answered("openai-chat", body, whole, label="chat")


SCORED = scored(events(message("Yes.")), ["Ye", "s."])
DELTA = where(LEGAL, "response.output_text.delta")
CLOSED = where(LEGAL, "response.output_item.done", 2)
LAST = len(LEGAL) - 1
DONE = where(LEGAL, "response.output_text.done")
WHOLE = responded_whole(LEGAL[LAST]["response"])
WARM = responded_whole({**LEGAL[LAST]["response"], "temperature": 0.0})
INPUT = where(LEGAL_BLOCKS, "content_block_start", 2) + 1
OPENED = where(LEGAL_BLOCKS, "content_block_start", 1)
STOP = where(LEGAL_BLOCKS, "content_block_stop", 1)
NO_PROMPT = {"input_tokens": 0, "output_tokens": 0}
ESTIMATED = {"input_tokens": 7, "output_tokens": 0}
COUNTED = changed(
    LEGAL_BLOCKS,
    len(LEGAL_BLOCKS) - 2,
    usage={"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 2},
)


def thinking_counted(tokens: int) -> list[Event]:
    """The events of a message of two tokens, so many of which are said to be thinking."""
    details = {"thinking_tokens": tokens}
    usage = {"input_tokens": 5, "output_tokens": 2, "output_tokens_details": details}
    return changed(LEGAL_BLOCKS, len(LEGAL_BLOCKS) - 2, usage=usage)


CLOSES = where(LEGAL_BLOCKS, "content_block_stop")
SIGNED = [
    *LEGAL_BLOCKS[:CLOSES],
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    *LEGAL_BLOCKS[CLOSES:],
]
TURN = {"role": "assistant", "content": [text_block()]}
FIRST = responded_whole(response(message(), name="resp_a"), label="first")
REPEATED = responded_whole(response(message(), prompt=9), label="repeated", input=[ASKED, message(), ASKED])
"""The second turn with all before it."""


def named(prompt: int, label: str = "named") -> Stream:
    """A turn that goes on from the first response."""
    turn = response(message(), prompt=prompt, name=f"resp_{label}")
    return responded_whole(turn, label, previous_response_id="resp_a")


CHAIN = (
    FIRST,
    responded_whole(response(message(), prompt=9, name="resp_b"), "second", previous_response_id="resp_a"),
    responded_whole(
        response(message(), prompt=12), "spelled", input=[ASKED, message(), ASKED, message(), ASKED]
    ),
)
"""Two responses, one of which continues the other, and the third turn with all before it."""
KEPT = responded_whole(response(message()), store=True)
ENDED = response(message())
BEGUN: Event = {**response(name="resp_b"), "status": "queued", "background": True, "usage": None}
CANCELLED: Event = {**BEGUN, "status": "cancelled"}
DELETED: Event = {"id": "resp_1", "object": "response", "deleted": True}


def retrieved(*documents: Event) -> Target:
    """A target of which responses were retrieved."""
    return Target(calls=tuple(of_response(Action.RETRIEVE, 5, document) for document in documents))


def behind(document: Event) -> Target:
    """A target of which a response was begun in the background, and retrieved later."""
    asked = {"model": "m", "input": [ASKED], "temperature": 0, "store": True, "background": True}
    return Target(
        calls=(of_response(Action.BEGIN, 1, BEGUN, **asked), of_response(Action.RETRIEVE, 9, document))
    )


FREE: dict[str, Any] = {"tools": [{"type": "custom", "name": "apply_patch"}]}
WRAPPED = free_call('{"input": "a {b}\\n"}')
AS_FUNCTION: Event = {**call('{"input": "a"}'), "name": "apply_patch"}


ITEM_PAIRS = [
    *(
        Pair(
            "custom-calls-are-custom",
            responded_whole(response(free_call()), **FREE),
            responded_whole(response(item), **FREE),
            pointer="/output/0",
            why=f"{why}, whole",
        )
        for why, item in (("JSON around the input", WRAPPED), ("a call of a function", AS_FUNCTION))
    ),
    *(
        Pair(
            "custom-calls-are-custom",
            responded(*events(free_call()), **FREE),
            responded(*events(item), **FREE),
            place,
            why=f"{why}, streamed",
        )
        for why, item, place in (
            ("JSON around the input", WRAPPED, 12),
            ("a call of a function", AS_FUNCTION, 8),
        )
    ),
    Pair(
        "deltas-add-up",
        responded(*events(free_call("ab"))),
        responded(*changed(events(free_call("ab")), 2, delta="a")),
        3,
        "/input",
        why="a custom tool",
    ),
    Pair(
        "other-events-may-come",
        responded(*LEGAL),
        responded(LEGAL[0], {"type": "response.other.delta", "delta": "a"}, *LEGAL[1:]),
        1,
        "/type",
    ),
    Pair("event-name-is-its-type", messaged(*LEGAL_BLOCKS), messaged(*LEGAL_BLOCKS, named=False), 0, "/type"),
    Pair(
        "events-are-numbered",
        responded(*LEGAL),
        responded(*changed(LEGAL, 3, sequence_number=4)),
        3,
    ),
    Pair("stream-ends-once", responded(*LEGAL), responded(*without(LEGAL, LAST)), LAST - 1),
    Pair("stream-ends-once", responded(*LEGAL), responded(*LEGAL, LEGAL[LAST]), LAST + 1, why="twice"),
    Pair("stream-ends-once", messaged(*LEGAL_BLOCKS), messaged(*LEGAL_BLOCKS[1:]), 0, why="no beginning"),
    Pair(
        "stream-ends-once",
        messaged(*LEGAL_BLOCKS),
        messaged(*without(LEGAL_BLOCKS, len(LEGAL_BLOCKS) - 2)),
        len(LEGAL_BLOCKS) - 2,
        why="no reason",
    ),
    Pair(
        "deltas-belong-to-what-is-open",
        responded(*LEGAL),
        responded(*changed(LEGAL, DELTA, output_index=2)),
        DELTA,
    ),
    Pair(
        "deltas-belong-to-what-is-open",
        messaged(*LEGAL_BLOCKS),
        messaged(*changed(LEGAL_BLOCKS, INPUT, delta={"type": "text_delta", "text": "Now."})),
        INPUT,
        why="another kind",
    ),
    Pair(
        "stream-errors-are-final",
        responded(*CUT_SHORT, FAILED),
        responded(*CUT_SHORT, FAILED, LEGAL[5]),
        7,
        why="what ends a failed response",
    ),
    Pair(
        "last-event-tells-the-status",
        responded(*CUT_SHORT, FAILED),
        responded(*CUT_SHORT, {**FAILED, "response": response()}),
        6,
        "/response/status",
        why="behind an error",
    ),
    Pair(
        "stop-is-named",
        (
            messaged_whole([text_block("Yes. Or no.")]),
            messaged_whole([text_block()], "stop_sequence", sequence=" Or", stop_sequences=[" Or"]),
        ),
        (messaged_whole([text_block("Yes. Or no.")]), messaged_whole([text_block()], stop_sequences=[" Or"])),
        None,
        "/stop_reason",
        why="what the same message goes on with",
    ),
    Pair("what-opens-is-closed", responded(*LEGAL), responded(*without(LEGAL, CLOSED)), LAST - 1),
    Pair(
        "what-opens-is-closed",
        messaged(*LEGAL_BLOCKS),
        messaged(*LEGAL_BLOCKS[: STOP + 1], LEGAL_BLOCKS[STOP], *LEGAL_BLOCKS[STOP + 1 :]),
        STOP + 1,
        why="twice",
    ),
    Pair(
        "items-are-numbered",
        responded(*LEGAL),
        responded(*changed(LEGAL, where(LEGAL, "response.output_item.added", 1), output_index=2)),
        where(LEGAL, "response.output_item.added", 1),
    ),
    Pair(
        "items-are-numbered",
        messaged(*LEGAL_BLOCKS),
        messaged(*without(LEGAL_BLOCKS, STOP)),
        STOP,
        why="blocks overlap",
    ),
    Pair(
        "done-event-follows-its-deltas",
        responded(*LEGAL),
        responded(*without(LEGAL, DONE)),
        DONE,
        why="missing",
    ),
    Pair(
        "done-event-follows-its-deltas",
        responded(*LEGAL),
        responded(*without(LEGAL, where(LEGAL, "response.function_call_arguments.done"))),
        where(LEGAL, "response.function_call_arguments.done"),
        why="missing for a call",
    ),
    Pair(
        "done-event-follows-its-deltas",
        responded(*LEGAL),
        responded(*numbered([*LEGAL[: DONE - 1], LEGAL[DONE], LEGAL[DONE - 1], *LEGAL[DONE + 1 :]])),
        DONE,
        why="before the last delta",
    ),
    Pair(
        "done-event-follows-its-deltas",
        responded(*LEGAL),
        responded(*numbered([*LEGAL[:DONE], LEGAL[DONE], *LEGAL[DONE:]])),
        DONE + 1,
        why="twice",
    ),
    Pair(
        "what-opens-is-empty",
        messaged(*LEGAL_BLOCKS),
        messaged(*changed(LEGAL_BLOCKS, OPENED, content_block={"type": "text", "text": "Ye"})),
        OPENED,
        "/content_block/text",
    ),
    Pair(
        "what-opens-is-empty",
        responded(*LEGAL),
        responded(*changed(LEGAL, DELTA - 1, part={"type": "output_text", "text": "Ye", "annotations": []})),
        DELTA - 1,
        "/part/text",
        why="a part",
    ),
    Pair(
        "item-ids-are-unique",
        responded_whole(response(message(), message("No.", name="msg_2"))),
        responded_whole(response(message(), message("No."))),
        None,
        "/output/1/id",
    ),
    Pair(
        "item-ids-are-unique",
        responded(*events(message(), message("No.", name="msg_2"))),
        responded(*events(message(), message("No."))),
        where(events(message(), message("No.")), "response.output_item.added", 1),
        "/item/id",
        why="where it opens",
    ),
    Pair(
        "closed-item-is-not-in-progress",
        responded_whole(response(message())),
        responded_whole(response(message(status="in_progress"))),
        None,
        "/output/0/status",
    ),
    Pair(
        "closed-item-is-not-in-progress",
        responded(*LEGAL),
        responded(*changed(LEGAL, CLOSED, item={**call(), "status": "in_progress"})),
        CLOSED,
        "/item/status",
        why="where it closes",
    ),
    Pair(
        "finished-response-has-no-error",
        responded_whole(response(message())),
        responded_whole({**response(message()), "error": {"code": "x", "message": "no"}}),
        None,
        "/error",
    ),
    Pair(
        "response-fields-stay",
        responded(*LEGAL),
        responded(*changed(LEGAL, LAST, response={**LEGAL[LAST]["response"], "id": "resp_2"})),
        LAST,
        "/response/id",
    ),
    Pair(
        "last-event-has-the-usage",
        against(WHOLE, responded(*LEGAL)),
        against(WHOLE, responded(*changed(LEGAL, LAST, response={**LEGAL[LAST]["response"], "usage": None}))),
        LAST,
        "/response/usage",
    ),
    Pair(
        "last-event-has-the-fields-of-the-whole",
        against(
            WARM, responded(*changed(LEGAL, LAST, response={**LEGAL[LAST]["response"], "temperature": 0}))
        ),
        against(WARM, responded(*LEGAL)),
        LAST,
        "/response/temperature",
    ),
    Pair(
        "message-start-counts-the-prompt",
        messaged(*LEGAL_BLOCKS),
        messaged(*changed(LEGAL_BLOCKS, 0, message={**LEGAL_BLOCKS[0]["message"], "usage": NO_PROMPT})),
        0,
        "/message/usage",
    ),
    Pair(
        "message-start-counts-the-prompt",
        messaged(*COUNTED),
        messaged(*changed(COUNTED, 0, message={**LEGAL_BLOCKS[0]["message"], "usage": NO_PROMPT})),
        0,
        "/message/usage",
        why="the count comes at the end",
    ),
    Pair(
        "message-start-counts-the-prompt",
        messaged(*COUNTED),
        messaged(*changed(COUNTED, 0, message={**LEGAL_BLOCKS[0]["message"], "usage": ESTIMATED})),
        0,
        "/message/usage",
        why="an estimate",
    ),
    Pair(
        "reasoning-within-output",
        messaged(*thinking_counted(2)),
        messaged(*thinking_counted(3)),
        len(LEGAL_BLOCKS) - 2,
        "/usage",
        why="tokens of thinking blocks",
    ),
    Pair(
        "thinking-is-signed",
        messaged(*SIGNED),
        messaged(*LEGAL_BLOCKS),
        where(LEGAL_BLOCKS, "content_block_stop"),
    ),
    Pair(
        "thinking-is-signed",
        messaged_whole([{"type": "thinking", "thinking": "Hm.", "signature": "s"}, text_block()]),
        messaged_whole([{"type": "thinking", "thinking": "Hm."}, text_block()]),
        None,
        "/content/0",
        why="whole",
    ),
    Pair(
        "deltas-add-up",
        responded(*LEGAL),
        responded(*without(LEGAL, DELTA)),
        where(LEGAL, "response.output_text.done") - 1,
        "/text",
    ),
    Pair(
        "deltas-add-up",
        responded(*changed(without(LEGAL, DELTA), DELTA - 1, part={"type": "output_text", "text": "Ye"})),
        responded(*changed(LEGAL, DELTA - 1, part={"type": "output_text", "text": "Ye"})),
        DONE,
        "/text",
        why="text of the opening",
    ),
    Pair(
        "deltas-add-up",
        responded(*SCORED),
        responded(*changed(SCORED, where(SCORED, "response.output_text.done"), logprobs=[])),
        where(SCORED, "response.output_text.done"),
        "/logprobs",
        why="logprobs",
    ),
    Pair(
        "closed-items-stand-in-the-response",
        responded(*LEGAL),
        responded(*changed(LEGAL, LAST, response=response(thought(), message()))),
        LAST,
        "/response/output",
    ),
    Pair(
        "item-ids-stay",
        responded(*LEGAL),
        responded(*changed(LEGAL, DELTA, item_id="msg_2")),
        DELTA,
        "/item_id",
    ),
    Pair(
        "item-ids-stay",
        responded(*LEGAL),
        responded(*changed(LEGAL, CLOSED, item={**call(), "call_id": "call_2"})),
        CLOSED,
        "/item",
        why="call_id",
    ),
    Pair(
        "last-event-tells-the-status",
        responded(*events(message(status="incomplete"), status="incomplete")),
        responded(*events(message(status="incomplete"), status="incomplete", kind="response.completed")),
        len(events(message())) - 1,
        "/response/status",
    ),
    Pair(
        "cut-item-is-incomplete",
        responded_whole(response(message(status="incomplete"), status="incomplete")),
        responded_whole(response(message(), status="incomplete")),
        None,
        "/output/0/status",
    ),
    Pair(
        "call-input-is-an-object",
        messaged(*blocks(use_block(), reason="tool_use")),
        messaged(*blocks(use_block(CITY[:-1]), reason="tool_use")),
        len(blocks(use_block(CITY[:-1]))) - 4,
        "",
    ),
    Pair(
        "endpoints-agree-on-channels",
        (chat(), responded_whole(response(message()))),
        (chat(), responded_whole(response(thought("Yes.")))),
        None,
        "/output/0/content",
    ),
    Pair(
        "endpoints-agree-on-counts",
        (chat(), messaged_whole([text_block()])),
        (chat(), messaged_whole([text_block()], prompt=6)),
        None,
        "/usage",
    ),
    Pair(
        "own-items-are-accepted",
        (FIRST, REPEATED),
        (FIRST, responded_whole({"error": {"message": "no"}}, status=400, input=[ASKED, message(), ASKED])),
    ),
    Pair(
        "own-items-are-accepted",
        (messaged_whole([text_block()]), messaged_whole([text_block("No.")], messages=[ASKED, TURN, ASKED])),
        (
            messaged_whole([text_block()]),
            messaged_whole([text_block("No.")], status=400, messages=[ASKED, TURN, ASKED]),
        ),
        why="blocks",
    ),
    Pair(
        "previous-response-is-continued",
        (FIRST, REPEATED, *(named(9, label) for label in ("named", "branch"))),
        (FIRST, REPEATED, named(9), named(12, "branch")),
        None,
        "/usage",
        why="branches",
    ),
    Pair(
        "previous-response-is-continued",
        (FIRST, REPEATED, responded_whole(response(message(), prompt=9), previous_response_id="resp_a")),
        (FIRST, REPEATED, responded_whole(response(message(), prompt=5), previous_response_id="resp_a")),
        None,
        "/usage",
    ),
    Pair(
        "previous-response-is-continued",
        (*CHAIN, responded_whole(response(message(), prompt=12), previous_response_id="resp_b")),
        (*CHAIN, responded_whole(response(message(), prompt=9), previous_response_id="resp_b")),
        None,
        "/usage",
        why="the previous of the previous",
    ),
    Pair(
        "retrieved-response-is-the-answer",
        (KEPT,),
        (KEPT,),
        target=retrieved(ENDED),
        bad_target=retrieved({**ENDED, "output": []}),
    ),
    Pair(
        "retrieved-response-is-the-answer",
        (responded(*events(message()), store=True),),
        (responded(*events(message()), store=True),),
        len(events(message())) - 1,
        target=retrieved(ENDED),
        bad_target=retrieved({**ENDED, "status": "in_progress"}),
        why="a stream",
    ),
    Pair(
        "retrieved-response-is-the-answer",
        (KEPT, responded_whole({**ENDED, "id": "resp_2"}, store=True)),
        (KEPT, responded_whole({**ENDED, "id": "resp_2"}, store=True)),
        target=retrieved(ENDED, {**ENDED, "id": "resp_2"}),
        bad_target=Target(
            calls=(
                of_response(Action.RETRIEVE, 5, ENDED),
                of_response(Action.RETRIEVE, 6, {"id": "resp_2"}, status=404),
            )
        ),
        why="one is not found, where others are",
    ),
    Pair(
        "unstored-response-is-not-retrieved",
        (responded_whole(ENDED, store=False),),
        (responded_whole(ENDED, store=False),),
        target=Target(calls=(of_response(Action.RETRIEVE, 5, {"id": "resp_1"}, status=404),)),
        bad_target=retrieved(ENDED),
    ),
    Pair(
        "unstored-response-is-not-retrieved",
        (KEPT,),
        (KEPT,),
        target=Target(
            calls=(
                of_response(Action.DELETE, 5, DELETED),
                of_response(Action.RETRIEVE, 6, {"id": "resp_1"}, status=404),
            )
        ),
        bad_target=Target(
            calls=(of_response(Action.DELETE, 5, DELETED), of_response(Action.RETRIEVE, 6, ENDED))
        ),
        why="deleted",
    ),
    Pair(
        "background-response-ends",
        (sent_at(KEPT, 2),),
        (sent_at(KEPT, 2),),
        target=behind({**ENDED, "id": "resp_b"}),
        bad_target=behind(BEGUN),
    ),
    Pair(
        "background-response-ends",
        (sent_at(KEPT, 2),),
        (sent_at(KEPT, 2),),
        target=behind({**ENDED, "id": "resp_b"}),
        bad_target=behind({**BEGUN, "status": "failed"}),
        why="it fails where the foreground does not",
    ),
    Pair(
        "cancelled-response-ends",
        (KEPT,),
        (KEPT,),
        target=Target(calls=(of_response(Action.CANCEL, 5, CANCELLED),)),
        bad_target=Target(calls=(of_response(Action.CANCEL, 5, BEGUN),)),
    ),
    Pair(
        "cancelled-response-ends",
        (KEPT,),
        (KEPT,),
        target=Target(
            calls=(
                of_response(Action.CANCEL, 5, CANCELLED),
                of_response(Action.RETRIEVE, 6, CANCELLED),
            )
        ),
        bad_target=Target(
            calls=(
                of_response(Action.CANCEL, 5, CANCELLED),
                of_response(Action.RETRIEVE, 6, {**ENDED, "id": "resp_b"}),
            )
        ),
        why="it ends once more",
    ),
]
