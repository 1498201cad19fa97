"""A stream by its grammar: which rule an event breaks, and what a hostile stream costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.dialects.event_grammar import Rule, Walk, load_grammar
from tokenwire.record import Event, Place

Said = dict[str, Any]
BEGUN: Said = {"type": "message_start", "message": {}}
ENDED: list[Said] = [{"type": "message_delta", "delta": {}}, {"type": "message_stop"}]


def walk(*documents: Said, grammar: str = "messages") -> Walk:
    events = (Event(index, Place("x", index), data) for index, data in enumerate(documents))
    return load_grammar(grammar).walk(events)


def begins(index: Any, kind: str = "text") -> Said:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind}}


def delta(index: Any, kind: str = "text_delta") -> Said:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, "text": "a"}}


def stops(index: Any) -> Said:
    return {"type": "content_block_stop", "index": index}


def broken(found: Walk) -> list[tuple[int, Rule, str]]:
    return [(misplaced.event.index, misplaced.rule, misplaced.words) for misplaced in found.misplaced]


def test_a_legal_message_breaks_no_rule() -> None:
    found = walk(BEGUN, begins(0), delta(0), stops(0), {"type": "ping"}, begins(1), stops(1), *ENDED)
    assert broken(found) == []
    assert [frame.words for frame in found.frames] == ["block 0", "block 1"]
    assert found.end is not None


@pytest.mark.parametrize(
    ("events", "due"),
    [
        (
            [begins(0)],
            (0, Rule.ENDS, "the stream begins with content_block_start, and message_start begins it once"),
        ),
        ([BEGUN, BEGUN], (1, Rule.ENDS, "message_start comes again, and message_start begins it once")),
        ([BEGUN, *ENDED, {"type": "ping"}], (3, Rule.ENDS, "ping comes after the end")),
        ([BEGUN, ENDED[0], ENDED[0]], (2, Rule.ENDS, "message_delta comes again")),
        ([BEGUN, ENDED[1]], (1, Rule.ENDS, "message_stop comes without message_delta")),
        ([BEGUN, begins(0), ENDED[0]], (2, Rule.CLOSED, "message_delta comes while block 0 is open")),
        ([BEGUN, stops(0)], (1, Rule.CLOSED, "block 0 closes, and is not open")),
        ([BEGUN, begins(1)], (1, Rule.NUMBERED, "block 1 opens, and the next is 0")),
        ([BEGUN, begins(None)], (1, Rule.NUMBERED, "block None opens, and the next is 0")),
        ([BEGUN, begins([[]])], (1, Rule.NUMBERED, "block [[]] opens, and the next is 0")),
        ([BEGUN, begins(False)], (1, Rule.NUMBERED, "block False opens, and the next is 0")),
        ([BEGUN, begins(0), begins(1)], (2, Rule.NUMBERED, "block 1 opens while block 0 is open")),
        (
            [BEGUN, delta(0)],
            (1, Rule.OPEN, "content_block_delta text_delta belongs to block 0, which is not open"),
        ),
        (
            [BEGUN, begins(0, "thinking"), delta(0)],
            (2, Rule.OPEN, "content_block_delta text_delta is in block 0, which is of kind 'thinking'"),
        ),
    ],
)
def test_an_event_breaks_the_rule_that_it_breaks(events: list[Said], due: tuple[int, Rule, str]) -> None:
    assert broken(walk(*events)) == [due]


@pytest.mark.parametrize(
    ("behind", "due"),
    [
        (["response.failed"], []),
        ([], []),
        (["response.failed", "response.failed"], [(3, Rule.ENDS, "response.failed comes after the end")]),
        (["response.completed"], [(2, Rule.ENDS, "response.completed comes after the end")]),
        (["error"], [(2, Rule.ENDS, "error comes after the end")]),
    ],
)
def test_a_failed_response_may_stand_behind_its_error(behind: list[str], due: list[Any]) -> None:
    events = [{"type": kind} for kind in ("response.created", "error", *behind)]
    found = walk(*events, grammar="responses")
    assert broken(found) == due
    assert found.end is not None
    assert found.end.index == (2 if behind[:1] == ["response.failed"] else 1)


def test_a_part_stands_within_its_item() -> None:
    added = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}}
    part = {"output_index": 0, "content_index": 0, "part": {"type": "output_text"}}
    begun = {"type": "response.created"}
    opened = {"type": "response.content_part.added", **part}
    done = {"type": "response.output_item.done", "output_index": 0, "item": {}}
    assert broken(walk(begun, opened, grammar="responses")) == [
        (1, Rule.OPEN, "part 0 opens in no open item")
    ]
    assert broken(walk(begun, added, opened, done, grammar="responses")) == [
        (3, Rule.CLOSED, "item 0 closes while its part 0 is open")
    ]


def test_of_two_open_blocks_with_one_number_the_last_is_meant() -> None:
    found = walk(
        BEGUN,
        begins(0),
        begins(0, "thinking"),
        delta(0, "thinking_delta"),
        stops(0),
        delta(0),
        stops(0),
        *ENDED,
    )
    assert [rule for _, rule, _ in broken(found)] == [Rule.NUMBERED]
    assert [len(frame.events) for frame in found.frames] == [2, 2]


def _never_closed(index: int) -> list[Said]:
    return [begins(index)]


def _lost(index: int) -> list[Said]:
    return [begins(index), delta(-1)]


def _ended_again(index: int) -> list[Said]:
    return [begins(index), ENDED[0]]


@pytest.mark.parametrize("hostile", [_never_closed, _lost, _ended_again])
def test_an_event_breaks_a_rule_once_however_many_blocks_are_open(
    hostile: Callable[[int], list[Said]],
) -> None:
    events = [BEGUN, *(event for index in range(1000) for event in hostile(index)), *ENDED]
    found = walk(*events)
    assert len(found.misplaced) <= 2 * len(events)


EVENTS = st.one_of(
    st.builds(begins, st.integers(-1, 3), st.sampled_from(["text", "thinking"])),
    st.builds(delta, st.integers(-1, 3), st.sampled_from(["text_delta", "thinking_delta"])),
    st.builds(stops, st.integers(-1, 3)),
    st.sampled_from([BEGUN, *ENDED, {"type": "ping"}, {}]),
)


@given(st.lists(EVENTS, max_size=30))
def test_what_is_open_is_what_was_not_closed(events: list[Said]) -> None:
    found = walk(*events)
    due = [frame for frame in found.frames if frame.closed is None]
    still_open = [frame for frames in found._open.values() for same in frames.values() for frame in same]
    assert sorted(map(id, still_open)) == sorted(map(id, due))
    assert len({(misplaced.event.index, misplaced.rule) for misplaced in found.misplaced}) == len(
        found.misplaced
    )


@pytest.mark.parametrize(
    ("given", "done", "due"),
    [
        ([[{"token": "a", "logprob": -1, "bytes": [97]}], []], [{"token": "a", "logprob": -1}], [["a", -1]]),
        ([[{"token": "a", "logprob": -1}]], [], []),
        ([[7, None, {"token": "a"}]], ["b"], [[]]),
    ],
    ids=["with and without bytes", "none at all", "what is no entry"],
)
def test_logprobs_are_joined_of_their_deltas_by_token_and_number(given: Any, done: Any, due: Any) -> None:
    place = {"output_index": 0, "content_index": 0}
    text = "response.output_text"
    found = walk(
        {"type": "response.created"},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}},
        {"type": "response.content_part.added", **place, "part": {"type": "output_text"}},
        *({"type": f"{text}.delta", **place, "delta": "a", "logprobs": entries} for entries in given),
        {"type": f"{text}.done", **place, "text": "a" * len(given), "logprobs": done},
        grammar="responses",
    )
    [_, (_, pointer, repeated, joined)] = found.joined()
    assert (pointer, repeated) == ("/logprobs", due)
    assert (repeated == joined) == (due == [["a", -1]])


SUMMARY = {"output_index": 0, "summary_index": 0}
SUMMED: list[Said] = [
    {"type": "response.created"},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
    {
        "type": "response.reasoning_summary_part.added",
        **SUMMARY,
        "part": {"type": "summary_text", "text": ""},
    },
    {"type": "response.reasoning_summary_text.delta", **SUMMARY, "delta": "Hm."},
    {"type": "response.reasoning_summary_text.done", **SUMMARY, "text": "Hm."},
    {
        "type": "response.reasoning_summary_part.done",
        **SUMMARY,
        "part": {"type": "summary_text", "text": "Hm."},
    },
]


@pytest.mark.parametrize(
    ("left_out", "due"),
    [
        (None, []),
        (
            2,
            [
                (
                    2,
                    Rule.OPEN,
                    "response.reasoning_summary_text.delta belongs to summary 0, which is not open",
                ),
                (
                    3,
                    Rule.OPEN,
                    "response.reasoning_summary_text.done belongs to summary 0, which is not open",
                ),
                (4, Rule.CLOSED, "summary 0 closes, and is not open"),
            ],
        ),
        (4, [(4, Rule.DONE, "summary 0 closes without response.reasoning_summary_text.done")]),
    ],
)
def test_a_summary_of_reasoning_is_a_part_of_its_own(left_out: int | None, due: list[Any]) -> None:
    found = walk(*(event for n, event in enumerate(SUMMED) if n != left_out), grammar="responses")
    assert broken(found) == due
    assert all(stated == joined == "Hm." for _, _, stated, joined in found.joined())


def test_an_event_with_the_whole_text_comes_once_and_last() -> None:
    again = walk(*SUMMED[:5], SUMMED[3], SUMMED[4], SUMMED[5], grammar="responses")
    words = "comes behind response.reasoning_summary_text.done of summary 0"
    assert broken(again) == [
        (5, Rule.DONE, f"response.reasoning_summary_text.delta {words}"),
        (6, Rule.DONE, f"response.reasoning_summary_text.done {words}"),
    ]
