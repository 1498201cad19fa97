"""Pairs for the chapters on text and stops."""

from __future__ import annotations

from letter_tokenizer import HALF, OTHER_HALF, SPECIAL, LetterTokenizer
from pair import Pair
from stream_builder import Reply, change, incremental, named, whole

from tokenwire.checks.check import Target
from tokenwire.record import Finish, Stream

LETTERS = Target(tokenizer=LetterTokenizer())
STOP_AT_CD = Finish("stop", matched="cd")
BROKEN = "\ufffd"


def stopped(ids: tuple[int, ...] = (11, 12, 13, 14), text: str = "ab", **asked: object) -> Stream:
    """An answer that the stop string `cd` ended."""
    return named(
        whole(Reply(ids=ids, text=text, finish=STOP_AT_CD), stop=("cd",), **asked), "generate/stopped"
    )


def _matched(by: object, **asked: object) -> Stream:
    return whole(Reply(ids=(11, 12, 13), text="ab", finish=Finish("stop", matched=by)), **asked)


WITH_SPECIAL = whole(Reply(ids=(11, SPECIAL, 12)))
WITH_SPECIAL_SHOWN = whole(Reply(ids=(11, SPECIAL, 12)), skip_special_tokens=False)

TEXT_PAIRS = [
    Pair("text-is-what-its-ids-say", whole(), change(whole(), text="abcef"), pointer="/text", target=LETTERS),
    Pair(
        "text-is-what-its-ids-say",
        stopped(),
        stopped(text="a"),
        pointer="/text",
        target=LETTERS,
        why="cut too early",
    ),
    Pair(
        "text-is-what-its-ids-say",
        whole(Reply(ids=(11, HALF, 12), text=f"a{BROKEN}b")),
        whole(Reply(ids=(11, HALF, 12), text="ab")),
        pointer="/text",
        target=LETTERS,
        why="bytes that are no character",
    ),
    Pair(
        "text-is-what-its-ids-say",
        whole(Reply(ids=(11, 12, 13), text="ab", finish=Finish("stop", matched=13))),
        whole(Reply(ids=(11, 12, 13), text="abc", finish=Finish("stop", matched=13))),
        pointer="/text",
        target=LETTERS,
        why="the id that ended the choice",
    ),
    Pair(
        "incomplete-tail-is-shown",
        whole(Reply(ids=(11, HALF), text=f"a{BROKEN}")),
        whole(Reply(ids=(11, HALF), text="a")),
        pointer="/text",
        target=LETTERS,
    ),
    Pair(
        "shown-text-stays",
        change(change(incremental(Reply(ids=(11, HALF, OTHER_HALF), text="a--")), 1, text=""), 2, text="é"),
        change(
            change(incremental(Reply(ids=(11, HALF, OTHER_HALF), text="a--")), 1, text=BROKEN), 2, text=""
        ),
        1,
        "/text",
        LETTERS,
    ),
    Pair(
        "text-keeps-up-with-its-ids",
        incremental(),
        change(change(incremental(), 2, text=""), 3, text="cd"),
        2,
        "/text",
        LETTERS,
    ),
    Pair(
        "text-waits-for-its-ids",
        incremental(),
        change(change(incremental(), 1, text="bc"), 2, text=""),
        1,
        "/text",
        LETTERS,
    ),
    Pair(
        "special-tokens-as-asked",
        change(WITH_SPECIAL, text="ab"),
        change(WITH_SPECIAL, text="a<s>b"),
        pointer="/text",
        target=LETTERS,
    ),
    Pair(
        "special-tokens-as-asked",
        change(WITH_SPECIAL_SHOWN, text="a<s>b"),
        change(WITH_SPECIAL_SHOWN, text="ab"),
        pointer="/text",
        target=LETTERS,
        why="asked for and not shown",
    ),
    Pair(
        "stop-string-ends-generation",
        (
            whole(Reply(text="bcaaaa")),
            named(whole(Reply(text="", finish=Finish("stop")), stop=("bc",)), "g/stop"),
        ),
        (whole(Reply(text="bcaaaa")), named(whole(Reply(text="bcaaaa"), stop=("bc",)), "g/stop")),
        pointer="/text",
    ),
    Pair(
        "nothing-follows-a-stop-string",
        stopped(),
        stopped((11, 12, 13, 14, 15)),
        pointer="/output_ids",
        target=LETTERS,
    ),
    Pair(
        "nothing-follows-a-stop-pattern",
        whole(Reply(ids=(11, 12, 13), text="abc"), stop_regex=("[bc]{2}",)),
        whole(Reply(ids=(11, 12, 13, 14), text="abcd"), stop_regex=("[bc]{2}",)),
        pointer="/output_ids",
        target=LETTERS,
    ),
    Pair(
        "nothing-follows-a-stop-id",
        whole(stop_token_ids=(16,)),
        whole(stop_token_ids=(15,)),
        pointer="/output_ids",
    ),
    Pair("stop-id-stays-as-declared", _matched(13), _matched(14), pointer="/output_ids"),
    Pair(
        "named-stop-was-asked-and-spelled",
        stopped(),
        stopped((11, 12, 13, 15)),
        pointer="/finish",
        target=LETTERS,
    ),
    Pair(
        "named-stop-was-asked-and-spelled",
        _matched("c", stop=("c",)),
        _matched("c", stop=("d",)),
        pointer="/finish",
        target=LETTERS,
        why="not a stop of the request",
    ),
    Pair(
        "kept-stop-ends-the-text",
        stopped(text="abcd", no_stop_trim=True),
        stopped(text="ab", no_stop_trim=True),
        pointer="/text",
    ),
]
