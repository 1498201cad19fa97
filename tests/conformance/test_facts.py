"""Facts: what is kept of an answer, and comes back as it was."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path

from tokenwire.facts import ChoiceFacts, Facts, computed
from tokenwire.record import Asked, Choice, Stream
from tokenwire.replay import replay

CAPTURE = Path(__file__).parents[2] / "fixtures" / "sglang" / "0.5.23" / "live-without-tokenizer.jsonl.gz"


def test_facts_are_unpickled_as_they_were() -> None:
    (run,) = replay([CAPTURE]).runs
    assert len(run.streams) > 100
    for stream in run.streams:
        facts, known = Facts.of(stream), computed(stream)
        choices = [ChoiceFacts.of(choice) for choice in stream.choices]
        again = pickle.loads(pickle.dumps((facts, known, choices)))
        assert again == (facts, known, choices)
        assert repr(again[0].asked) == repr(stream.asked)  # tells 1 from True, which are equal


def test_what_was_asked_is_unpickled_with_the_type_of_each_value() -> None:
    asked = Asked(n=True, frequency_penalty=0, stop=("x",), echo=False)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(asked))
    assert repr(again) == repr(asked)
    assert asked.__getstate__() == {
        "n": True,
        "frequency_penalty": 0,
        "stop": ("x",),
        "logit_bias": {},
        "sent": {},
    }


def test_facts_have_the_names_of_what_they_tell() -> None:
    """Those of a choice are also found on a choice that was read."""
    of_streams = {field.name for field in fields(Facts)}
    of_choices = {field.name for field in fields(ChoiceFacts)} - {"computed", "called", "counters"}
    assert of_streams <= {field.name for field in fields(Stream)}
    assert of_choices <= {field.name for field in fields(Choice)} | set(vars(Choice))
