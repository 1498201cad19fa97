"""What the checks of known answers allow, beside the pairs."""

from __future__ import annotations

from known_answer_pairs import ASKED, LAW, PARROT, WORDS, letters, said
from stream_builder import change, incremental

from tokenwire.checks.known_answers import script_text_so_far_is_right
from tokenwire.parrot.script import Script
from tokenwire.record import Finish, Stream


def test_a_character_that_an_abort_cuts_may_be_shown_before_the_chunk_that_says_so() -> None:
    halves = tuple(WORDS.pieces.index(bytes([byte])) for byte in "😀".encode()[:2])
    script = Script((*letters("abcd"), *halves, *letters("e")))
    asked = {**ASKED, "input_ids": (script.prompt(LAW, letters("~")[0]),), "max_new_tokens": 20}
    cut = incremental(said(ids=script.ids[:6], text="abcd", finish=Finish("abort")), **asked)
    whole_so_far = change(change(cut, 4, text="\ufffd"), 5, text="")

    def holds(stream: Stream) -> bool:
        return all(one.holds for one in script_text_so_far_is_right(stream, PARROT))

    assert holds(whole_so_far)
    assert not holds(change(whole_so_far, 2, text="\ufffd")), "what follows is no part of the right text"
