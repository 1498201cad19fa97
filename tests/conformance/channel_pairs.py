"""Pairs for the chapter on channels."""

from __future__ import annotations

from channel_answers import BODY, CALL, HERMES, PING, THOUGHT, call, piece, streamed, text, thought, whole
from pair import Pair
from wire_answers import DONE, answered

from tokenwire.record import Stream
from tokenwire.target.determinism import Comparison

ARGUMENTS = '{"city": "Paris"}'
OPENED, FILLED = call(piece("get_weather")), call(piece(arguments=ARGUMENTS))
SAID = f"{THOUGHT}Look.\n{CALL}"
WHOLE = whole(SAID, "Look.", piece("get_weather", '{"city":"Paris"}'), reasoning="hm")
GOOD = streamed(SAID, thought("hm\n"), text("Look."), text("\n"), OPENED, FILLED)
LOST = streamed(SAID, thought("hm\n"), text("L"), OPENED, FILLED)
LEAKED = streamed(SAID, thought("hm\n"), text("</think>"), text("Look."), OPENED, FILLED)
HOISTED = streamed(SAID, text("Look.\n"), thought("hm\n"), OPENED, FILLED)
CUT = CALL[: CALL.index("ris")]
BEHIND = f"{CALL}\nDone."
TWO = f"{CALL}\n{PING}"
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def against(baseline: Stream, other: Stream) -> Comparison:
    return Comparison(baseline, other, steady=True)


def at_intervals(other: Stream) -> Comparison:
    """Against a stream at interval 1, on an endpoint that has intervals."""
    return against(vllm(GOOD_DELTAS, 1), other)


GOOD_DELTAS = ({"reasoning": "hm\n"}, text("Look."), OPENED, FILLED)
LOST_DELTAS = ({"reasoning": "hm\n"}, text("L"), OPENED, FILLED)


def vllm(deltas: tuple[dict[str, object], ...], interval: int) -> Stream:
    label = f"interval-{interval}"
    return streamed(SAID, *deltas, dialect="vllm-chat", stream_interval=interval, label=label)


def _two(second: dict[str, object]) -> Stream:
    """Two samples that say the same."""
    first = (thought("hm\n"), text("Yes."))
    words = f"{THOUGHT}Yes."
    return streamed(words, *first, thought("hm\n", choice=1), second, second=words, temperature=1.0, seed=3)


def _created(*times: int) -> Stream:
    """A stream whose chunks were created at these times, and came each 0.1 s behind the one before it."""
    head = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
    choices = [{"index": 0, "delta": text("Hi")}] * (len(times) - 1) + [ENDED]
    chunks = [
        {**head, "created": created, "choices": [choice]}
        for created, choice in zip(times, choices, strict=True)
    ]
    return answered("openai-chat", {**BODY, "stream": True}, *chunks, DONE)


ENDED = {"index": 0, "delta": {}, "finish_reason": "stop"}
CHANNEL_PAIRS = [
    Pair("created-is-constant", (_created(*[1] * 60),), (_created(1, 2),), 1),
    Pair(
        "stream-channels-equal-whole",
        against(WHOLE, GOOD),
        against(WHOLE, LOST),
        2,
        "/choices/0/delta/content",
        HERMES,
    ),
    Pair(
        "stream-channels-equal-whole",
        against(WHOLE, GOOD),
        against(
            WHOLE,
            streamed(SAID, thought("hm\n"), text("Look."), OPENED, call(piece(arguments='{"city": "P"}'))),
        ),
        4,
        "/choices/0/delta/tool_calls/0",
        HERMES,
        why="arguments",
    ),
    Pair(
        "channels-independent-of-interval",
        at_intervals(vllm(GOOD_DELTAS, 4)),
        at_intervals(vllm(LOST_DELTAS, 4)),
        2,
        "/choices/0/delta/content",
        HERMES,
    ),
    Pair("channels-hold-all-text", GOOD, LOST, 2, "/choices/0/delta/content", HERMES),
    Pair(
        "channels-hold-all-text",
        streamed(CUT, OPENED, call(piece(arguments='{"city": "Pa')), finish="length"),
        streamed(CUT, OPENED, call(piece(arguments='{"city": "Pa"}')), finish="length"),
        2,
        "/choices/0/delta/tool_calls/0",
        HERMES,
        why="arguments that a server closed itself",
    ),
    Pair("channels-keep-their-order", GOOD, HOISTED, 2, "/choices/0/delta/reasoning_content", HERMES),
    Pair("channels-hold-no-markers", GOOD, LEAKED, 3, "/choices/0/delta/content", HERMES),
    Pair(
        "unmatched-stop-moves-no-text",
        streamed(SAID, thought("hm\n"), text("Look."), OPENED, FILLED, stop=["so Parrot"]),
        streamed(SAID, thought("hm\n"), text("Look.\n<"), OPENED, FILLED, stop=["so Parrot"]),
        2,
        "/choices/0/delta/content",
        HERMES,
    ),
    Pair(
        "choices-are-parsed-alone",
        _two(text("Yes.", choice=1)),
        _two(thought("Yes.", choice=1)),
        5,
        "/choices/0/delta/reasoning_content",
        HERMES,
    ),
    Pair(
        "parsed-tokens-are-delivered",
        GOOD,
        streamed(SAID, thought("hm"), OPENED, FILLED, short=1),
        6,
        "",
        HERMES,
    ),
    Pair(
        "call-opens-with-its-name",
        GOOD,
        streamed(SAID, FILLED, call(piece("ping"))),
        1,
        "/choices/0/delta/tool_calls/0",
    ),
    Pair(
        "call-is-named-once",
        GOOD,
        streamed(CALL, OPENED, call(piece("get_weather", ARGUMENTS))),
        2,
        "/choices/0/delta/tool_calls/0",
    ),
    Pair(
        "call-is-named-once",
        GOOD,
        streamed(CALL, OPENED, call(piece(arguments=ARGUMENTS) | {"id": ""})),
        2,
        "/choices/0/delta/tool_calls/0",
        why="an empty id",
    ),
    Pair(
        "calls-are-numbered",
        streamed(TWO, OPENED, FILLED, call(piece("ping", "{}", 1))),
        streamed(TWO, OPENED, FILLED, call(piece("ping", "{}", 0, id="call_1"))),
        3,
        "/choices/0/delta/tool_calls/0",
        why="two calls of one index",
    ),
    Pair(
        "calls-are-numbered",
        streamed(TWO, OPENED, FILLED, call(piece("ping", "{}", 1))),
        streamed(TWO, OPENED, FILLED, call(piece("ping", "{}", 2))),
        3,
        "/choices/0/delta/tool_calls/0",
    ),
    Pair(
        "call-ids-are-unique",
        streamed(TWO, OPENED, FILLED, call(piece("ping", "{}", 1))),
        streamed(TWO, OPENED, FILLED, call(piece("ping", "{}", 1, id="call_0"))),
        3,
        "/choices/0/delta/tool_calls/0",
    ),
    Pair(
        "arguments-are-json",
        GOOD,
        streamed(SAID, thought("hm"), text("Look."), OPENED, call(piece(arguments=ARGUMENTS + "}"))),
        4,
        "/choices/0/delta/tool_calls/0",
        HERMES,
    ),
    Pair(
        "spent-budget-is-told",
        streamed(CUT, OPENED, call(piece(arguments='{"city": "Pa')), finish="length"),
        streamed(CUT, OPENED, call(piece(arguments='{"city": "Pa')), finish="tool_calls", max_tokens=20),
        3,
        "/choices/0/finish_reason",
        HERMES,
    ),
    Pair(
        "finish-of-calls-has-a-call",
        streamed(CALL, OPENED, FILLED),
        streamed("Look.", text("Look."), finish="tool_calls"),
        2,
        "/choices/0/finish_reason",
    ),
    Pair(
        "calls-finish-as-calls",
        streamed(CALL, OPENED, FILLED),
        streamed(CALL, OPENED, FILLED, finish="stop"),
        3,
        "/choices/0/finish_reason",
    ),
    Pair(
        "stop-within-a-call-is-told",
        streamed(CUT, OPENED, call(piece(arguments='{"city": "Pa')), finish="stop", stop=["Pa"]),
        streamed(CUT, OPENED, call(piece(arguments='{"city": "Pa')), finish="tool_calls", stop=["Pa"]),
        3,
        "/choices/0/finish_reason",
        HERMES,
    ),
    Pair(
        "tool-choice-is-kept",
        streamed(CALL, text(CALL), tool_choice="none"),
        streamed(CALL, OPENED, FILLED, tool_choice="none"),
        2,
        "/choices/0/delta/tool_calls/0",
    ),
    Pair(
        "tool-choice-is-kept",
        streamed(CALL, OPENED, FILLED, tool_choice="required"),
        streamed("Look.", text("Look."), tool_choice="required"),
        2,
        "/choices/0/finish_reason",
        why="required",
    ),
    Pair(
        "tool-choice-is-kept",
        streamed(CALL, OPENED, FILLED, tool_choice=NAMED),
        streamed(PING, call(piece("ping", "{}")), tool_choice=NAMED),
        1,
        "/choices/0/delta/tool_calls/0",
        why="another tool",
    ),
    Pair(
        "reasoning-tokens-equal-whole",
        against(whole(SAID, "Look.", reasoning="hm", counted=4), streamed(SAID, thought("hm"), counted=4)),
        against(whole(SAID, "Look.", reasoning="hm", counted=4), streamed(SAID, thought("hm"), counted=0)),
        3,
        "/usage",
    ),
    Pair(
        "reasoning-is-counted",
        streamed(SAID, thought("hm"), counted=4),
        streamed(SAID, thought("hm"), counted=0),
        3,
        "/usage",
    ),
    Pair(
        "disputed-markup-may-differ",
        against(
            whole(BEHIND, "Done.", piece("get_weather", ARGUMENTS)),
            streamed(BEHIND, OPENED, FILLED, text("Done.")),
        ),
        against(
            whole(BEHIND, "", piece("get_weather", ARGUMENTS)),
            streamed(BEHIND, OPENED, FILLED, text("Done.")),
        ),
        3,
        "/choices/0/delta/content",
        HERMES,
    ),
    Pair(
        "border-space-may-differ",
        against(
            whole(SAID, "Look.", piece("get_weather", ARGUMENTS), reasoning="hm"),
            streamed(SAID, thought("hm"), text("Look."), OPENED, FILLED),
        ),
        against(WHOLE, GOOD),
        1,
        "/choices/0/delta/reasoning_content",
        HERMES,
    ),
]
