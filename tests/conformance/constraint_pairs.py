"""Pairs for the chapter on constraints."""

from __future__ import annotations

from typing import Any

from channel_answers import BODY, CALL, CITY, PING, piece, whole
from letter_tokenizer import FIRST, SPECIAL, LetterTokenizer
from pair import Pair
from wire_answers import answered

from tokenwire.checks.check import Target
from tokenwire.record import Stream

_SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}
_WORD, _OTHER = '{"a": true}', '{"b": tru'
_TEXT, _CALLS = "/choices/0/message/content", "/choices/0/message/tool_calls/0"
_STRICT = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}}
_TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": _STRICT}},
]


def _answered(text: str, **more: Any) -> Stream:
    return whole(text, text, **{"response_format": _FORMAT, "tools": None, **more})


def _called(arguments: str, **body: Any) -> Stream:
    return whole(CALL, "", piece("get_weather", arguments), **body)


def _refused(status: int, **body: Any) -> Stream:
    error = {"object": "error", "message": "not that", "type": "BadRequestError", "code": status}
    answer = error if status >= 400 else whole("a", "a").events[0].data
    return answered("sglang-chat", {**BODY, "tools": None, **body}, answer, status=status)


WORD_IDS = (FIRST, FIRST + 1, FIRST + 2)


def with_ids(*ids: int, text: str = "abc", **sampling: Any) -> Stream:
    """An answer to the expression `abc` that an id ended, as /generate tells it."""
    info = {"id": "a", "finish_reason": {"type": "stop", "matched": ids[-1]}, "prompt_tokens": 1}
    answer = {"text": text, "output_ids": ids, "meta_info": {**info, "completion_tokens": len(ids)}}
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 9, "regex": "abc", **sampling}}
    return answered("sglang-generate", body, answer)


def _refused_in_messages(error_type: str) -> Stream:
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    body["output_config"] = {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}
    error = {"type": "error", "error": {"type": error_type, "message": "no such type"}}
    return answered("anthropic-messages", body, error)


CONSTRAINT_PAIRS = [
    Pair("finished-text-is-a-word", _answered(_WORD), _answered(_OTHER), None, _TEXT),
    Pair(
        "finished-text-is-a-word",
        _answered("ab", response_format=None, regex="[ab]{2}"),
        _answered("ab", response_format=None, regex="[ab]{3}"),
        None,
        _TEXT,
        why="an expression",
    ),
    Pair(
        "finished-text-is-a-word",
        _answered("ab", response_format=None, regex="[ab]{3}", stop=["b"], matched="b"),
        _answered("ac", response_format=None, regex="[ab]{3}", stop=["b"], matched="b"),
        None,
        _TEXT,
        why="a stop of the request cut it",
    ),
    Pair(
        "finished-text-is-a-word",
        with_ids(*WORD_IDS, SPECIAL, ignore_eos=True),
        with_ids(*WORD_IDS, SPECIAL, FIRST, ignore_eos=True),
        None,
        "/output_ids",
        Target(tokenizer=LetterTokenizer()),
        why="an id stands behind the end of the word",
    ),
    Pair(
        "reasoning-keeps-the-constraint",
        _answered(_WORD, reasoning="hm"),
        _answered("", reasoning=_WORD),
        None,
        _TEXT,
    ),
    Pair(
        "cut-text-begins-a-word",
        _answered('{"a": tr', finish="length"),
        _answered('{"a": 12, "c": "r', finish="length"),
        None,
        _TEXT,
    ),
    Pair(
        "bad-constraints-refused",
        _refused(400, regex="(["),
        _refused(200, regex="(["),
    ),
    Pair(
        "bad-constraints-refused",
        _refused(400, tool_choice="required"),
        _refused(200, tool_choice="required"),
        why="no tool to call",
    ),
    Pair(
        "bad-constraints-refused",
        _refused_in_messages("invalid_request_error"),
        _refused_in_messages("internal_error"),
        0,
        why="an error that says by its type whose fault it is",
    ),
    Pair(
        "clashing-constraints-refused",
        _refused(400, regex="a", response_format=_FORMAT),
        _refused(200, regex="a", response_format=_FORMAT),
    ),
    Pair(
        "one-call-at-most",
        whole(f"{CALL}\n{PING}", "", piece("get_weather", str(CITY)), parallel_tool_calls=False),
        whole(
            f"{CALL}\n{PING}",
            "",
            piece("get_weather", str(CITY)),
            piece("ping", "{}", 1),
            parallel_tool_calls=False,
        ),
    ),
    Pair(
        "demanded-arguments-are-an-object",
        _called('{"city": "Paris"}', tool_choice="required"),
        _called("4E12", tool_choice="required"),
        None,
        _CALLS,
    ),
    Pair(
        "strict-arguments-fit",
        _called('{"city": "Paris"}', tools=_TOOLS),
        _called('{"city": "Oslo"}', tools=_TOOLS),
        None,
        _CALLS,
    ),
]
