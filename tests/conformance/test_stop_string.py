"""Which stop string ended a choice, and what follows for servers that do not name it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from stream_builder import Reply, named, whole

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.ask import Asked
from tokenwire.checks.check import CHECKS, Target
from tokenwire.checks.evidence import Observation
from tokenwire.checks.stops import stop_string_of
from tokenwire.dialects.dialect import load_dialects
from tokenwire.record import Finish, Stream
from tokenwire.wire.exchange import HttpRequest

WORDS = '[null,{"messages":[]}]'


def chat(text: str, finish: Finish, *stop: str, name: str = "one", prompt_key: str = WORDS) -> Stream:
    """An answer to messages: no ids, and nobody says what stopped it."""
    reply = Reply(ids=None, text=text, counted=False, finish=finish)
    asked: dict[str, Any] = {"input_ids": None, "text_prompt": True, "prompt_key": prompt_key}
    return named(whole(reply, dialect="openai-chat", stop=stop, **asked), name)


@pytest.mark.parametrize(
    ("finish", "text", "stop", "expected"),
    [
        (Finish("stop", "b"), "a", ("b", "c"), "b"),
        (Finish("stop", "x"), "ax", ("b",), None),
        (Finish("stop", 7), "ab", ("b",), None),
        (Finish("stop"), "abc", ("x", "b"), "b"),
        (Finish("stop"), "abc", ("x",), None),
        (Finish("stop"), "abc", ("",), None),
        (Finish("length"), "abc", ("b",), None),
        (Finish("length", "b"), "a", ("b",), None),
        (None, "abc", ("b",), None),
    ],
)
def test_a_stop_string_is_named_or_seen(
    finish: Finish | None, text: str, stop: Sequence[str], expected: str | None
) -> None:
    (choice,) = whole(Reply(ids=None, text=text, finish=finish)).choices
    assert stop_string_of(Asked(stop=tuple(stop)), choice) == expected


def test_a_server_that_shows_its_stop_string_is_caught_without_its_word() -> None:
    check = CHECKS["stop-string-not-shown"].on_run
    assert check is not None
    (seen,) = check((chat("abc", Finish("stop"), "bc"),), Target())
    assert not seen.holds
    assert list(check((chat("a", Finish("stop"), "bc"),), Target())) == [], "it may have ended by itself"


@pytest.mark.parametrize(("budget", "judged"), [(6, []), (7, [False]), (None, [False])])
def test_what_its_budget_may_have_ended_need_not_name_a_stop(budget: int | None, judged: list[bool]) -> None:
    check = CHECKS["stop-is-named"].on_run
    assert check is not None
    asked: dict[str, Any] = {"stop": ("x",), "ignore_eos": True, "max_new_tokens": budget}
    ended = whole(Reply(ids=range(6), text="abcdef", finish=Finish("stop")), **asked)
    assert [seen.holds for seen in check((ended,), Target())] == judged


def test_a_stop_string_within_the_least_number_of_tokens_stays() -> None:
    """The prompt `q a w a z a k` with the stop `a` and min_tokens 4, echoed: the first two stay."""
    check = CHECKS["stop-string-not-shown"].on_run
    assert check is not None
    answer = chat("q a w a z ", Finish("stop", matched="a"), "a")
    assert not all(seen.holds for seen in check((answer,), Target()))
    assert list(check((replace(answer, asked=replace(answer.asked, min_new_tokens=4)),), Target())) == []
    (choice,) = whole(Reply(ids=None, text="q a w", finish=Finish("stop"))).choices
    assert stop_string_of(Asked(stop=("a",), min_new_tokens=4), choice) is None


def unmatched(*streams: Stream) -> list[Observation]:
    check = CHECKS["unmatched-stop-changes-nothing"].on_run
    assert check is not None
    return list(check(streams, Target()))


def test_messages_are_related_by_their_words() -> None:
    length = Finish("length")
    plain, same = chat("abc", length), chat("abc", length, "zz", name="two")
    assert [seen.holds for seen in unmatched(plain, same)] == [True, True]
    other = chat("abX", length, "zz", name="two")
    assert not all(seen.holds for seen in unmatched(plain, other))
    elsewhere = chat("abX", length, "zz", name="two", prompt_key='[null,{"messages":[1]}]')
    assert unmatched(plain, elsewhere) == []


def prompt_key(dialect: str, **body: Any) -> str:
    return load_dialects()[dialect].read_asked(HttpRequest("POST", "/x", body)).prompt_key


def test_the_words_of_a_prompt_are_told_from_others() -> None:
    hello = {"messages": [{"role": "user", "content": "Hello"}]}
    assert prompt_key("openai-chat", **hello) == prompt_key("openai-chat", stop=["x"], stream=True, **hello)
    assert prompt_key("openai-chat", **hello) != prompt_key("openai-chat", model="m", **hello)
    assert prompt_key("openai-chat", **hello) != prompt_key("openai-chat", messages=[])
    assert prompt_key("sglang-chat", input_ids=[1], **hello) == prompt_key("sglang-chat", input_ids=[1])
    assert prompt_key("sglang-generate", text="a") != prompt_key("sglang-generate", text="b")
    assert prompt_key("sglang-generate", input_ids="no ids") == ""
